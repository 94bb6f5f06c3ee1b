"""What one worker's mesh-server may say to the next one's: pushes, both ways, and nothing else.

What is taken of them, and where it goes, is what the head says to the server that takes; that one compares
tokens and sizes.
"""

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import NEIGHBOUR, Messages, Seen, unseen
from meshd.rpc.judging_budget import MESSAGE_TENSORS, JudgingBudget
from meshd.rpc.mesh_firewall import look_header


class MeshPushFilter:
    """Implements tunnel.interface.Inspector for either side. Raises RemoteProtocolError, and then always.

    Holds less than a header for each direction; what a message carries flows through.
    """

    def __init__(self, *, arrived: Seen = unseen, left: Seen = unseen) -> None:
        """`arrived` is told of each message of the neighbour, `left` of each for it."""
        self._arrived = arrived
        self._left = left
        self._from_peer = Messages(wire.HEADER.size, NEIGHBOUR)
        self._to_peer = Messages(wire.HEADER.size, NEIGHBOUR)
        self._budget = JudgingBudget()

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return self._from_peer.held_bytes + self._to_peer.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """See Inspector."""
        return self._from_peer.feed(data, self._look_arriving)

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """See Inspector."""
        return self._to_peer.feed(data, self._look_leaving)

    def pause(self, now: float) -> float:
        """See Inspector: of empty messages a neighbour may send so many."""
        return self._budget.pause(now)

    def _look_arriving(self, data: bytes | memoryview, at: int, _have: int) -> int:
        self._budget.spend(MESSAGE_TENSORS)
        return _look(data, at, self._arrived)

    def _look_leaving(self, data: bytes | memoryview, at: int, _have: int) -> int:
        return _look(data, at, self._left)


def _look(data: bytes | memoryview, at: int, seen: Seen) -> int:
    message, size, _identity = look_header(data, at, "neighbour")
    seen(message.number)
    return wire.HEADER.size + size
