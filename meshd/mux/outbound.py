"""Chooses the next frames for a link: control first, then streams in turn, as much as the link can carry.

Frames of data are made in send_queue.py, acknowledgements in ack_queue.py.
"""

from meshd.mux.link import LinkState
from meshd.mux.state import State
from meshd.mux.stream import Piece, StreamState
from meshd.mux.upload import Upload
from meshd.wire.frame import (
    LinkLost,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
    encode,
)


class Outbound:
    """Composes what a link sends."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links

    def transmit(self, link: LinkState, now: float, budget: int) -> list[Piece]:
        """Return buffers for this link, in order; about `budget` bytes."""
        out: list[Piece] = []
        data: list[Piece] = []
        state = self._state
        if link.control_due():
            self._link_control(link, now, out)
        carries = link.link_id == self._links.data_link and not state.over
        if carries and self._streams.control_due():
            self._stream_control(out, budget)
        starved = open_road = False
        if carries and not self._streams.opens_due and not link.awaits_resume:
            if now < link.hold_until:
                starved = True
            elif self._sending.schedule.waiting:
                starved = self._data(link, now, data, sum(map(len, out)), budget)
            else:
                open_road = True
        if out or data or link.ack_due(now) or (carries and self._acks.worth_sending(now)):
            self._acks.acknowledge(link, now, out, carries=carries)
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
            link.probe(self._links.new_ping())
        if link.pings_due:
            for number in link.pings_due:
                out.append(encode(Ping(number, heard_ms, link.holds(number))))
                link.ping_sent(number, now)
            link.pings_due.clear()

    def _resume(self) -> Resume:
        streams = self._streams
        return Resume(
            max_data=streams.credit.grant(),
            opened=streams.next_own,
            seen=streams.next_peer,
            streams=tuple(_entry(stream) for stream in streams.by_id.values()),
        )

    # control of streams

    def _stream_control(self, out: list[Piece], budget: int) -> None:
        streams = self._state.streams
        out.extend(streams.take_opens(budget))
        out.extend(encode(_reset(stream)) for stream in streams.take_resets())
        # A ResetAck never goes ahead of our own Reset of the same stream: the peer settles credit by it.
        out.extend(encode(ResetAck(stream_id)) for stream_id in streams.take_reset_acks())

    # data

    def _data(self, link: LinkState, now: float, out: list[Piece], count: int, budget: int) -> bool:
        """Append Data frames until there is no room; True if the link had room for more."""
        upload = self._state.upload
        pacing = link.pacing
        room = min(budget, pacing.allowance() - pacing.sent + pacing.acked) - count
        most = pacing.frame_size()
        if upload is None:
            return self._sending.frames(self._streams.by_id, out, room, most)
        return self._allowed(upload, now, out, room, min(most, upload.share))

    def _allowed(self, upload: Upload, now: float, out: list[Piece], room: int, most: int) -> bool:
        """Append frames like `SendQueue.frames`, within what the node may upload now."""
        state = self._state
        who = id(state)
        if room <= 0:
            upload.leave(who)
            return False
        allowed = upload.room(who, room, now)
        idle = bool(allowed) and self._sending.frames(self._streams.by_id, out, allowed, most)
        sent = sum(map(len, out))
        upload.spend(who, sent, now)
        if idle or room <= max(allowed, sent):
            upload.leave(who)
            return idle
        at = upload.wait(who, room - sent, now)
        self._sending.wait_for_upload(at)
        state.timer.want(at)
        return True  # the link could have carried more: what it delivers now is not what it can


def _entry(stream: StreamState) -> ResumeEntry:
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


def _reset(stream: StreamState) -> Reset:
    return Reset(
        stream.stream_id, stream.code, stream.reason, final=stream.send.sent, received=stream.receive.highest
    )
