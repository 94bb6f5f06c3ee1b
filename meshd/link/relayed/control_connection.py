"""The control connection to one relay: proven both ways, then calls, mail, rings and pings over it."""

import asyncio
import secrets
import ssl
from collections.abc import Mapping
from typing import Protocol, TypeVar

from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused
from meshd.base.tasks import Owner, first_error
from meshd.identity.invite import RelayHint
from meshd.identity.proof import Purpose
from meshd.link.relayed.http_proxy import Allow
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.secure.handshake import HandshakeContext, prove_dialled
from meshd.wire.message import LengthParser, framed
from meshd.wire.relay import (
    MAX_RELAY_MESSAGE_BYTES,
    Call,
    Called,
    FromNode,
    FromRelay,
    HangUp,
    Mail,
    OpenBox,
    Post,
    Posted,
    Ready,
    RelayPing,
    RelayPong,
    RelayRefusal,
    Ring,
    ShutBox,
    decode_from_relay,
)

PING_SECONDS = 2.0  # without a word from the relay
DEAD_SECONDS = 6.0
DOUBT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0  # to a call or a letter
MAX_CALLS_WAITING = 256  # calls and letters without an answer

Answer = Called | Posted
A = TypeVar("A", Called, Posted)


class RelayTrouble(Broken):
    """The relay failed, or the path to it, not the peer; the text names the relay."""


class RelayHandler(Protocol):
    """Takes what a relay says unasked. Must not raise."""

    def rung(self, control: "ControlConnection", ring: Ring) -> None: ...
    def mail(self, control: "ControlConnection", mail: Mail) -> None: ...


class ControlConnection:
    """Made by `open`; `run` reads until it breaks. Any number of tasks may call and post."""

    def __init__(
        self, relay: RelayHint, pipe: RelayPipe, handler: RelayHandler, *, leftover: bytes, allow: Allow
    ) -> None:
        self.relay = relay
        self.allow = allow  # which addresses of the relay may be dialled
        self.binding = pipe.binding()
        self.ready: Ready | None = None
        self.replaced = False
        self._pipe = pipe
        self._handler = handler
        self._parser = LengthParser(limit=MAX_RELAY_MESSAGE_BYTES)
        self._parser.feed(leftover)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._given_up: set[asyncio.Future[Answer]] = set()  # of those: calls that nobody waits for
        self._number = secrets.randbelow(1 << 16)
        self._sending = asyncio.Lock()
        self._heard = asyncio.get_running_loop().time()
        self._over = ""
        self._doubt = asyncio.Event()
        self._word = asyncio.Event()  # something came

    @classmethod
    async def open(
        cls,
        relay: RelayHint,
        handshake: HandshakeContext,
        handler: RelayHandler,
        *,
        context: ssl.SSLContext,
        environ: Mapping[str, str],
        allow: Allow,
    ) -> "ControlConnection":
        """Connect, have the relay prove its key and prove ours. Raises OSError, TimeoutError, MeshdError."""
        pipe = await RelayPipe.open(relay, context, environ, allow)
        try:
            proven = await prove_dialled(
                pipe, handshake=handshake, expect=relay.key, purpose=Purpose.RELAY, binding=pipe.binding()
            )
            pipe.widen()
            control = cls(relay, pipe, handler, leftover=proven.leftover, allow=allow)
            async with asyncio.timeout(_ANSWER_SECONDS):
                while control.ready is None:
                    await control._read()
        except BaseException:
            pipe.abort()
            await pipe.wait_lost()
            raise
        return control

    async def run(self) -> None:
        """Read and ping until the connection ends; raises nothing but a cancellation."""
        try:
            async with Owner() as owner:
                owner.start(self._listen(), name="relay listen")
                owner.start(self._ping(), name="relay ping")
        except ExceptionGroup as group:
            error = first_error(group)
            if not isinstance(error, MeshdError | TimeoutError):
                raise
            self._over = str(error) or "the relay does not answer"
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End it; what waits for an answer is Broken."""
        self._over = self._over or "the connection to the relay was closed"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(RelayTrouble(f"relay `{self.relay.place}`: {self._over}"))
        await self._pipe.aclose()

    @property
    def why_over(self) -> str:
        """The reason why it ended; empty while it lives."""
        return self._over

    async def call(self, to: bytes) -> bytes:
        """Ask for a circuit to a key or a box; returns our ticket. Raises Refused (by the relay), Broken."""
        if self._given_up:  # each would count as a circuit beside this one
            _, silent = await asyncio.wait(self._given_up, timeout=_ANSWER_SECONDS)
            for late in silent:
                late.cancel()
        number = self._next()
        return (await self._ask(Call(number, to), number, Called)).ticket

    async def post(self, to: bytes, blob: bytes) -> bool:
        """Hand over a letter; True when it was delivered, False when it is kept. Raises Refused, Broken."""
        number = self._next()
        return (await self._ask(Post(number, to, blob), number, Posted)).delivered

    async def open_box(self, box: bytes, seconds: int, *, lasting: bool = False) -> None:
        """Take calls and mail for `box`; `lasting`: of browsers. Raises Broken, Closed."""
        await self._send(OpenBox(box, seconds, lasting))

    async def shut_box(self, box: bytes) -> None:
        """Stop taking calls and mail for `box`. Raises Broken, Closed."""
        await self._send(ShutBox(box))

    def check(self) -> None:
        """Ping at once, and give the connection up if nothing comes within 2 s."""
        self._doubt.set()

    def hang_up(self, ticket: bytes) -> None:
        """Return a ticket, if it can be sent at once: otherwise it expires by itself."""
        try:
            self._pipe.try_send([framed(HangUp(ticket).encode())])
        except MeshdError:
            return

    # --- inside

    def _next(self) -> int:
        self._number = (self._number + 1) & 0xFFFFFFF or 1
        return self._number

    async def _ask(self, message: FromNode, number: int, kind: type[A]) -> A:
        if self._over:
            raise RelayTrouble(f"relay `{self.relay.place}`: {self._over}")
        if len(self._waiting) >= MAX_CALLS_WAITING:
            raise RelayTrouble(f"relay `{self.relay.place}` has too many unanswered requests")
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._send(message)
                answer = await waiting
        except TimeoutError:
            self.check()
            raise RelayTrouble(f"relay `{self.relay.place}` does not answer") from None
        except asyncio.CancelledError:
            if isinstance(message, Call):
                self._give_up(number, waiting)
            raise
        finally:
            if self._waiting[number] is waiting:
                del self._waiting[number]
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # seen, also when we were cancelled
        if not isinstance(answer, kind):
            raise RelayTrouble(f"relay `{self.relay.place}` sent an unexpected answer")
        return answer

    def _give_up(self, number: int, waiting: asyncio.Future[Answer]) -> None:
        """Abandon a call: what the relay grants is given back as soon as it comes."""
        late = waiting
        if waiting.cancelled() or not waiting.done():
            late = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._given_up.add(late)

        def answered(late: asyncio.Future[Answer]) -> None:
            self._given_up.discard(late)
            if self._waiting.get(number) is late:
                del self._waiting[number]
            if not late.cancelled() and late.exception() is None:
                answer = late.result()
                if isinstance(answer, Called):
                    self.hang_up(answer.ticket)

        late.add_done_callback(answered)

    async def _send(self, message: FromNode) -> None:
        async with self._sending:
            await self._pipe.send([framed(message.encode())])

    async def _listen(self) -> None:
        while True:
            await self._read()

    async def _read(self) -> None:
        """Handle the next message."""
        while (data := self._parser.next()) is None:
            try:
                self._parser.feed(await self._pipe.receive())
            except EndOfStream:
                raise Broken("the relay ended the connection") from None
            self._heard = asyncio.get_running_loop().time()
            self._word.set()
        message = decode_from_relay(data)
        if message is not None:
            self._hear(message)

    def _hear(self, message: FromRelay) -> None:
        match message:
            case Ready():
                self.ready = message
            case Called(number) | Posted(number):
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
                elif isinstance(message, Called):
                    self.hang_up(message.ticket)  # the call was given up
            case RelayRefusal(0, code, text, hint):
                if code == "box":
                    return  # told to nobody: the box is asked for again with the next connection
                self.replaced = code == "replaced"
                raise Refused(text, code=code, hint=hint)
            case RelayRefusal(number, code, text, hint):
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(Refused(text, code=code, hint=hint))
            case Ring():
                self._handler.rung(self, message)
            case Mail():
                self._handler.mail(self, message)
            case RelayPong():
                return

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS / 2):
                    await self._doubt.wait()
            except TimeoutError:
                quiet = loop.time() - self._heard
                if quiet >= PING_SECONDS:
                    await self._ask_if_there(DEAD_SECONDS - quiet)
            else:
                self._doubt.clear()
                await self._ask_if_there(DOUBT_SECONDS)

    async def _ask_if_there(self, seconds: float) -> None:
        """Ping the relay. Raises Broken when nothing at all comes within `seconds`."""
        self._word.clear()
        try:
            async with asyncio.timeout(max(0.5, seconds)):
                await self._send(RelayPing(self._next()))
                await self._word.wait()
        except TimeoutError:
            raise Broken("the relay does not answer") from None
