"""Handles the peer's frames: each handler changes the session's state and adds events.

Frames about streams that are forgotten are answered as they were answered when they were known, so that
nothing waits for ever when the first answer went down with a link. Whatever an honest peer cannot send is a
RemoteProtocolError.
"""

from collections.abc import Callable, Mapping

from meshd.base.errors import RemoteProtocolError
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
from meshd.mux.stream import StreamState
from meshd.wire.frame import (
    Ack,
    Data,
    Frame,
    Goodbye,
    HelloFrame,
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


class Inbound:
    """Acts on received frames."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links
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
            HelloFrame: self._on_hello,
        }

    def act(self, link: LinkState, frame: Frame) -> None:
        """Handle one frame that came over `link`."""
        self._acts[type(frame)](link, frame)

    # data

    def _on_data(self, link: LinkState, frame: Data) -> None:
        state = self._state
        stream = self._streams.by_id.get(frame.stream_id)
        if stream is None:
            self._streams.find(frame.stream_id)
            self._acks.answer_late(frame)
            return
        if stream.resetting:
            return
        if not stream.answered:
            self._streams.answer(stream)
        receive = stream.receive
        highest = receive.highest
        had_ended = receive.ended
        pieces = receive.take(frame.offset, frame.payload, frame.fin)
        if receive.highest > highest:
            self._streams.credit.receive(receive.highest - highest)
        for piece in pieces:
            state.events.append(DataReceived(frame.stream_id, piece))
        if receive.ended and not had_ended:
            state.events.append(StreamEnded(frame.stream_id))
        urgent = receive.received - receive.acked > receive.window.size // 4
        self._acks.want(stream, state.now, urgent=urgent or receive.ended)
        if receive.ended:
            state.forget_if_finished(stream)

    def _on_ack(self, link: LinkState, frame: Ack) -> None:
        stream = self._streams.find(frame.stream_id)
        if stream is not None and not stream.resetting:
            self._take_ack(stream, frame.received, frame.credit, frame.accepted, frame.ended)
            self._state.forget_if_finished(stream)

    def _take_ack(self, stream: StreamState, received: int, credit: int, accepted: bool, ended: bool) -> None:
        if not stream.answered:
            self._streams.answer(stream)
        if accepted and stream.ours and not stream.accepted:
            stream.accepted = True
            self._state.events.append(StreamAccepted(stream.stream_id))
        self._sending.acknowledge(stream, received, credit, ended)

    def _on_max_data(self, link: LinkState, frame: MaxData) -> None:
        self._sending.grant(frame.credit)

    # streams begin and end

    def _on_open(self, link: LinkState, frame: Open) -> None:
        state = self._state
        streams = self._streams
        if streams.is_own(frame.stream_id):
            raise RemoteProtocolError(f"stream {frame.stream_id} cannot be opened by the peer", code="stream")
        stream = streams.opened(frame)
        if stream is None:
            return
        if len(streams.by_id) > MAX_STREAMS and self._too_many():
            state.start_reset(stream, Code.TOO_MANY, "too many streams whose data nobody has read")
            return
        self._acks.want(stream, state.now, urgent=False)
        state.events.append(StreamOpened(frame.stream_id, frame.service, frame.metadata, stream.priority))

    def _too_many(self) -> bool:
        """Return True if there is one stream too many. Raises RemoteProtocolError when the peer must have
        known.
        """
        theirs = [stream for stream in self._streams.by_id.values() if not stream.ours]
        if sum(not stream.finished() for stream in theirs) > MAX_STREAMS:
            raise RemoteProtocolError(f"more than {MAX_STREAMS} streams", code="stream")
        return len(theirs) > 2 * MAX_STREAMS

    def _on_reset(self, link: LinkState, frame: Reset) -> None:
        state = self._state
        stream = self._streams.by_id.get(frame.stream_id)
        if stream is None:
            self._streams.never_open(frame.stream_id)
            self._streams.find(frame.stream_id)
            self._streams.answer_reset(frame.stream_id)
            return
        send, receive = stream.send, stream.receive
        if frame.received > send.sent:
            raise RemoteProtocolError("a reset covers more than was sent", code="reset")
        self._sending.never_arrived(stream, frame.received)
        if stream.resetting:  # both sides reset it: ours stays until it is acknowledged
            self._streams.answer_reset(frame.stream_id)
            return
        if not receive.highest <= frame.final <= receive.window.granted:
            raise RemoteProtocolError("a reset has an impossible end", code="reset")
        self._streams.credit.receive(frame.final - receive.highest)
        receive.highest = frame.final
        state.drop(stream)
        self._acks.drop(stream)
        state.forget(stream)
        self._streams.answer_reset(frame.stream_id)
        state.events.append(StreamReset(frame.stream_id, frame.code, frame.reason))

    def _on_reset_ack(self, link: LinkState, frame: ResetAck) -> None:
        stream = self._streams.find(frame.stream_id)
        if stream is not None:
            if not stream.resetting:
                raise RemoteProtocolError("a reset was acknowledged that had not been sent", code="reset")
            self._state.forget(stream)

    # links

    def _on_link_ack(self, link: LinkState, frame: LinkAck) -> None:
        link.on_link_ack(frame.received, self._state.now)

    def _on_ping(self, link: LinkState, frame: Ping) -> None:
        link.on_ping(frame.number, frame.hold, self._state.now)
        if frame.hold:
            self._state.timer.want(link.hold_until)

    def _on_pong(self, link: LinkState, frame: Pong) -> None:
        rtt = link.on_pong(frame.number, self._state.now)
        if rtt is not None:
            self._state.events.append(PongReceived(link.link_id, frame.number, rtt))

    def _on_switch(self, link: LinkState, frame: Switch) -> None:
        state = self._state
        if state.side == "leader":
            raise RemoteProtocolError("only the leader says which link carries data", code="switch")
        if self._links.follow(frame.sequence):
            state.carry_on(link.link_id)

    def _on_link_lost(self, link: LinkState, frame: LinkLost) -> None:
        state = self._state
        lost = self._links.data_link
        if state.side != "leader" or frame.sequence != self._links.sequence or lost in (None, link.link_id):
            return
        assert lost is not None
        state.events.append(LinkDead(lost, "the peer has lost it"))
        state.unlink(lost, state.now)

    def _on_resume(self, link: LinkState, frame: Resume) -> None:
        link.awaits_resume = False
        self._sending.grant(frame.max_data)
        streams = self._streams
        entries = {entry.stream_id: entry for entry in frame.streams}
        for stream_id in entries:
            if streams.is_own(stream_id) and stream_id >= streams.next_own:
                raise RemoteProtocolError(f"stream {stream_id} was never opened", code="resume")
        for stream in list(streams.by_id.values()):
            entry = entries.get(stream.stream_id)
            known_until = frame.seen if stream.ours else frame.opened
            if entry is not None:
                self._resume_stream(stream, entry)
            elif stream.stream_id < known_until:
                self._finish_forgotten(stream)

    def _resume_stream(self, stream: StreamState, entry: ResumeEntry) -> None:
        if entry.resetting or stream.resetting:
            return  # the Resets themselves follow
        self._take_ack(stream, entry.received, entry.credit, entry.accepted, entry.ended)
        self._state.forget_if_finished(stream)

    def _finish_forgotten(self, stream: StreamState) -> None:
        """Finish a stream that the peer has forgotten: it has all of ours, and knows that we have all of its
        own.
        """
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

    def _on_hello(self, link: LinkState, frame: HelloFrame) -> None:
        raise RemoteProtocolError("a second hello", code="hello")
