"""Attempts that two nodes make together by signals: begun by one side, answered by the other, with yielding.

A *talk* is one attempt: begun by the dialer, answered by the other side, ended by either. Kinds of link bring
the words (each has the id of its `attempt`; the last of all may be `No`) and what is done about them. Both
sides may begin at the same time: then the attempt of the node with the higher id continues and the other one
yields, on both sides alike, whatever order the messages come in (`Attempts`).
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from meshd.base.admission import Rates
from meshd.base.errors import Broken, Closed, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.log import get
from meshd.base.peer_limits import ATTEMPTS, KNOCKS, KNOCKS_OF_PEER
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import DialError, DialFailure, LinkKind, Signals
from meshd.wire.signal import ATTEMPT_BYTES, No

MAX_ANSWERED = KNOCKS.most  # each costs some sockets for some seconds
MAX_ANSWERED_OF_ONE = KNOCKS_OF_PEER.most

T = TypeVar("T")
YIELD_SECONDS = 8.0  # for the other side's attempt, when ours yields to it
_INBOX = 4  # messages of one attempt that wait; there are three in all
_log = get("link")


class PunchVerdict(StrEnum):
    """The reason for refusing an attempt, as sent to the other side."""

    GLARE = "glare"  # our own attempt at that peer continues
    BUSY = "busy"


def _stay() -> None:
    return None


@dataclass(slots=True, eq=False)
class PunchAttempt(Generic[T]):
    """One attempt; `deliver` gets what the peer says about it, `give_way` is called when it yields."""

    peer: PeerId
    ours: bool
    deliver: Callable[[T], None]
    give_way: Callable[[], None] = _stay
    yielded: bool = False


class Attempts(Generic[T]):
    """All attempts of one node by their ids."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._known: dict[bytes, PunchAttempt[T]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, attempt_id: bytes, peer: PeerId, deliver: Callable[[T], None]) -> PunchAttempt[T]:
        """Begin our own attempt."""
        made = self._known[attempt_id] = PunchAttempt(peer, True, deliver)
        return made

    def answer(
        self, attempt_id: bytes, peer: PeerId, deliver: Callable[[T], None]
    ) -> PunchAttempt[T] | PunchVerdict | None:
        """Handle a knock of `peer`: return an attempt, a refusal to send, or None (a copy)."""
        if attempt_id in self._known:
            return None
        ours = [
            attempt
            for attempt in self._known.values()
            if attempt.ours and attempt.peer == peer and not attempt.yielded
        ]
        if ours and self._own > peer:
            return PunchVerdict.GLARE
        theirs = [attempt for attempt in self._known.values() if not attempt.ours]
        of_one = sum(attempt.peer == peer for attempt in theirs)
        if len(theirs) >= MAX_ANSWERED or of_one >= MAX_ANSWERED_OF_ONE:
            return PunchVerdict.BUSY
        for attempt in ours:
            attempt.yielded = True
            attempt.give_way()
        made = self._known[attempt_id] = PunchAttempt(peer, False, deliver)
        return made

    def heard(self, peer: PeerId, attempt_id: bytes, message: T) -> None:
        """Give a message to its attempt, if `peer` may speak there."""
        attempt = self._known.get(attempt_id)
        if attempt is not None and attempt.peer == peer:
            attempt.deliver(message)

    def end(self, attempt_id: bytes) -> None:
        """Forget an attempt that is over."""
        self._known.pop(attempt_id, None)


class Message(Protocol):
    """A message of a kind of link about an attempt."""

    @property
    def attempt(self) -> bytes: ...

    def encode(self) -> bytes: ...


M = TypeVar("M", bound=Message)
W = TypeVar("W", bound=Message)


class Yielded(Exception):
    """Raised when the other side's attempt continues instead of ours."""


class Talk(Generic[M]):
    """One attempt, with what the other side says about it."""

    def __init__(
        self, attempt_id: bytes, peer: PeerId, send: Callable[[PeerId, M], Coroutine[object, object, None]]
    ) -> None:
        self.id = attempt_id
        self.peer = peer
        self._send = send
        self._queue: asyncio.Queue[tuple[M, float]] = asyncio.Queue(_INBOX)

    async def send(self, message: M) -> None:
        """Send a message to the peer. Raises Broken if there is no way to it now."""
        await self._send(self.peer, message)

    def put(self, message: M) -> None:
        """Keep a message with its arrival time; excess ones are dropped."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait((message, asyncio.get_running_loop().time()))

    async def next(self, word: type[W], *, seconds: float) -> tuple[W, float]:
        """Return the next message of that kind, and when it came. Raises Yielded, Broken (ended),
        TimeoutError.
        """
        async with asyncio.timeout(seconds):
            while True:
                message, at = await self._queue.get()
                if isinstance(message, word):
                    return message, at
                if isinstance(message, No) and message.code == PunchVerdict.GLARE:
                    raise Yielded
                if isinstance(message, No):
                    raise Broken(message.text or "the other side ended the attempt")


Answer = Callable[[Talk[M | No], M], Coroutine[object, object, None]]


class Talks(Generic[M]):
    """All talks of one kind of link. `first` is the word that begins one; `No` is a word of each kind."""

    def __init__(
        self,
        own: PeerId,
        signals: Signals,
        *,
        kind: LinkKind,
        first: type[M],
        decode: Callable[[bytes], M | No],
    ) -> None:
        self._signals = signals
        self._kind = kind
        self._first = first
        self._decode = decode
        self._attempts: Attempts[M | No] = Attempts(own)
        self._yielded: dict[PeerId, set[asyncio.Event]] = {}  # dials that wait for that peer's own attempt
        self._begins = Rates(ATTEMPTS)
        self._owner: Owner | None = None  # while `serve` runs

    async def serve(self, answer: Answer[M]) -> None:
        """Receive signals and run `answer` for each talk that a peer begins, until cancelled."""
        try:
            async with Owner() as owner:
                self._owner = owner
                while True:
                    peer, payload = await self._signals.receive()
                    try:
                        with Contained(f"peer {peer.short}", f"{self._kind} signal"):
                            self._hear(peer, payload, answer, owner)
                    except (RemoteProtocolError, Fault) as error:
                        _log.debug("signal_refused", peer=peer.short, why=error.what)
        finally:
            self._owner = None

    def _hear(self, peer: PeerId, payload: bytes, answer: Answer[M], owner: Owner) -> None:
        message = self._decode(payload)
        if not isinstance(message, self._first):
            self._attempts.heard(peer, message.attempt, message)
        elif self._begins.spend(peer, asyncio.get_running_loop().time()):
            self._begun(peer, message, answer, owner)
        else:
            self._say(peer, No(attempt=message.attempt, code=PunchVerdict.BUSY))

    @contextlib.contextmanager
    def ours(self, peer: PeerId) -> Iterator[Talk[M | No]]:
        """Begin a talk of ours; if the block is cancelled the other side is told, if possible."""
        talk = Talk[M | No](secrets.token_bytes(ATTEMPT_BYTES), peer, self._send)
        attempt = self._attempts.begin(talk.id, peer, talk.put)
        attempt.give_way = lambda: talk.put(No(attempt=talk.id, code=PunchVerdict.GLARE))
        try:
            yield talk
        except asyncio.CancelledError:
            self._say(peer, No(attempt=talk.id, code="ended"))
            raise
        finally:
            self._attempts.end(talk.id)

    def over(self, talk: Talk[M | No]) -> None:
        """End a talk that we answered: no message reaches it any more."""
        self._attempts.end(talk.id)
        for event in self._yielded.get(talk.peer, ()):
            event.set()

    def refuse(self, talk: Talk[M | No], why: str) -> None:
        """Tell the other side that its talk came to nothing, so that it waits no longer."""
        self._say(talk.peer, No(attempt=talk.id, code="ended", text=why))

    async def given_way(self, peer: PeerId) -> DialError:
        """Wait for the end of the talk that ours has yielded to; return the error for our dial."""
        over = asyncio.Event()
        waiting = self._yielded.setdefault(peer, set())
        waiting.add(over)
        try:
            async with asyncio.timeout(YIELD_SECONDS):
                await over.wait()
        except TimeoutError:
            pass
        finally:
            waiting.discard(over)
            if not waiting:
                self._yielded.pop(peer, None)
        what = f"`{peer.short}` punched at the same time, so its attempt continues instead"
        return DialError(what, kind=self._kind, failure=DialFailure.REFUSED)

    def _begun(
        self,
        peer: PeerId,
        message: M,
        answer: Answer[M],
        owner: Owner,
    ) -> None:
        talk = Talk[M | No](message.attempt, peer, self._send)
        task: asyncio.Task[None] | None = None

        def heard(word: M | No) -> None:
            if isinstance(word, No) and task is not None:
                task.cancel()  # wherever it is; once it is over no message reaches it any more
            else:
                talk.put(word)

        verdict = self._attempts.answer(talk.id, peer, heard)
        if isinstance(verdict, PunchVerdict):
            self._say(peer, No(attempt=talk.id, code=verdict))
        elif isinstance(verdict, PunchAttempt):
            task = owner.start_for(
                f"peer {peer.short}", answer(talk, message), name=f"{self._kind}-{peer.short}"
            )
            # a task that is cancelled before its first step never comes to its own clean-up
            task.add_done_callback(lambda _: self.over(talk))

    async def _send(self, peer: PeerId, message: M | No) -> None:
        await self._signals.send(peer, message.encode())

    def _say(self, peer: PeerId, message: No) -> None:
        """Send it in the background; if it is lost, the other side times out."""

        async def say() -> None:
            with contextlib.suppress(Broken):
                await self._send(peer, message)

        if self._owner is not None:
            with contextlib.suppress(Closed):  # shutting down
                self._owner.start_for(f"peer {peer.short}", say(), name="talk-no")
