"""A durable session with one peer: numbered streams that outlive the links under them. No I/O.

The driver owns sockets and clock. Its loop is: whatever happened (bytes came, the application wrote, a
timer fired), tell the session; act on the events; then call `transmit` for each link until it returns
nothing, and set one timer to `next_timeout()`.

Times are loop time in seconds, sizes are bytes. A RemoteProtocolError from `receive` is the end of the
session: the peer broke the rules, and what it said before may not be believed either.
"""

from collections.abc import Mapping

from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import Event
from meshd.mux.status import SessionStatus


class Session:
    """All streams with one peer, over any number of links of which one carries the data."""

    def __init__(
        self,
        *,
        side: Side,
        session_id: bytes,
        config: MuxConfig | None = None,
        budget: NodeBudget | None = None,
    ) -> None:
        raise NotImplementedError

    # from the application

    def open(self, service: str, metadata: Mapping[str, str | int | bytes], priority: Priority) -> int:
        """Open a stream and return its id; up to the first window may be written at once.

        Raises Busy when `max_streams` are open, LocalProtocolError when the metadata is too large.
        """
        raise NotImplementedError

    def accept(self, stream_id: int) -> None:
        """Tell the opener that this side's application took the stream (refuse with `reset`)."""
        raise NotImplementedError

    def write(self, stream_id: int, data: bytes | bytearray | memoryview) -> int:
        """Take bytes to send and return how many; fewer than given: wait for Writable, give the rest again.

        Bytes and read-only views are kept by reference. Raises LocalProtocolError after `write_eof`,
        Closed when the stream is gone.
        """
        raise NotImplementedError

    def write_eof(self, stream_id: int) -> None:
        """No more bytes follow; the other direction stays open. Idempotent."""
        raise NotImplementedError

    def reset(self, stream_id: int, code: int, reason: str) -> None:
        """Throw the stream away in both directions, as TCP's RST. Nothing, if it is gone already."""
        raise NotImplementedError

    def consumed(self, stream_id: int, count: int) -> None:
        """The application handed on `count` bytes of DataReceived: the peer may send as many more."""
        raise NotImplementedError

    def ping(self, link_id: int, now: float) -> int:
        """Send a ping at the next `transmit`; its PongReceived carries the id returned. Raises Closed."""
        raise NotImplementedError

    def goodbye(self, code: int, reason: str) -> None:
        """End the session on purpose: sent on every link by the next `transmit`; streams are void at once."""
        raise NotImplementedError

    # from the links

    def link_up(self, link_id: int, now: float) -> list[Event]:
        """A link on which both Hellos have passed is attached. The first one carries data at once."""
        raise NotImplementedError

    def link_down(self, link_id: int, now: float) -> list[Event]:
        """A link is gone (idempotent). Data moves to another attached one, if there is one."""
        raise NotImplementedError

    def switch_to(self, link_id: int, now: float) -> list[Event]:
        """Leader only: this link carries the data from now on. Nothing, if it does already."""
        raise NotImplementedError

    def receive(self, link_id: int, data: bytes, now: float) -> list[Event]:
        """Bytes that came over a link, in order. Raises RemoteProtocolError: the session is over then."""
        raise NotImplementedError

    def transmit(self, link_id: int, now: float, budget: int) -> list[bytes | memoryview]:
        """Buffers to send on this link, in order, about `budget` bytes; empty when there is nothing to send."""
        raise NotImplementedError

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called (and `transmit` after it); may change with any call."""
        raise NotImplementedError

    def handle_timeout(self, now: float) -> list[Event]:
        """Look at the clock: dead links, pings that are due, late acknowledgements, the grace."""
        raise NotImplementedError

    def status(self) -> SessionStatus:
        """The whole session as plain values."""
        raise NotImplementedError
