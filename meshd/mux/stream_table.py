"""The streams of a session: open and finished ones, and pending Opens and Resets.

Ids of one side are taken in order and never come back, so the next one tells which there have been.
"""

from collections.abc import Mapping

from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.stream import ReceiveHalf, SendHalf, SessionCredit, StreamState, StreamWindow
from meshd.wire.frame import Open, encode
from meshd.wire.limits import MAX_STREAMS

MOST_LATE = 4 * MAX_STREAMS  # answers owed about forgotten streams; an honest peer asks about fewer
_LAST_ID = (1 << 32) - 3  # of a peer's streams: ids are u32, and each side takes every second one


class StreamTable:
    """A session's streams by id, and the credit that the peer has for all of them together."""

    def __init__(self, side: Side, config: MuxConfig, budget: NodeBudget | None) -> None:
        self._config = config
        self._budget = budget
        self._opens: dict[int, bytes] = {}  # encoded, until the peer is known to have them
        self.by_id: dict[int, StreamState] = {}
        self.next_own = 0 if side == "leader" else 1
        self.next_peer = 1 if side == "leader" else 0  # all lower ids of the peer's have been seen
        self.credit = SessionCredit(config.session_window)  # what the peer may send
        self.opens_due: dict[int, bytes] = {}  # in order of id
        self.resets_due: dict[int, None] = {}
        self.reset_acks_due: dict[int, None] = {}

    def is_own(self, stream_id: int) -> bool:
        """Return True if this is the id of a stream that we open."""
        return stream_id % 2 == self.next_own % 2

    def find(self, stream_id: int) -> StreamState | None:
        """Return the stream that the peer names, or None if it is forgotten. Raises RemoteProtocolError if it
        never was.
        """
        stream = self.by_id.get(stream_id)
        if stream is None:
            end = self.next_own if self.is_own(stream_id) else self.next_peer
            if stream_id >= end:
                raise RemoteProtocolError(
                    f"frame for stream {stream_id}, which was never opened", code="stream"
                )
        return stream

    def control_due(self) -> bool:
        """Return True if there are control frames about streams, beside acknowledgements."""
        return bool(self.opens_due or self.resets_due or self.reset_acks_due)

    def open(self, service: str, metadata: Mapping[str, str | int | bytes], priority: Priority) -> int:
        """Open a stream; return its id. Raises LocalProtocolError when the metadata is too large."""
        stream_id, window = self.next_own, self._config.stream_window
        frame = Open(stream_id, service, metadata, int(priority), window)
        self._opens[stream_id] = self.opens_due[stream_id] = encode(frame)
        self.next_own += 2
        self._add(stream_id, service, priority, ours=True, window=window)
        return stream_id

    def opened(self, frame: Open) -> StreamState | None:
        """Add a stream of the peer; None for a repetition, which Resume has answered.

        Raises RemoteProtocolError if no stream could come after it.
        """
        if frame.stream_id < self.next_peer:
            return None
        self._see(frame.stream_id)
        return self._add(
            frame.stream_id, frame.service, Priority(frame.priority), ours=False, window=frame.window
        )

    def _add(
        self, stream_id: int, service: str, priority: Priority, *, ours: bool, window: int
    ) -> StreamState:
        config = self._config
        receive = StreamWindow(
            config.stream_window, most=config.max_stream_window, session=self.credit, node=self._budget
        )
        stream = self.by_id[stream_id] = StreamState(
            stream_id,
            service=service,
            priority=priority,
            ours=ours,
            send=SendHalf(window),
            receive=ReceiveHalf(receive),
        )
        return stream

    def never_open(self, stream_id: int) -> None:
        """Ignore the Open of a stream that the peer has reset before it came. Raises as `opened`."""
        if not self.is_own(stream_id) and stream_id >= self.next_peer:
            self._see(stream_id)

    def _see(self, stream_id: int) -> None:
        if stream_id > _LAST_ID:  # the next one has to fit into Resume
            raise RemoteProtocolError(f"stream {stream_id} leaves no id for another one", code="stream")
        self.next_peer = stream_id + 2

    def answer(self, stream: StreamState) -> None:
        """Record that the peer knows the stream: its Open need not be repeated."""
        if not stream.answered:
            stream.answered = True
            self._opens.pop(stream.stream_id, None)
            self.opens_due.pop(stream.stream_id, None)

    def answer_reset(self, stream_id: int) -> None:
        """Queue the confirmation of the peer's reset. Raises RemoteProtocolError if too many wait."""
        self.reset_acks_due[stream_id] = None
        if len(self.reset_acks_due) > MOST_LATE:
            raise RemoteProtocolError("too many resets", code="stream")

    def start_reset(self, stream: StreamState, code: int, reason: str) -> None:
        """Queue a Reset for the peer until it confirms."""
        stream.resetting = True
        stream.code = code
        stream.reason = reason
        self.resets_due[stream.stream_id] = None

    def take_opens(self, budget: int) -> list[bytes]:
        """Return the encoded Opens to send now, within `budget` bytes."""
        taken = []
        while self.opens_due and budget > 0:
            stream_id = next(iter(self.opens_due))
            opened = self.opens_due.pop(stream_id)
            self.by_id[stream_id].announced = True
            budget -= len(opened)
            taken.append(opened)
        return taken

    def take_resets(self) -> list[StreamState]:
        """Return the streams to be reset now."""
        taken = [self.by_id[stream_id] for stream_id in self.resets_due]
        self.resets_due.clear()
        return taken

    def take_reset_acks(self) -> list[int]:
        """Return the streams whose reset is to be confirmed now."""
        taken = list(self.reset_acks_due)
        self.reset_acks_due.clear()
        return taken

    def forget(self, stream: StreamState) -> None:
        """Forget a stream about which nothing is owed any more; its id is never used again."""
        del self.by_id[stream.stream_id]
        self._opens.pop(stream.stream_id, None)
        self.opens_due.pop(stream.stream_id, None)
        self.resets_due.pop(stream.stream_id, None)
        stream.receive.window.release()

    def say_again(self) -> None:
        """Queue again what the peer may not have heard, for another link."""
        self.opens_due = dict(sorted(self._opens.items()))
        self.resets_due = {stream.stream_id: None for stream in self.by_id.values() if stream.resetting}

    def end(self) -> None:
        """Drop everything: the session is over."""
        for stream in self.by_id.values():
            stream.receive.window.release()
            stream.send.clear()
        self.by_id.clear()
