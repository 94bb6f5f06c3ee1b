"""Credit in bytes: how much a receiver lets the peer send, for one stream and for the whole session.

Credit is absolute (the peer may send up to this offset), so a credit that arrives twice or late does no
harm. It is given back when the application has handed bytes on, never when they merely arrived: this is
what bounds memory. A stream's window doubles when its reader empties it within two round trips, which is
when the window and not the reader or the network was the limit (the rule of QUIC implementations).
"""

from collections.abc import Callable

from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import NodeBudget

_COARSE = 0.004  # seconds; below it a "round trip" says more about event loops than about the path


class SessionCredit:
    """Receiving side of the session's credit, and the sum of all windows in force."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.granted = window  # told to the peer
        self.received = 0  # sum over streams of the highest offset
        self.consumed = 0
        self.windows = 0  # sum of the windows of live streams

    def receive(self, count: int) -> None:
        """Count `count` new bytes. Raises RemoteProtocolError when the peer had no credit for them."""
        self.received += count
        if self.received > self.granted:
            raise RemoteProtocolError(
                f"{self.received - self.granted} bytes beyond the session's credit", code="credit"
            )

    def due(self) -> bool:
        """Return True if enough has been consumed to be worth a MaxData."""
        return self.consumed + self.window - self.granted >= self.window // 4 + 1

    def grant(self) -> int:
        """Return the credit to send now."""
        self.granted = max(self.granted, self.consumed + self.window)
        return self.granted


class StreamWindow:
    """Receiving side of one stream's credit."""

    def __init__(self, first: int, *, most: int, session: SessionCredit, node: NodeBudget | None) -> None:
        self.size = first
        self.granted = first  # told to the peer
        self.consumed = 0
        self._most = most
        self._session = session
        self._node = node
        self._grown = 0  # taken from the node's budget
        self._since = 0.0  # when the present measure of draining began
        self._mark = 0  # `consumed` at that time
        session.windows += first

    def consume(self, count: int, *, now: float, rtt: Callable[[], float | None]) -> bool:
        """Record that the application handed on `count` bytes; `rtt` returns the round trip under load, if
        known.

        It is called once a window, not with every message. True when enough has been consumed to be worth an
        Ack for the credit alone.
        """
        if not self._since or self.consumed == self._mark:
            self._since = now
        self.consumed += count
        self._session.consumed += count
        if self.consumed - self._mark >= self.size:
            quick = now - self._since < 2 * max(rtt() or 0.0, _COARSE)
            self._mark = self.consumed
            self._since = now
            if quick:
                self._grow()
        return self.consumed + self.size - self.granted >= self.size // 4 + 1

    def grant(self) -> int:
        """Return the credit to send now."""
        self.granted = max(self.granted, self.consumed + self.size)
        return self.granted

    def drain(self, highest: int) -> None:
        """Free what the stream held of the session's credit: nothing up to `highest` will be read."""
        self._session.consumed += highest - self.consumed
        self.consumed = highest
        self.release()

    def release(self) -> None:
        """Free what the window had grown by, for others: the stream is gone. Call it once only."""
        self._session.windows -= self.size
        self.size = 0
        if self._node is not None:
            self._node.give(self._grown)
        self._grown = 0

    def _grow(self) -> None:
        more = min(self.size, self._most - self.size, self._session.window - self._session.windows)
        if more <= 0 or (self._node is not None and not self._node.take(more)):
            return
        self._grown += more
        self.size += more
        self._session.windows += more
