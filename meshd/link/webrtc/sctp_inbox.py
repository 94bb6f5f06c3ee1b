"""The receiving half of an SCTP association: chunks in, bytes in order and acknowledgements out. Pure.

Numbers count from 0 without wrapping. What has come beyond a hole is kept as ranges, so that a chunk and an
acknowledgement cost the number of holes, not that of chunks (aiortc sorts all of them, each time).
"""

from bisect import bisect_right

from meshd.link.webrtc.sctp_packet import TSNS, ahead, sack_chunk

FIRST_WINDOW_BYTES = 64 << 10  # until the other side has proven who it is
MAX_INBOX_BYTES = 4 << 20  # what may wait here: 100 Mbit/s for 100 ms, three times
MAX_HOLES = 4096
_CHUNK_COST = 64  # of a waiting chunk beside its bytes, so that tiny ones are bounded too
_SLACK_BYTES = 4096  # over the window: a sender may ask a closed one
_REACH = 0xFFFF  # a SACK can name chunks up to so far beyond its cumulative number


class Inbox:
    """Received chunks. `first_tsn` is the peer's initial TSN; `window_bytes` bounds what is kept."""

    def __init__(self, first_tsn: int, *, window_bytes: int = MAX_INBOX_BYTES) -> None:
        self._first = first_tsn
        self._window = window_bytes
        self._next = 0  # the first number that is missing
        self._starts: list[int] = []  # of the ranges beyond it
        self._ends: list[int] = []  # their last numbers
        self._held: dict[int, tuple[int, bytes]] = {}
        self._held_bytes = 0
        self._told_window = window_bytes
        self.due = 0  # chunks since the last acknowledgement
        self.urgent = False  # acknowledge at once: a hole, a repetition (RFC 9260 6.2)

    def take(self, tsn: int, protocol: int, payload: bytes, *, unread: int) -> list[tuple[int, bytes]]:
        """Take one chunk; return what can be delivered now, in order.

        `unread`: bytes that were delivered and not read. What does not fit the window is dropped, and comes
        again when there is room.
        """
        self.due += 1
        number = self._next + ahead(tsn, (self._first + self._next) % TSNS)
        if number < self._next or number in self._held or number - self._next >= _REACH:
            self.urgent = True
            return []
        # what comes next in order is taken whatever waits behind it, or nothing would ever move again
        waiting = unread if number == self._next else unread + self._held_bytes
        if waiting + len(payload) > self._window + _SLACK_BYTES:
            self.urgent = True
            return []
        if number != self._next:
            self._keep(number, protocol, payload)
            return []
        self._next += 1
        ready = [(protocol, payload)]
        if self._starts and self._starts[0] == self._next:
            self.urgent = True  # a hole has closed: the sender should know
            for at in range(self._starts.pop(0), self._ends.pop(0) + 1):
                kept = self._held.pop(at)
                self._held_bytes -= len(kept[1]) + _CHUNK_COST
                ready.append(kept)
                self._next = at + 1
        return ready

    def _keep(self, number: int, protocol: int, payload: bytes) -> None:
        self.urgent = True
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, number)
        before = at > 0 and ends[at - 1] == number - 1
        after = at < len(starts) and starts[at] == number + 1
        if before and after:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif before:
            ends[at - 1] = number
        elif after:
            starts[at] = number
        elif len(starts) >= MAX_HOLES:
            return
        else:
            starts.insert(at, number)
            ends.insert(at, number)
        self._held[number] = (protocol, payload)
        self._held_bytes += len(payload) + _CHUNK_COST

    def widen(self, window_bytes: int) -> None:
        """Widen the window."""
        self._window = max(self._window, window_bytes)

    def wants_update(self, *, unread: int) -> bool:
        """Return True if the window has opened so much since it was reported that the sender should know."""
        opened = self._room(unread) - self._told_window
        return opened >= self._window // 4 and self._told_window < self._window // 2

    def sack(self, *, unread: int) -> bytes:
        """Return the acknowledgement of all that has come, as a chunk."""
        self.due, self.urgent = 0, False
        self._told_window = self._room(unread)
        last = self._next - 1
        gaps = [(s - last, e - last) for s, e in zip(self._starts, self._ends, strict=True)]
        return sack_chunk((self._first + last) % TSNS, self._told_window, gaps)

    def _room(self, unread: int) -> int:
        return max(0, self._window - unread - self._held_bytes)
