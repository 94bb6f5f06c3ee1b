"""The state of a session, in tables with one writer each, and the rules that concern several of them.

When a stream is forgotten, what a lost or changed link means, what the end of the session does. No frames are
made or read here. What each table is about stands in stream_table.py, send_queue.py, ack_queue.py and
link_table.py; all may read them, and only their own methods write.
"""

from meshd.mux.ack_queue import AckQueue
from meshd.mux.config import MuxConfig, NodeBudget, Side
from meshd.mux.due_timer import DueTimer
from meshd.mux.events import Event, Switched, Writable
from meshd.mux.link_table import LinkTable
from meshd.mux.send_queue import SendQueue
from meshd.mux.stream import StreamState
from meshd.mux.stream_table import StreamTable
from meshd.wire.frame_types import Goodbye


class State:
    """All of it. Times are loop time."""

    def __init__(self, side: Side, session_id: bytes, config: MuxConfig, budget: NodeBudget | None) -> None:
        self.side: Side = side
        self.session_id = session_id
        self.config = config
        self.upload = budget.upload if budget is not None else None
        self.now = 0.0  # as last heard from the driver
        self.over = ""  # why nothing is possible any more
        self.goodbye: Goodbye | None = None
        self.events: list[Event] = []
        self.timer = DueTimer()
        self.streams = StreamTable(side, config, budget)
        self.sending = SendQueue(config)
        self.acks = AckQueue(self.streams, self.timer)
        self.links = LinkTable(side, config)

    def drain_events(self) -> list[Event]:
        """Events so far, handed over."""
        events = self.events
        self.events = []
        return events

    def wake_writers(self) -> None:
        """Say Writable for those writers that now have room worth waking for."""
        self.events.extend(map(Writable, self.sending.woken()))

    def start_reset(self, stream: StreamState, code: int, reason: str) -> None:
        """Throw a stream away and tell the peer until it confirms."""
        self.streams.start_reset(stream, code, reason)
        self.drop(stream)
        self.acks.drop(stream)

    def drop(self, stream: StreamState) -> None:
        """Nothing more of this stream will be sent or read."""
        self.sending.drop(stream)
        stream.receive.window.drain(stream.receive.highest)

    def forget(self, stream: StreamState) -> None:
        """Nothing is owed about this stream any more; its id never comes back."""
        self.streams.forget(stream)
        self.sending.forget(stream)
        self.acks.forget(stream)

    def forget_if_finished(self, stream: StreamState) -> None:
        """Both directions are done and everything has been read."""
        if stream.finished() and not stream.resetting and not stream.receive.unread():
            self.forget(stream)

    def say_goodbye(self, goodbye: Goodbye) -> None:
        """The session ends here on purpose: what it still sends is the goodbye, on every link."""
        self.goodbye = goodbye
        self.links.say_goodbye()
        self.end("we said goodbye")

    def end(self, why: str) -> None:
        """The session is over: nothing is kept, nothing is possible."""
        self.over = why
        self.streams.end()
        self.sending.end()
        self.acks.end()
        self.links.end()

    # links

    def carry_on(self, link_id: int) -> None:
        """From now on this link carries data: all that is not known to have arrived is sent on it."""
        self.links.carry_on(link_id)
        self.sending.rewind(self.streams.by_id.values())
        self.streams.say_again()
        self.acks.told()
        self.events.append(Switched(link_id))

    def lead_to(self, link_id: int) -> None:
        """The leader's choice: carry on there and say so."""
        self.links.lead_to(link_id)
        self.carry_on(link_id)

    def unlink(self, link_id: int, now: float) -> None:
        """A link is gone. The leader moves on to the best of those left."""
        if not self.links.remove(link_id, now):
            return
        if self.links.by_id and self.side == "leader":
            self.lead_to(self.links.best())
        else:
            self.events.append(Switched(None))
            self.links.say_lost()
