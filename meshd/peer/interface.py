"""Peers: one durable session for each pair of nodes, over any links between them.

A *session* outlives its links for the grace time; its *streams* (one for each tunnelled TCP connection, and
for leases and news) are never reset by a lost link. This package knows links only by their interface, and
never what the streams carry. Tests: tests/unit/peer, tests/sim.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from meshd.base.admission import Release
from meshd.base.change_journal import Journal
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.link.interface import LOOPBACK, LinkInfo
from meshd.wire.address import Candidate
from meshd.wire.dialable import Source
from meshd.wire.versions import NativeVersion

MetadataValue = str | int | bytes


class PeerState(StrEnum):
    """`connected`: a link carries data; `suspended`: the session has no link; `lost`: grace is over."""

    KNOWN = "known"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class PathStatus:
    """One link of a peer as path selection sees it; times in seconds, sizes in bytes.

    `rtt_min` is the shortest round trip of the last seconds, `rtt_floor` that of the last minutes. `rate`, in
    bytes per second, is what the link carried when it was the bottleneck, None if it never was.
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
        """The round trip for predictions, in seconds: the shortest, as a busy machine answers late."""
        return next((rtt for rtt in (self.rtt_floor, self.rtt_min, self.rtt) if rtt is not None), None)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The present knowledge about a peer. `since` is the loop time of the last change of state."""

    peer: PeerId
    name: str = ""
    role: str = ""
    state: PeerState = PeerState.KNOWN
    paths: tuple[PathStatus, ...] = ()
    native: NativeVersion | None = None
    software: str = ""  # its version of meshd; empty: unknown
    resumes: int = 0
    since: float = 0.0
    last_error: str = ""
    clock_offset: float | None = None  # their wall clock minus ours, seconds
    says_banned: str = ""  # its message if it considers this node banned
    says_in_use: str = ""  # its message if it refuses this node because the same one runs elsewhere
    present: bool = False  # without a session, but known to run: connected when needed
    why_not_direct: str = ""  # one sentence, while data is relayed
    faults: int = 0  # how often in the last hour it broke the rules or made work fail here
    last_fault: str = ""
    grace: int = 0  # seconds that its session survives without a link
    stopped: str = ""  # its message when it said goodbye; empty once it is back
    gone: str = ""  # why its process is known to have ended without a goodbye; empty once it is back
    paused: bool = False  # it lends nothing for now: its user has paused it, or it fetches its model
    fetching: bool = False  # it is paused because its models are not here yet
    upgrade: str = ""  # what to run, if there is no common version of the protocol

    @property
    def is_here(self) -> bool:
        """True if the path that carries data shows that the peer is on this machine."""
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
        """Wait until the other side accepts the stream. Raises Refused with its reason, Broken."""
        ...

    async def read(self) -> bytes | memoryview:
        """Return the next chunk. `consumed` gives its credit back. Raises EndOfStream, Broken, Busy."""
        ...

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        """Offer each chunk to `take` as it arrives, before `read` gets it; True means taken, in order.

        This saves a turn of the event loop if the taker need not wait; the taker calls `consumed` itself.
        """
        ...

    def try_write(self, data: bytes | memoryview) -> int:
        """Write what fits of `data` without waiting; return the bytes, 0 while another task writes."""
        ...

    def consumed(self, count: int) -> None:
        """Let the peer send `count` more bytes, as so many have left this node (the local socket drained)."""
        ...

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`, waiting for the peer's credit. Raises Broken, Busy.

        `data` is kept by reference until the peer has it: it must not change.
        """
        ...

    def write_eof(self) -> None:
        """Half-close the stream, like TCP's shutdown."""
        ...

    def reset(self, code: int, reason: str) -> None:
        """Reset the stream, like TCP's RST.

        Idempotent; without effect after the stream has ended both ways.
        """
        ...


Handler = Callable[[Stream], Awaitable[None]]
Allow = Callable[[Member, Mapping[str, MetadataValue]], str | Release | None]
"""Return why a member may not use a service with this metadata, or None if it may.

A service that limits its users reserves a place here, and returns a function that releases the place. It is
called when the stream's handler has ended, or was never started.
"""


class Mesh(Protocol):
    """The peers of this node."""

    def peers(self) -> Sequence[PeerStatus]: ...
    def member(self, peer: PeerId) -> Member | None: ...
    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        """Open a stream at once, without a round trip. Raises Broken when there is no session to the peer."""
        ...

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        """Serve streams of `service`; each runs `handler` in its own task. `quiet`: do not log refusals."""
        ...

    async def changed(self, seen: int) -> int:
        """Wait until anything about any peer has changed after version `seen`; return the version now."""
        ...


class Book(Protocol):
    """The addresses and records of peers (rendezvous/book.py)."""

    @property
    def journal(self) -> Journal[PeerId]:
        """The peers, by when their records changed."""
        ...

    @property
    def version(self) -> int:
        """A number that grows with every change of the book."""
        ...

    def spare(self, who: Callable[[PeerId], bool]) -> None:
        """Never drop the peers for which `who` returns True to make room for others."""
        ...

    def newest(self, peer: PeerId) -> PeerRecord | None:
        """Return the record of a node that others get: its current one, or its last one if it has left."""
        ...

    def records(self) -> Sequence[PeerRecord]:
        """Return the records to pass on: those of members, then the last records of nodes that have left."""
        ...

    def peers(self) -> Sequence[PeerId]:
        """Return the peers to connect to: members with a record, and peers known only by address."""
        ...

    def record(self, peer: PeerId) -> PeerRecord | None:
        """Return the record of a node that has not left."""
        ...

    def add(self, record: PeerRecord, *, from_itself: bool = False) -> bool:
        """Keep a record; return True if it was new (an unknown peer, or a higher sequence number).

        `from_itself`: the peer has sent it on its own link, so a forgotten peer is known again.
        """
        ...

    def sources(self, peer: PeerId) -> Sequence[tuple[Source, Sequence[Candidate]]]:
        """Return addresses worth a try, best first, with their source."""
        ...

    def worked(self, peer: PeerId, remote: str) -> None:
        """Note that a link was made to this address."""
        ...

    def forget(self, peer: PeerId) -> None:
        """Drop a member that is banned, has left, or was removed from the list here.

        Records that are not newer are not accepted again, unless the peer itself sends one.
        """
        ...
