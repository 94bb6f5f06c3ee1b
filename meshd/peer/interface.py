"""Peers: one durable session for each pair of nodes, over whatever links there are.

A *session* outlives its links for the grace time; its *streams* (one for each tunnelled TCP connection,
and for leases and news) are never reset by a lost link. This package knows links only by their interface
and never what the streams carry. Tests: tests/unit/peer, tests/sim.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshd.base.change_journal import Journal
from meshd.base.work_slots import Release
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.link.interface import LOOPBACK, LinkInfo
from meshd.wire.address import Candidate
from meshd.wire.dialable import Source
from meshd.wire.native import NativeVersion

MetadataValue = str | int | bytes


class PeerState(StrEnum):
    """`connected`: a link carries data; `suspended`: the session lives without; `lost`: the grace is over."""

    KNOWN = "known"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class PathStatus:
    """One link of a peer as path choice sees it; times in seconds, sizes in bytes.

    `rtt_min` is the shortest round trip of the last seconds, `rtt_floor` that of the last minutes; `rate`, in
    bytes a second, what the link carried when it was the bottleneck, None when it never was.
    """

    link: LinkInfo
    selected: bool
    rtt: float | None
    why: str
    sent_bytes: int
    received_bytes: int
    rtt_min: float | None = None
    rate: float | None = None
    rtt_floor: float | None = None

    @property
    def idle_rtt(self) -> float | None:
        """For predictions: a machine that computes answers late, which says nothing of the path."""
        return next((rtt for rtt in (self.rtt_floor, self.rtt_min, self.rtt) if rtt is not None), None)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What is known of a peer now. `since` is loop time of the last change of state."""

    peer: PeerId
    name: str
    role: str
    state: PeerState
    paths: tuple[PathStatus, ...]
    native: NativeVersion | None
    software: str
    resumes: int
    since: float
    last_error: str
    clock_offset: float | None  # their wall clock minus ours, seconds
    says_banned: str = ""  # its words when it holds this node for banned
    present: bool = False  # without a session, but heard of a moment ago: connected when it is needed
    why_not_direct: str = ""  # one sentence, while a relay carries the data
    faults: int = 0  # how often it broke the rules, or made work fail here, in the last hour
    last_fault: str = ""
    grace: int = 0  # for how many seconds its session lives on without a link
    stopped: str = ""  # its words when it said goodbye; empty once it is back
    gone: str = ""  # why its process is known to have ended without a goodbye; empty once it is back
    paused: bool = False  # it lends nothing for now: its user wants that, or it fetches
    fetching: bool = False  # it is so because its models are not here yet

    @property
    def is_here(self) -> bool:
        """It is on this machine, as the path says that carries the data."""
        return any(path.selected and path.link.path == LOOPBACK for path in self.paths)


class Stream(Protocol):
    """A durable byte stream to a peer. One task reads and one task writes at a time, else Busy."""

    @property
    def peer(self) -> PeerId: ...
    @property
    def service(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, MetadataValue]: ...

    async def accepted(self) -> None:
        """Returns when the other side took the stream. Raises Refused with its reason, Broken."""
        ...

    async def read(self) -> bytes | memoryview:
        """The next chunk. Its credit goes back with `consumed`. Raises EndOfStream, Broken, Busy."""
        ...

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        """Offer each chunk to `take` as it arrives, before `read` gets it; True: taken, in order.

        Saves a turn of the event loop where the taker need not wait; it says `consumed` itself.
        """
        ...

    def try_write(self, data: bytes | memoryview) -> int:
        """As much of `data` as can be taken without waiting, in bytes; 0 while another task writes."""
        ...

    def consumed(self, count: int) -> None:
        """`count` bytes have left this node (the local socket drained): the peer may send as many more."""
        ...

    async def write(self, data: bytes | memoryview) -> None:
        """Returns when all of `data` is taken; waits for the peer's credit. Raises Broken, Busy.

        `data` is kept by reference until the peer has it: it must not change.
        """
        ...

    def write_eof(self) -> None:
        """Half-close, as TCP's shutdown."""
        ...

    def reset(self, code: int, reason: str) -> None:
        """As TCP's RST; idempotent, and nothing after the stream has ended both ways."""
        ...


Handler = Callable[[Stream], Awaitable[None]]
Allow = Callable[[Member, Mapping[str, MetadataValue]], str | Release | None]
"""Why a member may not use a service with this metadata, or None if it may.

One that counts what it lets in reserves the place here, and returns what gives it back: that is called when
the stream's handler has ended, or was never begun.
"""


class Mesh(Protocol):
    """All peers of this node."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def member(self, peer: PeerId) -> Member | None: ...
    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        """Open a stream at once, no round trip. Raises Broken when there is no session to the peer."""
        ...

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        """Serve streams of `service`; each runs `handler` in its own task. `quiet`: who is refused is
        no news."""
        ...

    async def changed(self, seen: int) -> int:
        """Wait until anything about any peer changed after version `seen`; returns the version now."""
        ...


class Book(Protocol):
    """Where peers may be found (rendezvous/book.py)."""

    @property
    def journal(self) -> Journal[PeerId]:
        """Whose records changed last."""
        ...

    @property
    def version(self) -> int:
        """Another one whenever anything in it has changed."""
        ...

    def spare(self, who: Callable[[PeerId], bool]) -> None:
        """Those for whom `who` says yes give way to nobody."""
        ...

    def newest(self, peer: PeerId) -> PeerRecord | None:
        """What others are told of a node: its record, or its last word."""
        ...

    def records(self) -> Sequence[PeerRecord]:
        """To be passed on: those of members, then the last words of nodes that have left."""
        ...

    def peers(self) -> Sequence[PeerId]:
        """Whom to connect to: members with a record, and those of whom only an address is known."""
        ...

    def record(self, peer: PeerId) -> PeerRecord | None:
        """Of a node that has not left."""
        ...

    def add(self, record: PeerRecord, *, from_itself: bool = False) -> bool:
        """Keep a record; True if it was new (an unknown peer, or a higher sequence number).

        `from_itself`: its peer has sent it on its own link, and so is there again if it was forgotten.
        """
        ...

    def told(self, peer: PeerId) -> Sequence[tuple[Source, Sequence[Candidate]]]:
        """Addresses worth a try, best first, and who named them."""
        ...

    def worked(self, peer: PeerId, remote: str) -> None:
        """A link was made to this address."""
        ...

    def forget(self, peer: PeerId) -> None:
        """Drop a member that is banned, has left, or is not wanted in the list here.

        Records that are not newer are not taken again, unless the peer itself sends one.
        """
        ...
