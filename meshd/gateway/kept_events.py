"""What was sent of a stream, kept compressed: it is looked at only if llama-server is lost. Pure.

Events of one stream are alike, so a token of some 250 bytes takes 5 here, and half a microsecond. To read an
event takes some microseconds, however small it is.
"""

import zlib
from collections.abc import Iterator

from meshd.base.peer_limits import ANSWER_EVENTS

_MOST_SENT_BYTES = 64 << 20
_ENDS = (b"\n\n", b"\n\r\n", b"\r\r")  # of an event
_MOST_COMPRESSED_BYTES = 4 << 20
_RAW_DEFLATE = -12  # with its window, 32 KiB of state for each answer that is under way
_MEMORY_LEVEL = 5
_PIECE_BYTES = 64 << 10


class KeptEvents:
    """Of one answer: at most 131,072 events, 4 MiB compressed, and 64 MiB as they were sent."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE, _MEMORY_LEVEL)
        self._kept = bytearray()
        self._sent = 0
        self._events = 0

    def add(self, events: bytes) -> bool:
        """False when they are too many."""
        self._sent += len(events)
        self._events += max(1, sum(map(events.count, _ENDS)))
        self._kept += self._deflate.compress(events)
        is_much = self._sent > _MOST_SENT_BYTES or len(self._kept) > _MOST_COMPRESSED_BYTES
        return not is_much and self._events <= ANSWER_EVENTS.most

    def read(self) -> Iterator[bytes]:
        """All of it, in pieces of at most 64 KiB; nothing may be added any more."""
        inflate = zlib.decompressobj(_RAW_DEFLATE)
        left = bytes(self._kept) + self._deflate.flush()
        while left:
            piece = inflate.decompress(left, _PIECE_BYTES)
            left = inflate.unconsumed_tail
            yield piece
