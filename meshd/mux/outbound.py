"""What goes out next on a link: control first, then the streams in their turn, as far as the link bears it.

Nothing is copied: a frame of data is a header and the very pieces that were written.
"""

from meshd.mux.link import LinkState
from meshd.mux.state import State
from meshd.mux.stream import Piece, Stream
from meshd.mux.upload import Upload
from meshd.wire.frame import DATA_OVERHEAD, ack_frame, data_header, encode
from meshd.wire.frame_types import (
    LinkAck,
    LinkLost,
    MaxData,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
)

_ACK_CRUMB = 16 << 10  # bytes of a stream that are acknowledged with company only if they have waited
_LEAST = 4 << 10  # what a frame may hold even if less room is left: crumbs cost more than they save


class Outbound:
    """Composes what a link sends."""

    def __init__(self, state: State) -> None:
        self._state = state

    def transmit(self, link: LinkState, now: float, budget: int) -> list[Piece]:
        """Buffers for this link, in order; about `budget` bytes."""
        out: list[Piece] = []
        data: list[Piece] = []
        state = self._state
        if link.control_due():
            self._link_control(link, now, out)
        carries = link.link_id == state.data_link and not state.over
        if carries and state.stream_control_due():
            self._stream_control(out, budget)
        starved = open_road = False
        if carries and not state.opens_due and not link.awaits_resume:
            if now < link.hold_until:
                starved = True
            elif state.schedule.waiting:
                starved = self._data(link, now, data, sum(map(len, out)), budget)
            else:
                open_road = True
        if out or data or link.ack_due(now) or (carries and state.acks_worth_sending(now)):
            self.acknowledge(link, now, out, carries=carries)
            if state.upload is not None:
                state.upload.spend_control(sum(map(len, out)), now)
            out += data
            starved = starved or (open_road and link.pacing.in_flight < link.pacing.allowance())
            link.pacing.on_sent(sum(map(len, out)), now, starved=starved)
        return out

    # control of the link

    def _link_control(self, link: LinkState, now: float, out: list[Piece]) -> None:
        state = self._state
        if link.resume_due:
            link.resume_due = False
            out.append(encode(self._resume()))
        if link.goodbye_due and state.goodbye is not None:
            link.goodbye_due = False
            out.append(encode(state.goodbye))
        if link.switch_due is not None:
            out.append(encode(Switch(link.switch_due)))
            link.switch_due = None
        if link.lost_due is not None:
            out.append(encode(LinkLost(link.lost_due)))
            link.lost_due = None
        heard_ms = int((now - link.last_heard) * 1000)
        if link.pongs_due:
            out.extend(encode(Pong(number, heard_ms)) for number in link.pongs_due)
            link.pongs_due.clear()
        if link.probe_due():
            link.probe(state.new_ping())
        if link.pings_due:
            for number in link.pings_due:
                out.append(encode(Ping(number, heard_ms, link.holds(number))))
                link.ping_sent(number, now)
            link.pings_due.clear()

    def _resume(self) -> Resume:
        state = self._state
        return Resume(
            max_data=state.credit.grant(),
            opened=state.next_own,
            seen=state.next_peer,
            streams=tuple(_entry(stream) for stream in state.streams.values()),
        )

    # control of streams

    def _stream_control(self, out: list[Piece], budget: int) -> None:
        state = self._state
        left = budget
        while state.opens_due and left > 0:
            stream_id = next(iter(state.opens_due))
            opened = state.opens_due.pop(stream_id)
            state.streams[stream_id].announced = True
            left -= len(opened)
            out.append(opened)
        for stream_id in state.resets_due:
            out.append(encode(_reset(state.streams[stream_id])))
        state.resets_due.clear()
        # A ResetAck never goes ahead of our own Reset of the same stream: the peer settles credit by it.
        out.extend(encode(ResetAck(stream_id)) for stream_id in state.late_reset_acks)
        state.late_reset_acks.clear()

    def acknowledge(self, link: LinkState, now: float, out: list[Piece], *, carries: bool) -> None:
        """Something is sent anyway: all acknowledgements go with it, but crumbs.

        An Ack with every small message would cost both sides more than it tells.
        """
        state = self._state
        state.acknowledged_at = now
        received = link.ack(now)
        if received is not None:
            out.append(encode(LinkAck(received)))
        if not carries:
            return
        credit = state.credit
        if credit.due():
            out.append(encode(MaxData(credit.grant())))
        if state.late_acks:
            out.extend(map(encode, state.late_acks.values()))
            state.late_acks.clear()
        state.ripen(now)
        crumbs = state.acks_ripe or state.acks_waited(now)
        for stream_id in list(state.acks_due):
            stream = state.streams[stream_id]
            receive = stream.receive
            if not crumbs and receive.received - receive.acked < _ACK_CRUMB and not receive.ended:
                continue
            del state.acks_due[stream_id]
            receive.acked = receive.received
            receive.told_end = receive.ended
            accepted = stream.accepted and not stream.ours
            out.append(
                ack_frame(stream_id, receive.received, receive.window.grant(), accepted, receive.ended)
            )
        if not state.acks_due:
            state.acks_at = None
        state.acks_ripe = False

    # data

    def _data(self, link: LinkState, now: float, out: list[Piece], count: int, budget: int) -> bool:
        """Frames of data until there is no room; True if the link had room for more."""
        upload = self._state.upload
        pacing = link.pacing
        room = min(budget, pacing.allowance() - pacing.sent + pacing.acked) - count
        most = pacing.frame_size()
        if upload is None:
            return self._frames(out, room, most)
        return self._allowed(upload, now, out, room, min(most, upload.share))

    def _allowed(self, upload: Upload, now: float, out: list[Piece], room: int, most: int) -> bool:
        """As `_frames`, held to what the node may give now."""
        state = self._state
        who = id(state)
        if room <= 0:
            upload.leave(who)
            return False
        allowed = upload.room(who, room, now)
        idle = bool(allowed) and self._frames(out, allowed, most)
        sent = sum(map(len, out))
        upload.spend(who, sent, now)
        if idle or room <= max(allowed, sent):
            upload.leave(who)
            return idle
        state.upload_at = upload.wait(who, room - sent, now)
        state.want_timer(state.upload_at)
        return True  # the link could have carried more: what it delivers now is not what it can

    def _frames(self, out: list[Piece], room: int, most: int) -> bool:
        """Frames of data until there is no room; True if there was room and nothing to send."""
        state = self._state
        schedule = state.schedule
        held_back = 0  # streams in a row that only the session's credit stops
        while room > 0:
            stream_id = schedule.next()
            if stream_id is None:
                return True
            stream = state.streams[stream_id]
            size = self._frame(stream, min(most, max(room, _LEAST)), out)
            if stream.ready():
                schedule.add(stream_id, stream.priority)
            room -= size
            held_back = 0 if size else held_back + 1
            if held_back > len(schedule.waiting):
                return True
        return False

    def _frame(self, stream: Stream, most: int, out: list[Piece]) -> int:
        """One frame of data of this stream; returns its size, 0 if the session's credit forbids it."""
        state = self._state
        send = stream.send
        size = min(send.sendable(), most)
        fresh = send.cursor + size - send.sent
        if fresh > 0:
            beyond = state.sent + fresh - state.peer_credit
            if beyond > 0:
                size -= beyond
                fresh -= beyond
        start = send.cursor
        fin = send.eof and not send.eof_sent and start + size == send.written
        if size <= 0 and not fin:
            return 0
        out.append(data_header(stream.stream_id, start, size, fin))
        if size:
            send.take(size, out)
        if fresh > 0:
            state.sent += fresh
        send.eof_sent = send.eof_sent or fin
        return size + DATA_OVERHEAD


def _entry(stream: Stream) -> ResumeEntry:
    receive = stream.receive
    receive.acked = receive.received
    receive.told_end = receive.ended
    return ResumeEntry(
        stream_id=stream.stream_id,
        received=receive.received,
        credit=receive.window.grant(),
        sent=stream.send.sent,
        accepted=stream.accepted and not stream.ours,
        ended=receive.ended,
        eof=stream.send.eof,
        resetting=stream.resetting,
    )


def _reset(stream: Stream) -> Reset:
    return Reset(
        stream.stream_id, stream.code, stream.reason, final=stream.send.sent, received=stream.receive.highest
    )
