"""One small message while nothing else is going on: what a session does with it in many steps, in one.

A question and its answer, a token say, meet an idle session each time, and caches that the model has emptied
meanwhile: each step costs a microsecond or more there, and half of them ask for what is not due. Whatever is
not plain here is left to the long way (inbound.py, outbound.py), with nothing changed. Both ways leave the
same behind; only acknowledgements that wait for company may go up to ACK_CRUMB_DELAY later on this one.
"""

from meshd.mux.link import ACK_LEAST
from meshd.mux.outbound import Outbound
from meshd.mux.pacing import FRAME_LEAST
from meshd.mux.state import ACK_CRUMB_DELAY, State
from meshd.mux.stream import Piece
from meshd.wire.frame import DATA_OVERHEAD, data_header

MOST = 16 << 10  # bytes of a message: of a longer one, the steps are not what costs


class Shortcut:
    """Both directions of one session."""

    def __init__(self, state: State, outbound: Outbound) -> None:
        self._state = state
        self._outbound = outbound

    def send(self, link_id: int, stream_id: int, data: bytes, now: float) -> list[Piece] | None:
        """`write` and `transmit` at once: what to send. None, and nothing done: that may not be all to do."""
        state = self._state
        link = state.links.get(link_id)
        stream = state.streams.get(stream_id)
        size = len(data)
        if (
            link is None
            or stream is None
            or stream.resetting
            or not 0 < size <= MOST
            or link_id != state.data_link
            or link.awaits_resume
            or now < link.hold_until
            or state.schedule.waiting
            or state.upload is not None
            or state.stream_control_due()
            or link.control_due()
        ):
            return None
        send, pacing = stream.send, link.pacing
        room = pacing.allowance() - pacing.sent + pacing.acked - size - DATA_OVERHEAD
        if (
            send.eof
            or send.cursor != send.written
            or room < 0
            or (size > FRAME_LEAST and size > pacing.frame_size())
            or size > state.peer_credit - state.sent
            or size > state.room(stream)
        ):
            return None
        state.now = now
        out: list[Piece] = []
        if (
            state.acks_ripe
            or state.late_acks
            or link.received - link.acked >= ACK_LEAST
            or now - state.acknowledged_at >= ACK_CRUMB_DELAY
        ):
            self._outbound.acknowledge(link, now, out, carries=True)
        out.append(data_header(stream_id, send.written, size, False))
        out.append(data)
        send.pass_on(data, size)
        state.send_buffered += size
        state.sent += size
        pacing.on_sent(sum(map(len, out)), now, starved=room > 0)
        return out

    def receive(self, link_id: int, data: bytes, now: float) -> tuple[int, bytes, bool] | None:
        """`receive` of one frame of data that comes in its turn: its stream, what it holds, and whether an
        acknowledgement of it may be due now (`Session.due` knows).

        None, and nothing done, for whatever else; what breaks a rule goes the long way, too.
        """
        state = self._state
        link = state.links.get(link_id)
        if link is None or len(data) > MOST or state.blocked or state.events:
            return None
        head = link.parser.whole(data)
        if head is None:
            return None
        stream_id, offset = head
        stream = state.streams.get(stream_id)
        if stream is None or stream.resetting or not stream.answered:
            return None
        receive, credit = stream.receive, state.credit
        payload = data[DATA_OVERHEAD:]
        end = offset + len(payload)
        total = credit.received + len(payload)
        if (
            offset != receive.received
            or offset != receive.highest
            or receive.final is not None
            or end > receive.window.granted
            or total > credit.granted
        ):
            return None
        state.now = now
        ripe_at = link.heard(len(data), now)
        if ripe_at is not None:
            state.want_timer(ripe_at)
        receive.received = receive.highest = end
        credit.received = total
        urgent = end - receive.acked > receive.window.size // 4
        if urgent or state.acks_at is None or stream_id not in state.acks_due:
            state.want_ack(stream, now=urgent)
        return stream_id, payload, urgent or link.received - link.acked >= ACK_LEAST
