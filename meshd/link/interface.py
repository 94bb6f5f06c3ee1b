"""Links: one transport connection to one peer, whose identity is already proven.

A link is a reliable, ordered byte pipe. It knows nothing of streams and nothing of other links; what
kind it is matters to path choice only. Every kind passes the same suite, tests/conformance.

Words: *link* is one transport connection; *dialer* makes one to a candidate; *listener* takes them in;
*candidate* (wire/address.py) is an address that may work; *proof* (identity/proof.py) is the exchange
inside the link that shows who both ends are.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshd.base.errors import MeshdError
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.link.transport import KINDS as KINDS
from meshd.link.transport import TRANSPORTS as TRANSPORTS
from meshd.link.transport import LinkKind as LinkKind
from meshd.link.transport import Rank as Rank
from meshd.link.transport import Transport as Transport
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source
from meshd.wire.hello import NotAdmitted, Welcome

LOOPBACK, RELAYED = "loopback", "relayed"  # paths of LinkInfo


class DialFailure(StrEnum):
    """The reason why a dial did not end in a link."""

    TIMEOUT = "timeout"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    WRONG_PEER = "wrong_peer"
    HANDSHAKE = "handshake"
    UNFIT = "unfit"  # of no use between these two networks, or not yet again: nothing was tried


@dataclass(frozen=True, slots=True)
class Tried:
    """The failure of one attempt; `place` is `host:port` where it was an address."""

    place: str
    failure: DialFailure
    what: str


class DialError(MeshdError):
    """The failure of one candidate or several: `tried` has how each ended."""

    def __init__(
        self,
        what: str,
        *,
        kind: LinkKind,
        failure: DialFailure,
        hint: str = "",
        place: str = "",
        tried: Sequence[Tried] = (),
    ) -> None:
        super().__init__(what, hint=hint)
        self.kind = kind
        self.failure = failure
        self.tried = tuple(tried) or (Tried(place, failure, what),)


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The facts about a link. `established_at` is loop time in seconds; addresses are `host:port`.

    `passing`: the link ends soon, and only bridges the time until another one.
    """

    kind: LinkKind
    peer: PeerId
    member: Member
    local: str
    remote: str
    path: str  # loopback | lan | public | mapped | punched | relayed
    dialled: bool
    established_at: float
    passing: bool = False


class Link(Protocol):
    """A byte pipe to a proven peer. One task may send and one may receive at a time."""

    @property
    def info(self) -> LinkInfo: ...

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order; waits while the link holds more than its high-water mark.

        The pieces are not changed afterwards by the caller. Raises Closed, Broken.
        """
        ...

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send without waiting: False, and nothing sent, above the high-water mark or during a `send`.

        Saves a turn of the event loop for each small message. Raises Closed, Broken.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next chunk (never empty), in order. Raises EndOfStream, Broken, Closed."""
        ...

    def divert(self, take: Callable[[bytes | memoryview], bool]) -> None:
        """Offer each chunk to `take` as it comes, before `receive` gets it; True: taken, in order.

        A memoryview shows a buffer that is larger than itself: what is kept of it should be copied.

        Saves a turn of the event loop for each message. A kind of link may leave it out by never asking;
        `take` raises nothing. The end of the link still comes through `receive` alone.
        """
        ...

    async def aclose(self) -> None:
        """Close the link within 1 s, whatever the network does. Idempotent."""
        ...


MayDial = Callable[[PeerId, Sequence[Candidate], Source], Sequence[Dialable]]
"""Which of the addresses that a source named may be dialled for this peer (wire/dialable.py)."""


class Signals(Protocol):
    """Small signed messages to a peer beside any link (offers, answers), for one kind of link."""

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """Hand at most 4096 bytes to whatever route leads to the peer. Raises Broken: none does now."""
        ...

    async def receive(self) -> tuple[PeerId, bytes]:
        """Return the next verified message of any peer; few are kept, the oldest are dropped."""
        ...


class Dialer(Protocol):
    """Makes links by one transport. Gets `Signals` when it is built, if it needs them."""

    @property
    def transport(self) -> Transport: ...

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable]) -> Link:
        """Race the candidates that fit. Raises DialError, or Refused when the peer said why not."""
        ...


Accept = Callable[[Link], Awaitable[None]]
"""Gets every proven link that was taken in, and keeps it as long as it lives."""


class Listener(Protocol):
    """Takes in links of one kind."""

    @property
    def kind(self) -> LinkKind: ...

    def candidates(self) -> Sequence[Candidate]:
        """Return where this listener can be reached, as known now."""
        ...

    async def serve(self, accept: Accept) -> None:
        """Hand every proven link to `accept` until cancelled."""
        ...


class BytePipe(Protocol):
    """A reliable, ordered pipe of bytes, which need not be secret: a WebSocket, or a circuit of a relay."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces; waits while too much is on its way. Raises Closed, Broken."""
        ...

    async def receive(self) -> bytes:
        """Return the next chunk. Raises EndOfStream, Broken, Closed."""
        ...

    async def aclose(self) -> None:
        """Close within 1 s. Idempotent."""
        ...


class BrowserChannel(Protocol):
    """Messages to and from a browser whose key an invite has admitted."""

    @property
    def peer_key(self) -> bytes:
        """The browser's key, 32 bytes; the same however often it comes back."""
        ...

    async def send(self, message: bytes) -> None:
        """Send at most 16 KiB; waits while more than 256 KiB are on their way. Raises Closed, Broken."""
        ...

    async def receive(self) -> bytes:
        """Return the next message, at most 16 KiB. Raises Closed at the channel's end, whatever ended it."""
        ...

    async def close(self) -> None:
        """End the channel within 1 s. Idempotent."""
        ...


ServeBrowser = Callable[[BrowserChannel], Awaitable[None]]
"""Gets every channel, and keeps it as long as it lives; cancelled when the browser's key is banned."""

Admit = Callable[[PeerId, bytes], Welcome | NotAdmitted]
"""Decides whether a key is let in by an invite (its id); whoever was let in is let in again."""

LetIn = Callable[[bytes], None]
"""Called with a browser's key once it has proven itself."""

WelcomeBrowser = Callable[[BytePipe, str, LetIn], Awaitable[bool]]
"""Runs the whole life of one pipe from a place (for the log); False: its browser has proven nothing."""
