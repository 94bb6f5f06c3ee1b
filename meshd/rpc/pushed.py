"""What one worker's rpc-server may say to the next one's: a pure filter for both directions of a connection.

The first message says whose session this is for, all others carry tensors. Nothing here names memory: where a
tensor goes is what the head says to the server that receives it.
"""

from meshd.rpc import protocol as rpc
from meshd.rpc.frames import Messages
from meshd.rpc.tensors import refused


class PushFilter:
    """Implements tunnel.interface.Inspector for the receiving side: the peer is the sending server.

    Raises RemoteProtocolError for what may not pass, and then for everything. Holds 25 bytes at most; what a
    message carries flows through.
    """

    def __init__(self) -> None:
        self._requests = Messages(rpc.REQUEST.size)
        self._answers = Messages(rpc.ANSWER.size)
        self._greeted = False
        self._answered = False

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Messages. See Inspector."""
        return self._requests.feed(data, self._look_message)

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """The one answer. See Inspector."""
        return self._answers.feed(data, self._look_answer)

    def _look_message(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        if number == rpc.PEER_HELLO:
            return self._hello(int(size), have)
        if number != rpc.PEER_DATA:
            raise refused(f"command {number} between servers")
        if not self._greeted:
            raise refused("PEER_DATA before PEER_HELLO")
        if not rpc.PEER_DATA_HEAD_BYTES <= size <= rpc.MAX_PEER_DATA_BYTES:
            raise refused(f"PEER_DATA of {size} bytes")
        return rpc.REQUEST.size + int(size)

    def _hello(self, size: int, have: int) -> int:
        if self._greeted:
            raise refused("PEER_HELLO: said before")
        if size != rpc.SESSION_BYTES:
            raise refused(f"PEER_HELLO of {size} bytes")
        if have < rpc.REQUEST.size + size:
            return -(rpc.REQUEST.size + size)
        self._greeted = True
        return rpc.REQUEST.size + size

    def _look_answer(self, data: bytes | memoryview, at: int, _have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        if self._answered or not self._greeted:
            raise refused("an answer to nothing")
        if size != 1:
            raise refused(f"PEER_HELLO: an answer of {size} bytes")
        self._answered = True
        return rpc.ANSWER.size + 1
