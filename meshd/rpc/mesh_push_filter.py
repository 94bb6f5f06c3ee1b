"""Filters messages between the mesh-servers of two workers: pushes, both ways, and nothing else.

The head tells the receiving server which pushes to take, and where to put them; that server compares tokens
and sizes.
"""

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import NEIGHBOUR, Kinds, Messages, Seen, unseen
from meshd.rpc.reading_budget import MESSAGE_SECONDS, NodeReading, ReadingBudget

_PUSHES = Kinds["MeshPushFilter"](NEIGHBOUR, {}, noted=(wire.PUSHED,))


class MeshPushFilter:
    """Implements tunnel.interface.Inspector for either side. Raises RemoteProtocolError, and then always.

    Holds less than a header for each direction; what a message carries flows through.
    """

    def __init__(
        self, *, arrived: Seen = unseen, left: Seen = unseen, reading: NodeReading | None = None
    ) -> None:
        """Start a connection. `arrived` gets each message of the neighbour, `left` each one for it; see
        MeshLeaseView.
        """
        self._from_peer = Messages(_PUSHES, arrived)
        self._to_peer = Messages(_PUSHES, left)
        self._budget = ReadingBudget(reading)

    @property
    def held_bytes(self) -> int:
        """The bytes received and not passed on."""
        return self._from_peer.held_bytes + self._to_peer.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on the neighbour's pushes."""
        passed = self._from_peer.feed(data, self)
        self._budget.spend(MESSAGE_SECONDS * self._from_peer.began)
        return passed

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on our pushes."""
        return self._to_peer.feed(data, self)

    def pause(self, now: float) -> float:
        """Return the seconds to wait: the budget also bounds a flood of empty messages."""
        return self._budget.pause(now)
