"""The fast path for one small message on an otherwise idle session: many steps combined into one.

A question and its answer, a token say, meet an idle session each time, and caches that the model has emptied
meanwhile: each step costs a microsecond or more there, and half of them look for work that is not due. All
that is not plain here is left to the long way (inbound.py, outbound.py), with nothing changed. Both ways
leave the same behind; only acknowledgements that wait for company may go up to ACK_CRUMB_DELAY later on this
one.
"""

from collections.abc import Sequence

from meshd.mux.ack_queue import ACK_CRUMB_DELAY
from meshd.mux.link import ACK_LEAST
from meshd.mux.state import State
from meshd.mux.stream import Piece, StreamState
from meshd.wire.frame import DATA, DATA_OVERHEAD, Ack, LinkAck, data_header

MOST_FAST_BYTES = 64 << 10  # bytes of a message: of a longer one, the steps are not what costs
_MOST_READ_BYTES = MOST_FAST_BYTES + 128  # with the header, and acknowledgements before it
_COPY_BELOW = 2 << 10  # bytes of a payload: copying fewer costs less than to make a view


class FastPath:
    """Sends and receives one small message of an otherwise idle session, where nothing else is due."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links

    def send(self, link_id: int, stream_id: int, data: bytes, now: float) -> list[Piece] | None:
        """Write and transmit at once: return what to send, or None, with nothing done, if more may be due."""
        state = self._state
        link = self._links.by_id.get(link_id)
        stream = self._streams.by_id.get(stream_id)
        # Anything due beside this message takes the slow path.
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
        if send.eof or send.cursor != send.written or room < 0:
            return None  # smaller frames would all leave at once, too, and nothing could come in between
        offset = send.written
        if not self._sending.pass_on(stream, data, size):
            return None
        # Nothing stops us: acknowledgements that are due go in front.
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

    def receive(self, link_id: int, data: Piece, now: float) -> tuple[int, Piece, bool] | None:
        """Receive one Data frame that comes in order, with only acknowledgements before it. Return its
        stream, its payload, and whether there may be something to send now (`Session.due` knows).

        Returns None, with nothing done, for anything else; violations take the slow path, too.
        """
        state = self._state
        link = self._links.by_id.get(link_id)
        if link is None or len(data) > _MOST_READ_BYTES or self._sending.blocked or state.events:
            return None
        # Acknowledgements may come first.
        at = 0
        acks: Sequence[LinkAck | Ack] = ()
        if data[0] != DATA:
            found = link.parser.acks_before_data(data)
            if found is None or not self._are_plain(found[0]):
                return None
            acks, at = found
        # Then exactly one whole Data frame, in order.
        head = link.parser.whole(data, at)
        if head is None:
            return None
        stream_id, offset = head
        at += DATA_OVERHEAD
        stream = self._streams.by_id.get(stream_id)
        if stream is None or not self._is_next(stream, offset, len(data) - at):
            return None
        # From here on the state changes: count bytes, acknowledgements, data.
        state.now = now
        ripe_at = link.heard(len(data), now)
        if ripe_at is not None:
            state.timer.want(ripe_at)
        for ack in acks:
            if isinstance(ack, LinkAck):
                link.on_link_ack(ack.received, now)
            else:
                own = self._streams.by_id[ack.stream_id]
                self._sending.acknowledge(own, ack.received, ack.credit, ended=False)
        payload: Piece = data[at:] if len(data) < _COPY_BELOW else memoryview(data)[at:]
        urgent = self._take(stream, len(payload), now)
        return stream_id, payload, urgent or bool(acks) or link.received - link.acked >= ACK_LEAST

    def _are_plain(self, acks: Sequence[LinkAck | Ack]) -> bool:
        """Return True if the acknowledgements do nothing but acknowledge and give credit."""
        for ack in acks:
            if isinstance(ack, LinkAck):
                continue
            stream = self._streams.by_id.get(ack.stream_id)
            if (
                stream is None
                or stream.resetting
                or not stream.answered
                or ack.ended
                or ack.received > stream.send.sent
                or (ack.accepted and stream.ours and not stream.accepted)
            ):
                return False
        return True

    def _is_next(self, stream: StreamState, offset: int, size: int) -> bool:
        """Return True if these bytes come in order, to a stream that takes them."""
        receive, credit = stream.receive, self._streams.credit
        return (
            not stream.resetting
            and stream.answered
            and offset == receive.received
            and offset == receive.highest
            and receive.final is None
            and offset + size <= receive.window.granted
            and credit.received + size <= credit.granted
        )

    def _take(self, stream: StreamState, size: int, now: float) -> bool:
        """Count received bytes; True if their acknowledgement is urgent."""
        receive, acks = stream.receive, self._acks
        receive.received = receive.highest = end = receive.received + size
        self._streams.credit.receive(size)
        urgent = end - receive.acked > receive.window.size // 4
        if urgent or acks.at is None or stream.stream_id not in acks.due:
            acks.want(stream, now, urgent=urgent)
        return urgent
