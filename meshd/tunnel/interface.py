"""Tunnels: local connections over mesh streams.

A *forward* is a listener on this node's loopback, or at a unix socket, whose connections become streams to a
peer's service; an *exposed* service takes such streams and connects them to an allowed local target. A
half-close travels as a half-close and a reset as a reset, so that TCP's meaning is kept (a unix socket has no
reset: there it is an end, both ways). An *inspector* may look at what passes; it sees every byte
before it goes on.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from meshd.identity.keys import PeerId

OwnerCheck = Callable[[tuple[str, int], tuple[str, int]], Awaitable[bool]]
"""Whether a connection on loopback, from client to server (host, port), may use a tunnel."""


class Inspector(Protocol):
    """Looks at one connection's bytes, once at each. May raise RemoteProtocolError to end it, then always.

    What it returns goes on in place of what came in; the same object is the cheap answer. Bytes that it holds
    back count as taken, so it holds a bounded number.
    """

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def pause(self, now: float) -> float:
        """How many seconds what the peer sends has to wait, at a time of one clock."""
        ...


class Flow(Protocol):
    """Told when one end of a tunnel takes nothing more now, and when it does again."""

    def target_waits(self, waits: bool) -> None:
        """The local end."""
        ...

    def peer_waits(self, waits: bool) -> None:
        """The peer, or what leads to it; or the tunnel itself has to do something first."""
        ...


class Passage(Protocol):
    """Told when bytes have passed at once, as small messages do; a part that an inspector keeps has not."""

    def sent(self) -> None:
        """To the peer."""
        ...

    def received(self) -> None:
        """From the peer."""
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
