"""A member that says anything: a true key and chain, a real session where it helps, raw bytes where not."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from meshd.base.errors import Broken, Busy, Closed, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import Link
from meshd.mux.config import MuxConfig, Priority
from meshd.mux.events import (
    Code,
    DataReceived,
    Event,
    GoodbyeReceived,
    SessionLost,
    StreamAccepted,
    StreamEnded,
    StreamOpened,
    StreamReset,
)
from meshd.mux.session import Session
from meshd.wire.hello import Bans, Go, Hello, decode
from meshd.wire.hello import Refusal as GreetingRefusal
from meshd.wire.message import LengthParser, framed
from meshd.wire.versions import WIRE_VERSION, NativeVersion

LINK = 1
TICK_SECONDS = 0.25
_BUDGET = 256 << 10
OVER = (
    Broken,
    Closed,
    EndOfStream,
    Refused,
    RemoteProtocolError,
    Busy,
)  # what an honest node's no looks like here


class Talk:
    """One link with one victim, and the session on it. `run` until it is over."""

    def __init__(self, link: Link, session: Session, rest: bytes, *, leads: bool) -> None:
        self.link = link
        self._leads = leads
        self.session = session
        self.over = ""
        self.live: set[int] = set()  # streams that the victim has not ended
        self.theirs: dict[int, str] = {}  # those that it opened, by service
        self.heard: dict[int, bytearray] = {}
        self.ours: dict[int, str] = {}  # those that the victim has not answered yet, by service
        self.answered: Counter[str] = Counter()  # streams that it took or refused, by service
        self.kept: dict[int, bool] = {}  # streams whose words stay after their end; True: they ended well
        self._rest = rest
        self._sending = asyncio.Lock()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Answer as the protocol wants it, until the victim has had enough."""
        loop = asyncio.get_running_loop()
        try:
            self._take(self.session.link_up(LINK, loop.time()))
            if self._leads and self.session.data_link is None:
                self._take(self.session.switch_to(LINK, loop.time()))
            if self._rest:
                self._take(self.session.receive(LINK, self._rest, loop.time()))
            async with Owner() as owner:
                owner.start(self._tick(), name="hostile tick")
                await self._listen()
                owner.cancel()
        except BaseExceptionGroup as group:
            error = first_error(group)
            if not isinstance(error, OVER):
                raise
            self.over = str(error)
        except OVER as error:
            self.over = str(error)
        finally:
            self.over = self.over or "it has ended"
            self._wake()
            await self.link.aclose()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.over:
            data = await self.link.receive()
            self._take(self.session.receive(LINK, data, loop.time()))
            await self._flush()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._flush()
            await asyncio.sleep(TICK_SECONDS)
            at = self.session.next_timeout()
            if at is not None and at <= loop.time():
                self._take(self.session.handle_timeout(loop.time()))

    async def _flush(self) -> None:
        async with self._sending:
            while buffers := self.session.transmit(LINK, asyncio.get_running_loop().time(), _BUDGET):
                await self.link.send(buffers)

    def _take(self, happened: list[Event]) -> None:
        for event in happened:
            if isinstance(event, StreamAccepted | StreamReset) and event.stream_id in self.ours:
                service = self.ours.pop(event.stream_id)
                unknown = isinstance(event, StreamReset) and event.code == Code.UNKNOWN_SERVICE
                self.answered[service] += not unknown
            match event:
                case StreamOpened(stream_id=number, service=service):
                    self.session.accept(number)
                    self.theirs[number] = service
                    self.live.add(number)
                case DataReceived(stream_id=number, data=data):
                    kept = self.heard.setdefault(number, bytearray())
                    kept += data
                    del kept[: -(64 << 10)]
                    self.session.consumed(number, len(data))
                case StreamReset(stream_id=number) | StreamEnded(stream_id=number):
                    self.live.discard(number)
                    if number not in self.kept:
                        self.heard.pop(number, None)
                    elif isinstance(event, StreamEnded):
                        self.kept[number] = True
                case GoodbyeReceived(reason=reason) | SessionLost(reason=reason):
                    self.over = reason or "goodbye"
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Return whether it is so before the session is over, or so many seconds are."""
        try:
            async with asyncio.timeout(seconds):
                while not done() and not self.over:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return done()

    # What it says.

    def open(self, service: str, metadata: Mapping[str, str | int | bytes]) -> int | None:
        """A stream, if the session has room for one."""
        try:
            number = self.session.open(service, metadata, Priority.INTERACTIVE)
        except MeshdError:
            return None
        self.live.add(number)
        self.ours[number] = service
        return number

    async def write(self, number: int, data: bytes, *, eof: bool = False) -> int:
        """As much as the victim takes within a second, which is how many bytes; the rest is dropped."""
        view, said = memoryview(data), 0
        try:
            async with asyncio.timeout(1.0):
                while view and not self.over and number in self.live:
                    view = view[self.session.write(number, view) :]
                    changed = self._changed
                    await self._flush()
                    said = len(data) - len(view)
                    if view:
                        await changed.wait()
            if eof and number in self.live:
                self.session.write_eof(number)
            await self._flush()
        except (TimeoutError, *OVER):
            pass
        return said

    async def shout(self, data: bytes) -> bool:
        """Raw bytes, past the session; whether the link took them."""
        try:
            async with self._sending, asyncio.timeout(1.0):
                await self.link.send([data])
        except (TimeoutError, *OVER):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Target:
    """An honest node, as the hostile one comes to it. `dial` gives a proven link; `post` is its mailbox."""

    name: str
    peer: PeerId
    services: Callable[[], Iterable[str]]
    dial: Callable[[], Awaitable[Link]]
    post: Callable[[bytes], bool] | None = None  # False: the box is full


@dataclass(frozen=True, slots=True)
class Mallory:
    """The hostile node: a member as any other, as far as anybody can see before it speaks."""

    key: KeyPair
    chain: Chain
    mesh: MeshId
    record: bytes
    rng: random.Random

    async def greeted(self, target: Target) -> Talk:
        """A link with a session. Raises MeshdError, TimeoutError."""
        link = await target.dial()
        try:
            async with asyncio.timeout(10):
                return await self._greet(link, target)
        except BaseException:
            await link.aclose()
            raise

    def _hello(self, *, fresh: bytes, chosen: bytes) -> Hello:
        bans = RevocationSet(self.mesh)
        return Hello(
            version=WIRE_VERSION,
            software="9.9.9",
            features=(),
            name="mallory",
            role="client",
            incarnation=(1).to_bytes(16, "big"),
            current=b"",
            fresh=fresh,
            chosen=chosen,
            native=NativeVersion("", "", "", ""),
            largest_frame=256 << 10,
            grace=30,
            bans_count=0,
            bans_digest=bans.digest(),
            clock=0,
            record=self.record,
        )

    async def _greet(self, link: Link, target: Target) -> Talk:
        """As it should be: hostility comes later."""
        parser = LengthParser()

        async def hear() -> Hello | Bans | Go | GreetingRefusal:
            while (message := parser.next()) is None:
                parser.feed(await link.receive())
            heard = decode(message)
            if isinstance(heard, GreetingRefusal):
                raise Refused(heard.text, code=heard.code)
            return heard

        leads = self.key.peer > target.peer
        fresh = self.rng.randbytes(8)
        mine = self._hello(fresh=fresh, chosen=b"")
        if leads:
            await link.send([framed(mine.encode())])
        theirs = await hear()
        if not isinstance(theirs, Hello):
            raise RemoteProtocolError("no hello")
        session_id = theirs.chosen if leads else theirs.fresh + fresh
        if not leads:
            await link.send([framed(self._hello(fresh=b"", chosen=session_id).encode())])
        if theirs.bans_digest != mine.bans_digest:
            await link.send([framed(Bans((), last=True).encode())])
            while not (isinstance(heard := await hear(), Bans) and heard.last):
                pass
        if leads:
            await link.send([framed(Go().encode())])
        elif not isinstance(await hear(), Go):
            raise RemoteProtocolError("no go")
        session = Session(side="leader" if leads else "follower", session_id=session_id, config=MuxConfig())
        return Talk(link, session, parser.rest(), leads=leads)
