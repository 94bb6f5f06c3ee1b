"""The bytes of a stream of service `pieces`: numbers of pieces one way, pieces the other.

The stream's metadata names the content (model/piece_index.py). A request is a piece's number (u32). The
answers come in the order of the requests: one byte 1 and the piece, whose length follows from the index, or
one byte 0, which says that the file is not what it was; that ends the stream. A piece may be asked for before
the last one has come, so that no round trip is lost, and at most PIECES_ASKED of them.
"""

import struct
from collections import deque

from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import PIECES_ASKED
from meshd.wire.limits import MAX_MODEL_PIECES

PIECES_SERVICE = "pieces"
CONTENT_FIELD = "content"  # of a stream's metadata
HERE, GONE = b"\1", b"\0"
_REQUEST = struct.Struct(">I")


def piece_request(number: int) -> bytes:
    """Return the request for one piece."""
    return _REQUEST.pack(number)


class PieceRequests:
    """The giver's side: the pieces requested, in order; keeps at most PIECES_ASKED of them."""

    def __init__(self, pieces: int) -> None:
        self._pieces = min(pieces, MAX_MODEL_PIECES)
        self._buffer = b""
        self._waiting: deque[int] = deque()

    def feed(self, data: bytes | memoryview) -> None:
        """Take received bytes in. Raises RemoteProtocolError for pieces that do not exist, and for
        too many.
        """
        if len(self._buffer) + len(data) > _REQUEST.size * (PIECES_ASKED.most + 1):
            raise RemoteProtocolError("too many pieces asked for at once", code="pieces")
        data = self._buffer + bytes(data)
        whole = len(data) - len(data) % _REQUEST.size
        self._buffer = data[whole:]
        for (number,) in _REQUEST.iter_unpack(data[:whole]):
            if number >= self._pieces:
                raise RemoteProtocolError(f"there is no piece {number}", code="pieces")
            if len(self._waiting) >= PIECES_ASKED.most:
                raise RemoteProtocolError("too many pieces asked for at once", code="pieces")
            self._waiting.append(number)

    def next(self) -> int | None:
        """Return the piece to send next; None for "need more"."""
        return self._waiting.popleft() if self._waiting else None


class PieceInbox:
    """The puller's side: the requested pieces; holds one of them, and what came in one read."""

    def __init__(self) -> None:
        self._expected: deque[tuple[int, int]] = deque()
        self._begun = False  # the byte before the piece has come
        self._piece = bytearray()
        self.is_gone = False

    @property
    def expected(self) -> int:
        """The number of pieces still to come."""
        return len(self._expected)

    @property
    def first_length(self) -> int:
        """The length of the piece that comes next; 0 where none is expected."""
        return self._expected[0][1] if self._expected else 0

    def expect(self, number: int, length: int) -> None:
        """Record that this piece was requested."""
        self._expected.append((number, length))

    def feed(self, data: bytes | memoryview) -> list[tuple[int, bytes]]:
        """Return the pieces that are whole now. Raises RemoteProtocolError for unrequested bytes."""
        done: list[tuple[int, bytes]] = []
        left = memoryview(data)
        while len(left):
            if self.is_gone or not self._expected:
                raise RemoteProtocolError("bytes that nobody asked for", code="pieces")
            if not self._begun:
                self._begin(bytes(left[:1]))
                left = left[1:]
                continue
            number, length = self._expected[0]
            taken = left[: length - len(self._piece)]
            self._piece += taken
            left = left[len(taken) :]
            if len(self._piece) == length:
                done.append((number, bytes(self._piece)))
                self._expected.popleft()
                self._piece, self._begun = bytearray(), False
        return done

    def _begin(self, word: bytes) -> None:
        if word == GONE:
            self.is_gone = True
        elif word == HERE:
            self._begun = True
        else:
            raise RemoteProtocolError("an answer about a piece is neither 0 nor 1", code="pieces")
