"""Tunnels: local connections over mesh streams.

A *forward* is a listener on this node's loopback, or at a unix socket, whose connections become streams to a
peer's service; an *exposed* service takes such streams and connects them to an allowed local target. A
half-close travels as a half-close and a reset as a reset, so that TCP's meaning is kept (a unix socket has no
reset: there it is an end, both ways). An *inspector* may look at the bytes that pass; it sees every byte
before the pump passes it on.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from meshd.identity.keys import PeerId

LISTEN_LOCAL = "local"
"""In status, instead of a local address: a direct connection between two nodes on this machine."""
LISTEN_SEALED = "sealed"
"""In its place: one between native programs on two machines, which seal what crosses it."""
PAST_LINKS = frozenset({LISTEN_LOCAL, LISTEN_SEALED})  # none of these bytes cross the links of nodes

OwnerCheck = Callable[[tuple[str, int], tuple[str, int]], Awaitable[bool]]
"""Say whether a connection on loopback, from client to server (host, port), may use a tunnel."""


class Inspector(Protocol):
    """Inspects one connection's bytes, each once. May raise RemoteProtocolError to end it, then always.

    The pump passes on the bytes that an inspector returns; returning the same object is cheapest. Bytes that
    it holds back count as taken, so it holds a bounded number.
    """

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def pause(self, now: float) -> float:
        """Return how many seconds the peer's next bytes have to wait, at `now` of one clock."""
        ...


class Flow(Protocol):
    """Told when one end of a tunnel blocks, and when it continues."""

    def target_waits(self, waits: bool) -> None:
        """Note whether the local end waits."""
        ...

    def peer_waits(self, waits: bool) -> None:
        """Note whether the peer waits, or the way to it, or the tunnel itself has to do something first."""
        ...


class Passage(Protocol):
    """Told when bytes have passed without a task, as small messages do; a part that an inspector keeps has
    not.
    """

    def sent(self) -> None:
        """Note bytes to the peer."""
        ...

    def received(self) -> None:
        """Note bytes from the peer."""
        ...


@dataclass(frozen=True, slots=True)
class TunnelStatus:
    """Totals in bytes since the forward was opened; `streams` are open now."""

    peer: PeerId
    service: str
    listen: str
    streams: int
    sent_bytes: int
    received_bytes: int
    user: bool = False  # a user opened it; else a role did, for itself
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class ExposedStatus:
    """A service of this node that `peers` may reach; totals in bytes since the start of the daemon."""

    name: str
    host: str
    port: int
    peers: tuple[PeerId, ...]
    streams: int
    sent_bytes: int
    received_bytes: int
