"""The fast path for one small message on an otherwise idle session: many steps combined into one.

A question and its answer, a token say, meet an idle session each time, and caches that the model has emptied
meanwhile: each step costs a microsecond or more there, and half of them look for work that is not due. All
that is not plain here is left to the long way (inbound.py, outbound.py), with nothing changed. Both ways
leave the same behind; only acknowledgements that wait for company may go up to ACK_CRUMB_DELAY later on this
one.
"""

from meshd.mux.ack_queue import ACK_CRUMB_DELAY
from meshd.mux.link import ACK_LEAST
from meshd.mux.pacing import FRAME_LEAST
from meshd.mux.state import State
from meshd.mux.stream import Piece
from meshd.wire.frame import DATA_OVERHEAD, data_header

MOST_FAST_BYTES = 16 << 10  # bytes of a message: of a longer one, the steps are not what costs


class FastPath:
    """Sends and receives one small message of an otherwise idle session, where nothing else is due."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links

    def send(self, link_id: int, stream_id: int, data: bytes, now: float) -> list[Piece] | None:
        """`write` and `transmit` at once: what to send. None, and nothing done: that may not be all to do."""
        state = self._state
        link = self._links.by_id.get(link_id)
        stream = self._streams.by_id.get(stream_id)
        size = len(data)
        if (
            link is None
            or stream is None
            or stream.resetting
            or not 0 < size <= MOST_FAST_BYTES
            or link_id != self._links.data_link
            or link.awaits_resume
            or now < link.hold_until
            or self._sending.schedule.waiting
            or state.upload is not None
            or self._streams.control_due()
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
        ):
            return None
        offset = send.written
        if not self._sending.pass_on(stream, data, size):
            return None
        state.now = now
        acks = self._acks
        out: list[Piece] = []
        if (
            acks.ripe
            or acks.late
            or link.received - link.acked >= ACK_LEAST
            or now - acks.company_at >= ACK_CRUMB_DELAY
        ):
            acks.acknowledge(link, now, out, carries=True)
        out.append(data_header(stream_id, offset, size, False))
        out.append(data)
        pacing.on_sent(sum(map(len, out)), now, starved=room > 0)
        return out

    def receive(self, link_id: int, data: bytes, now: float) -> tuple[int, bytes, bool] | None:
        """`receive` of one frame of data that comes in its turn: its stream, what it holds, and whether an
        acknowledgement of it may be due now (`Session.due` knows).

        None, and nothing done, for whatever else; what breaks a rule goes the long way, too.
        """
        state = self._state
        link = self._links.by_id.get(link_id)
        if link is None or len(data) > MOST_FAST_BYTES or self._sending.blocked or state.events:
            return None
        head = link.parser.whole(data)
        if head is None:
            return None
        stream_id, offset = head
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting or not stream.answered:
            return None
        receive, credit = stream.receive, self._streams.credit
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
            state.timer.want(ripe_at)
        receive.received = receive.highest = end
        credit.received = total
        urgent = end - receive.acked > receive.window.size // 4
        acks = self._acks
        if urgent or acks.at is None or stream_id not in acks.due:
            acks.want(stream, now, urgent=urgent)
        return stream_id, payload, urgent or link.received - link.acked >= ACK_LEAST
