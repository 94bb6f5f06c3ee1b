"""Keeps a head whose file lacks tensors from sending what is not there: holes, which would read as zeros.

llama-server asks a mesh-server for weights by content (LOAD), and sends those that it misses (WRITE). Here it
is seen before llama-server hears of it that the worker misses a tensor which this node lacks as well, and
whatever is written to a buffer of weights must be a tensor that this node has.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from meshd.base.errors import RemoteProtocolError
from meshd.rpc.frames import refused


@dataclass(frozen=True, slots=True)
class AskedWeight:
    """A tensor that a LOAD requests by its hash, and its place."""

    digest: bytes
    size: int
    buffer: int
    offset: int

    def holds(self, buffer: int, offset: int, size: int) -> bool:
        """Return True if these bytes of a buffer lie within the weight."""
        return buffer == self.buffer and self.offset <= offset and offset + size <= self.offset + self.size


@dataclass(slots=True)
class _Buffer:
    """A buffer that the head has written to, or requested weights into."""

    has_weights: bool = False
    written: bool = False
    missed: list[AskedWeight] = field(default_factory=list)  # of which the head has the bytes


class AbsentWeights:
    """The absent weights of one connection. Holds an entry for each buffer, and for each tensor that was
    missed.

    Methods raise RemoteProtocolError; before that they call `told` with the tensor's hash (empty if unknown).
    """

    def __init__(self, absent: Collection[bytes], told: Callable[[bytes], None]) -> None:
        """Start a connection. `absent`: the hashes of the tensors that are not in the head's file."""
        self._absent = absent
        self._told = told
        self._buffers: dict[int, _Buffer] = {}

    def asked(self, weights: Iterable[AskedWeight]) -> None:
        """Record the LOAD of these weights."""
        for weight in weights:
            buffer = self._buffers.setdefault(weight.buffer, _Buffer())
            buffer.has_weights = True
            if buffer.written:
                raise self._refused(b"")

    def missed(self, weight: AskedWeight) -> None:
        """Record that the worker does not have this weight; the head has to send it."""
        if weight.digest in self._absent:
            raise self._refused(weight.digest)
        self._buffers.setdefault(weight.buffer, _Buffer()).missed.append(weight)

    def written(self, buffer: int, offset: int, size: int) -> None:
        """Check a WRITE of `size` bytes: it must lie within a missed weight, if the buffer has weights."""
        there = self._buffers.setdefault(buffer, _Buffer())
        if not there.has_weights:
            there.written = True
        elif not any(weight.holds(buffer, offset, size) for weight in there.missed):
            raise self._refused(b"")

    def freed(self, buffer: int) -> None:
        """Forget a buffer: its number may be reused."""
        self._buffers.pop(buffer, None)

    def uncounted(self) -> None:
        """Refuse: there are too many LOADs to look at each answer."""
        raise self._refused(b"")

    def _refused(self, digest: bytes) -> RemoteProtocolError:
        self._told(digest)
        return refused("weights are missing that this node does not have")
