"""What one worker's rpc-server may say to the next one's: pure filters for both directions of a connection.

The first message says whose session this is for, all others carry tensors. Nothing here names memory: where a
tensor goes is what the head says to the server that receives it.
"""

from meshd.rpc import protocol as rpc
from meshd.rpc.frames import NEIGHBOUR, WORKER, Messages
from meshd.rpc.pending_work import Arrived, Outward
from meshd.rpc.tensors import refused


class PushFilter:
    """Implements tunnel.interface.Inspector for the receiving side: the peer is the sending server.

    Raises RemoteProtocolError for what may not pass, and then for everything. Holds 25 bytes at most; what a
    message carries flows through.
    """

    def __init__(self, arrived: Arrived | None = None) -> None:
        """`arrived` is told which tensors have come, once the server has said that it serves them."""
        self._arrived = arrived
        self._coming: int | None = None  # token of the tensor whose last byte has not come yet
        self._requests = Messages(rpc.REQUEST.size, NEIGHBOUR)
        self._answers = Messages(rpc.ANSWER.size, WORKER)
        self._greeted = False
        self._answered = False
        self._served = False

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Messages. See Inspector."""
        if self._arrived is not None:
            self._arrived.bytes += len(data)
        passed = self._requests.feed(data, self._look_message)
        if self._requests.between:
            self._note()
        return passed

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """The one answer. See Inspector."""
        return self._answers.feed(data, self._look_answer)

    def _note(self) -> None:
        """What was coming is whole: a neighbour that stops before accuses nobody, the server has to wait."""
        if self._arrived is not None and self._coming is not None and self._served:
            self._arrived.add(self._coming)
        self._coming = None

    def _look_message(self, data: bytes | memoryview, at: int, have: int) -> int:
        self._note()
        number, size = rpc.REQUEST.unpack_from(data, at)
        if number == rpc.PEER_HELLO:
            return self._hello(int(size), have)
        if number != rpc.PEER_DATA:
            raise refused(f"command {number} between servers")
        if not self._greeted:
            raise refused("PEER_DATA before PEER_HELLO")
        if not rpc.PEER_DATA_HEAD_BYTES <= size <= rpc.MAX_PEER_DATA_BYTES:
            raise refused(f"PEER_DATA of {size} bytes")
        if self._arrived is not None:
            if have < rpc.REQUEST.size + rpc.PEER_DATA_HEAD_BYTES:
                return -(rpc.REQUEST.size + rpc.PEER_DATA_HEAD_BYTES)
            (self._coming,) = rpc.U64.unpack_from(data, at + rpc.REQUEST.size)
        return rpc.REQUEST.size + int(size)

    def _hello(self, size: int, have: int) -> int:
        if self._greeted:
            raise refused("PEER_HELLO: sent twice")
        if size != rpc.SESSION_BYTES:
            raise refused(f"PEER_HELLO of {size} bytes")
        if have < rpc.REQUEST.size + size:
            return -(rpc.REQUEST.size + size)
        self._greeted = True
        return rpc.REQUEST.size + size

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        if self._answered or not self._greeted:
            raise refused("an answer to nothing")
        if size != 1:
            raise refused(f"PEER_HELLO: an answer of {size} bytes")
        if have < rpc.ANSWER.size + 1:
            return -(rpc.ANSWER.size + 1)
        self._answered, self._served = True, data[at + rpc.ANSWER.size] == 1
        return rpc.ANSWER.size + 1


class Vouched:
    """Implements tunnel.interface.Watched for the sending side: its server was told that it is served.

    That is said before anybody asks; so the other server's own answer, a round trip later, goes no further.
    Raises RemoteProtocolError when it is not the one that was told, and then for everything.
    """

    def __init__(self, outward: Outward) -> None:
        """`outward` sees what goes on."""
        self._outward = outward
        self._heard = b""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Messages. See Inspector."""
        return self._outward.to_peer(data)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """What comes after the answer. See Inspector."""
        missing = len(rpc.PEER_SERVED) - len(self._heard)
        self._heard += bytes(data[:missing])
        if not rpc.PEER_SERVED.startswith(self._heard):
            raise refused("the next worker's rpc-server does not serve this session")
        return self._outward.from_peer(data[missing:]) if len(data) > missing else b""

    def target_waits(self, waits: bool) -> None:
        """See Flow."""
        self._outward.target_waits(waits)

    def peer_waits(self, waits: bool) -> None:
        """See Flow."""
        self._outward.peer_waits(waits)
