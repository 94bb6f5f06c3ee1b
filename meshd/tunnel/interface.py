"""Tunnels: local connections over mesh streams.

A *forward* is a listener on this node's loopback, or at a unix socket, whose connections become streams to a
peer's service; an *exposed* service takes such streams and connects them to an allowed local target. A
half-close travels as a half-close and a reset as a reset, so that TCP's meaning is kept (a unix socket has no
reset: there it is an end, both ways). An *inspector* may look at what passes (RPC frames); it sees every byte
before it goes on.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshd.identity.keys import PeerId
from meshd.model.weights_index import TensorEntry

OwnerCheck = Callable[[tuple[str, int], tuple[str, int]], Awaitable[bool]]
"""Whether a connection on loopback, from client to server (host, port), may use a tunnel."""


Target = tuple[str, int] | Path
"""A local place to connect to: host and port, or the path of a unix socket."""


class Inspector(Protocol):
    """Looks at one connection's bytes, once at each. May raise RemoteProtocolError to end it, then always.

    What it returns goes on in place of what came in; the same object is the cheap answer. Bytes that it holds
    back count as taken, so it holds a bounded number.
    """

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...


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


class Watched(Inspector, Flow, Protocol):
    """Sees all of one connection."""


Watching = Callable[[], AbstractContextManager[Watched]]
"""Makes one for each connection; its block is left when that has ended."""


class LocalWeights(Protocol):
    """Tensors of this node's model files, by content."""

    def find(self, digest: bytes) -> TensorEntry | None: ...
    async def read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        """`size` bytes of the tensor, fewer where the file is cut. Raises OSError."""
        ...

    def unchanged(self) -> bool:
        """Whether the files are still those of the index."""
        ...


class NamedWeights(Protocol):
    """Tensors of the model file that a head serves, by name."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]: ...
    async def read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        """See LocalWeights."""
        ...

    def unchanged(self) -> bool:
        """See LocalWeights."""
        ...


WeightPlaced = Callable[[str, str, int, str], None]
"""Told of each weight of a stock head: endpoint, name, bytes, and why it was sent; empty: it was not."""


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """What a tunnel needs to keep the weights of a stock llama-server off the mesh.

    `plain_sizes`: the worker lends CPUs only (rpc/answers.py).
    """

    weights: NamedWeights
    placed: WeightPlaced
    plain_sizes: bool = False


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
