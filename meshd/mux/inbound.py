"""What the peer's frames mean: each handler changes the session's state and adds events.

Frames about streams that are forgotten are answered as they were answered when they were known, so that
nothing waits for ever when the first answer went down with a link. Whatever an honest peer cannot send is a
RemoteProtocolError.
"""

from collections.abc import Callable, Mapping

from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import Priority
from meshd.mux.events import (
    Code,
    DataReceived,
    GoodbyeReceived,
    LinkDead,
    PongReceived,
    StreamAccepted,
    StreamEnded,
    StreamOpened,
    StreamReset,
)
from meshd.mux.link import LinkState
from meshd.mux.state import State
from meshd.mux.stream import ReceiveHalf, SendHalf, Stream
from meshd.mux.window import StreamWindow
from meshd.wire.frame_types import (
    Ack,
    Data,
    Frame,
    Goodbye,
    Hello,
    LinkAck,
    LinkLost,
    MaxData,
    Open,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
)
from meshd.wire.limits import MAX_STREAMS

_MOST_LATE = 4 * MAX_STREAMS  # answers owed about forgotten streams; an honest peer asks about fewer


class Inbound:
    """Acts on received frames."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._acts: Mapping[type, Callable[..., None]] = {
            Data: self._on_data,
            Ack: self._on_ack,
            LinkAck: self._on_link_ack,
            MaxData: self._on_max_data,
            Open: self._on_open,
            Reset: self._on_reset,
            ResetAck: self._on_reset_ack,
            Ping: self._on_ping,
            Pong: self._on_pong,
            Switch: self._on_switch,
            LinkLost: self._on_link_lost,
            Resume: self._on_resume,
            Goodbye: self._on_goodbye,
            Hello: self._on_hello,
        }

    def act(self, link: LinkState, frame: Frame) -> None:
        """One frame that came over `link`."""
        self._acts[type(frame)](link, frame)

    def _find(self, stream_id: int) -> Stream | None:
        """The stream, or None if it is forgotten. Raises if it never was."""
        stream = self._state.streams.get(stream_id)
        if stream is None:
            state = self._state
            end = state.next_own if state.is_own(stream_id) else state.next_peer
            if stream_id >= end:
                raise RemoteProtocolError(
                    f"frame for stream {stream_id}, which was never opened", code="stream"
                )
        return stream

    def _answer_late(self, data: Data) -> None:
        """Data for a forgotten stream: all of it was here once, so say so again."""
        late = self._state.late_acks
        end = data.offset + len(data.payload)
        before = late.get(data.stream_id)
        ended = data.fin or (before is not None and before.ended)
        end = max(end, before.received if before is not None else 0)
        late[data.stream_id] = Ack(data.stream_id, end, end, accepted=True, ended=ended)
        if len(late) > _MOST_LATE:
            raise RemoteProtocolError("too many frames for streams that are gone", code="stream")

    def _answer_reset(self, stream_id: int) -> None:
        late = self._state.late_reset_acks
        late[stream_id] = None
        if len(late) > _MOST_LATE:
            raise RemoteProtocolError("too many resets", code="stream")

    # data

    def _on_data(self, link: LinkState, frame: Data) -> None:
        state = self._state
        stream = state.streams.get(frame.stream_id)
        if stream is None:
            self._find(frame.stream_id)
            self._answer_late(frame)
            return
        if stream.resetting:
            return
        if not stream.answered:
            state.answer(stream)
        receive = stream.receive
        highest = receive.highest
        had_ended = receive.ended
        pieces = receive.take(frame.offset, frame.payload, frame.fin)
        if receive.highest > highest:
            state.credit.receive(receive.highest - highest)
        for piece in pieces:
            state.events.append(DataReceived(frame.stream_id, piece))
        if receive.ended and not had_ended:
            state.events.append(StreamEnded(frame.stream_id))
        urgent = receive.received - receive.acked > receive.window.size // 4
        state.want_ack(stream, now=urgent or receive.ended)
        if receive.ended:
            state.forget_if_finished(stream)

    def _on_ack(self, link: LinkState, frame: Ack) -> None:
        stream = self._find(frame.stream_id)
        if stream is not None and not stream.resetting:
            self._take_ack(stream, frame.received, frame.credit, frame.accepted, frame.ended)
            self._state.forget_if_finished(stream)

    def _take_ack(self, stream: Stream, received: int, credit: int, accepted: bool, ended: bool) -> None:
        state = self._state
        send = stream.send
        state.answer(stream)
        if accepted and stream.ours and not stream.accepted:
            stream.accepted = True
            state.events.append(StreamAccepted(stream.stream_id))
        state.send_buffered -= send.acknowledge(received)
        if ended and not send.eof_acked:
            if not send.eof or received != send.written:
                raise RemoteProtocolError("an end was acknowledged that was not sent", code="ack")
            send.eof_sent = send.eof_acked = True
        if credit > send.credit:
            send.credit = credit
            if stream.ready():
                state.schedule.add(stream.stream_id, stream.priority)

    def _on_max_data(self, link: LinkState, frame: MaxData) -> None:
        self._state.peer_credit = max(self._state.peer_credit, frame.credit)

    # streams begin and end

    def _on_open(self, link: LinkState, frame: Open) -> None:
        state = self._state
        if state.is_own(frame.stream_id):
            raise RemoteProtocolError(f"stream {frame.stream_id} is not the peer's to open", code="stream")
        if frame.stream_id < state.next_peer:
            return  # a repetition; Resume has answered it
        state.next_peer = frame.stream_id + 2
        config = state.config
        window = StreamWindow(
            config.stream_window, most=config.max_stream_window, session=state.credit, node=state.budget
        )
        stream = Stream(
            frame.stream_id,
            service=frame.service,
            priority=Priority(frame.priority),
            ours=False,
            send=SendHalf(frame.window),
            receive=ReceiveHalf(window),
        )
        state.streams[frame.stream_id] = stream
        if len(state.streams) > MAX_STREAMS and self._too_many():
            start_reset(state, stream, Code.TOO_MANY, "too many streams whose data nobody has read")
            return
        state.want_ack(stream, now=False)
        state.events.append(StreamOpened(frame.stream_id, frame.service, frame.metadata, stream.priority))

    def _too_many(self) -> bool:
        """Is it one stream too many? Raises when the peer must have known."""
        theirs = [stream for stream in self._state.streams.values() if not stream.ours]
        if sum(not stream.finished() for stream in theirs) > MAX_STREAMS:
            raise RemoteProtocolError(f"more than {MAX_STREAMS} streams", code="stream")
        return len(theirs) > 2 * MAX_STREAMS

    def _on_reset(self, link: LinkState, frame: Reset) -> None:
        state = self._state
        stream = state.streams.get(frame.stream_id)
        if stream is None:
            if not state.is_own(frame.stream_id):
                state.next_peer = max(state.next_peer, frame.stream_id + 2)  # its Open will not be believed
            self._find(frame.stream_id)
            self._answer_reset(frame.stream_id)
            return
        send, receive = stream.send, stream.receive
        if frame.received > send.sent:
            raise RemoteProtocolError("a reset for more than was sent", code="reset")
        state.sent -= send.sent - frame.received
        send.sent = frame.received
        if stream.resetting:  # both sides reset it: ours stays until it is acknowledged
            self._answer_reset(frame.stream_id)
            return
        if not receive.highest <= frame.final <= receive.window.granted:
            raise RemoteProtocolError("a reset with an impossible end", code="reset")
        state.credit.receive(frame.final - receive.highest)
        receive.highest = frame.final
        state.drop_sending(stream)
        state.drop_receiving(stream)
        state.acks_due.pop(frame.stream_id, None)
        state.forget(stream)
        self._answer_reset(frame.stream_id)
        state.events.append(StreamReset(frame.stream_id, frame.code, frame.reason))

    def _on_reset_ack(self, link: LinkState, frame: ResetAck) -> None:
        stream = self._find(frame.stream_id)
        if stream is not None:
            if not stream.resetting:
                raise RemoteProtocolError("a reset was acknowledged that was not sent", code="reset")
            self._state.forget(stream)

    # links

    def _on_link_ack(self, link: LinkState, frame: LinkAck) -> None:
        link.on_link_ack(frame.received, self._state.now)

    def _on_ping(self, link: LinkState, frame: Ping) -> None:
        link.on_ping(frame.number, frame.hold, self._state.now)
        if frame.hold:
            self._state.want_timer(link.hold_until)

    def _on_pong(self, link: LinkState, frame: Pong) -> None:
        rtt = link.on_pong(frame.number, self._state.now)
        if rtt is not None:
            self._state.events.append(PongReceived(link.link_id, frame.number, rtt))

    def _on_switch(self, link: LinkState, frame: Switch) -> None:
        state = self._state
        if state.side == "leader":
            raise RemoteProtocolError("only the leader says which link carries data", code="switch")
        if frame.sequence > state.sequence:
            state.sequence = frame.sequence
            state.carry_on(link.link_id)

    def _on_link_lost(self, link: LinkState, frame: LinkLost) -> None:
        state = self._state
        lost = state.data_link
        if state.side != "leader" or frame.sequence != state.sequence or lost in (None, link.link_id):
            return
        assert lost is not None
        state.events.append(LinkDead(lost, "the peer has lost it"))
        state.unlink(lost, state.now)

    def _on_resume(self, link: LinkState, frame: Resume) -> None:
        state = self._state
        link.awaits_resume = False
        state.peer_credit = max(state.peer_credit, frame.max_data)
        entries = {entry.stream_id: entry for entry in frame.streams}
        for stream_id in entries:
            if state.is_own(stream_id) and stream_id >= state.next_own:
                raise RemoteProtocolError(f"stream {stream_id} was never opened", code="resume")
        for stream in list(state.streams.values()):
            entry = entries.get(stream.stream_id)
            known_until = frame.seen if stream.ours else frame.opened
            if entry is not None:
                self._resume_stream(stream, entry)
            elif stream.stream_id < known_until:
                self._finish_forgotten(stream)

    def _resume_stream(self, stream: Stream, entry: ResumeEntry) -> None:
        if entry.resetting or stream.resetting:
            return  # the Resets themselves follow
        self._take_ack(stream, entry.received, entry.credit, entry.accepted, entry.ended)
        self._state.forget_if_finished(stream)

    def _finish_forgotten(self, stream: Stream) -> None:
        """The peer has forgotten the stream: it has all of ours, and knows that we have all of its own."""
        if stream.resetting:
            self._state.forget(stream)
            return
        send = stream.send
        if not send.eof or not stream.receive.ended:
            raise RemoteProtocolError(
                f"stream {stream.stream_id} was forgotten before its end", code="resume"
            )
        self._take_ack(stream, send.sent, send.credit, accepted=stream.accepted, ended=True)
        self._state.forget_if_finished(stream)

    def _on_goodbye(self, link: LinkState, frame: Goodbye) -> None:
        self._state.end(f"the peer said goodbye: {frame.reason}" if frame.reason else "the peer said goodbye")
        self._state.events.append(GoodbyeReceived(frame.code, frame.reason))

    def _on_hello(self, link: LinkState, frame: Hello) -> None:
        raise RemoteProtocolError("a second hello", code="hello")


def start_reset(state: State, stream: Stream, code: int, reason: str) -> None:
    """Throw a stream away and tell the peer until it confirms."""
    stream.resetting = True
    stream.code = code
    stream.reason = reason
    state.drop_sending(stream)
    state.drop_receiving(stream)
    state.acks_due.pop(stream.stream_id, None)
    state.resets_due[stream.stream_id] = None
