"""The state of a session, in tables with one writer each, and the rules that concern several of them.

The rules say when a stream is forgotten, and what a lost or changed link and the end of the session mean. No
frames are made or read here. stream_table.py, send_queue.py, ack_queue.py and link.py hold the tables;
everybody may read a table, and only its own methods write it.
"""

from meshd.mux.ack_queue import AckQueue, DueTimer
from meshd.mux.config import MuxConfig, NodeBudget, Side
from meshd.mux.events import Event, Switched, Writable
from meshd.mux.link import LinkTable
from meshd.mux.send_queue import SendQueue
from meshd.mux.stream import StreamState
from meshd.mux.stream_table import StreamTable
from meshd.wire.frame import Goodbye


class State:
    """The whole state of a session. Times are loop time."""

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
        """Return the events so far, and clear them."""
        events = self.events
        self.events = []
        return events

    def wake_writers(self) -> None:
        """Emit Writable for those writers that now have room worth waking for."""
        self.events.extend(map(Writable, self.sending.woken()))

    def start_reset(self, stream: StreamState, code: int, reason: str) -> None:
        """Reset a stream, and tell the peer until it confirms."""
        self.streams.start_reset(stream, code, reason)
        self.drop(stream)
        self.acks.drop(stream)

    def drop(self, stream: StreamState) -> None:
        """Drop data of this stream that is neither sent nor read."""
        self.sending.drop(stream)
        stream.receive.window.drain(stream.receive.highest)

    def forget(self, stream: StreamState) -> None:
        """Forget a stream about which nothing is owed any more; its id is never used again."""
        self.streams.forget(stream)
        self.sending.forget(stream)
        self.acks.forget(stream)

    def forget_if_finished(self, stream: StreamState) -> None:
        """Forget the stream if both directions are done and everything has been read."""
        if stream.finished() and not stream.resetting and not stream.receive.unread():
            self.forget(stream)

    def say_goodbye(self, goodbye: Goodbye) -> None:
        """End the session on purpose: all it still sends is the goodbye, on every link."""
        self.goodbye = goodbye
        self.links.say_goodbye()
        self.end("we said goodbye")

    def end(self, why: str) -> None:
        """End the session and drop its state; `over` says why."""
        self.over = why
        self.streams.end()
        self.sending.end()
        self.acks.end()
        self.links.end()

    # links

    def carry_on(self, link_id: int) -> None:
        """Let this link carry data from now on: everything not known to have arrived is sent on it."""
        self.links.carry_on(link_id)
        self.sending.rewind(self.streams.by_id.values())
        self.streams.say_again()
        self.acks.clear()
        self.events.append(Switched(link_id))

    def lead_to(self, link_id: int) -> None:
        """Choose this link as the leader: carry on there and tell the peer."""
        self.links.lead_to(link_id)
        self.carry_on(link_id)

    def unlink(self, link_id: int, now: float) -> None:
        """Remove a lost link. The leader moves on to the best of those left."""
        if not self.links.remove(link_id, now):
            return
        if self.links.by_id and self.side == "leader":
            self.lead_to(self.links.best())
        else:
            self.events.append(Switched(None))
            self.links.say_lost()
