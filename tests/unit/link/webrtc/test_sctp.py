"""SCTP packets: ours read by aiortc and aiortc's by us, and nothing hostile gets further than an error."""

import heapq
import random
from dataclasses import dataclass, field

import pytest
from aiortc.rtcsctptransport import DataChunk, SackChunk, parse_packet, serialize_packet
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.link.webrtc import sctp as wire
from meshd.link.webrtc.sctp import GIVE_UP_SECONDS, LEAST_PROBE_SECONDS, Inbox, Outbox

NUMBERS = st.integers(0, wire.TSNS - 1)


@given(NUMBERS, NUMBERS, st.integers(0, 65535), st.binary(min_size=1, max_size=1300))
def test_aiortc_reads_our_data(tag: int, tsn: int, sequence: int, payload: bytes) -> None:
    packet = wire.seal(tag, wire.data_chunk(tsn, sequence, wire.BINARY, payload))
    _, _, read_tag, (chunk,) = parse_packet(packet)
    assert isinstance(chunk, DataChunk)
    assert (read_tag, chunk.tsn, chunk.stream_seq, chunk.protocol, chunk.user_data, chunk.flags) == (
        tag,
        tsn,
        sequence,
        wire.BINARY,
        payload,
        wire.WHOLE,
    )


@given(NUMBERS, NUMBERS, st.lists(st.integers(1, 60), max_size=600))
def test_aiortc_reads_our_acknowledgements(cumulative: int, window: int, steps: list[int]) -> None:
    gaps, at = [], 0
    for step in steps:
        gaps.append((at + 1 + step, at + 2 + step))
        at += 2 + step
    _, _, _, (chunk,) = parse_packet(wire.seal(1, wire.sack_chunk(cumulative, window, gaps)))
    assert isinstance(chunk, SackChunk)
    assert chunk.gaps == gaps[: wire.MAX_GAPS]
    assert (chunk.cumulative_tsn, chunk.advertised_rwnd) == (cumulative, window)


def test_the_longest_acknowledgement_fits_a_record() -> None:
    gaps = [(at, at) for at in range(2, 4000, 2)]
    assert len(wire.seal(1, wire.sack_chunk(0, 0, gaps))) < 1100


@given(NUMBERS, st.binary(min_size=1, max_size=100))
def test_we_read_aiortc(tsn: int, payload: bytes) -> None:
    data = DataChunk(flags=3)
    data.tsn, data.user_data, data.protocol = tsn, payload, wire.BINARY
    sack = SackChunk()
    sack.cumulative_tsn, sack.advertised_rwnd, sack.gaps = tsn, 77, [(2, 3), (9, 9)]
    sack.duplicates = [tsn]
    tag, ((kind, _, body),) = wire.open_packet(serialize_packet(wire.SCTP_PORT, wire.SCTP_PORT, 9, data))
    assert (tag, kind, wire.open_data(body)) == (9, wire.DATA, (tsn, wire.BINARY, payload))
    _, ((kind, _, body),) = wire.open_packet(serialize_packet(wire.SCTP_PORT, wire.SCTP_PORT, 9, sack))
    assert kind == wire.SACK
    assert wire.open_sack(body) == wire.SackBody(tsn, 77, ((2, 3), (9, 9)))


def test_a_flipped_bit_is_seen() -> None:
    packet = bytearray(wire.seal(1, wire.data_chunk(1, 1, wire.BINARY, b"hello")))
    packet[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="checksum"):
        wire.open_packet(bytes(packet))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(11),
        bytes(8) + b"\x00\x02\x00\x00" + b"\x00\x02\x00\x03",  # a gap is missing
        bytes(8) + b"\x00\x02\x00\x00" + b"\x00\x02\x00\x05\x00\x04\x00\x06",  # they overlap
        bytes(8) + b"\x00\x01\x00\x00" + b"\x00\x05\x00\x04",  # it ends before it begins
        bytes(8) + b"\x00\x01\x00\x00" + b"\x00\x01\x00\x04",  # no gap before it
    ],
)
def test_a_wrong_acknowledgement(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.open_sack(body)


def test_numbers_on_a_circle() -> None:
    assert wire.ahead(2, of=wire.TSNS - 1) == 3
    assert wire.ahead(wire.TSNS - 1, of=2) == -3
    assert wire.ahead(5, of=5) == 0


@given(st.integers(20, 375).map(lambda quarter: 4 * quarter))
def test_a_probe_has_its_size_and_its_answer_tells_it(size: int) -> None:
    token = bytes(range(8))
    packet = wire.seal(5, wire.probe_chunk(size, token))
    assert len(packet) == size
    _, ((kind, _, body),) = wire.open_packet(packet)
    assert kind == wire.HEARTBEAT
    assert wire.are_parameters(body)
    _, ((kind, _, answer),) = wire.open_packet(wire.seal(5, wire.heartbeat_ack(body)))
    assert (kind, wire.probed(answer, token), wire.probed(answer, bytes(8))) == (wire.HEARTBEAT_ACK, size, 0)
    _, _, _, (chunk,) = parse_packet(packet)
    assert bytes(chunk) == packet[12:]


@given(st.binary(max_size=40))
def test_parameters_without_a_length_are_refused(junk: bytes) -> None:
    assert wire.are_parameters(b"\x00\x01\x00\x05\x09\x00\x00\x00" * 3)
    assert not wire.are_parameters(b"\x00\x01\x00\x05\x09\x00\x00\x00" + b"\x00\x01\x00\x00" + junk)
    wire.are_parameters(junk)


WINDOW = 64 << 10


class GaveUp(Exception):
    """Nothing was acknowledged for GIVE_UP_SECONDS."""


@dataclass
class Line:
    """One sender, one receiver, and what lies between. Times are seconds of its own clock."""

    seed: int
    loss: float = 0.0
    delay: float = 0.05
    shuffle: float = 0.0
    first: int = 7
    window: int = 4 << 20
    now: float = 100.0
    got: bytearray = field(default_factory=bytearray)
    unread: int = 0
    reads: bool = True
    sent: int = 0
    number: int = 0  # of a packet: those of one moment stay in order

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.outbox = Outbox(self.first, peer_window=self.window)
        self.inbox = Inbox(self.first, window_bytes=self.window)
        self.there: list[tuple[float, int, bytes]] = []
        self.back: list[tuple[float, int, bytes]] = []

    def flush(self) -> None:
        while (chunk := self.outbox.next_chunk(self.now)) is not None:
            self.sent += 1
            tsn = self.outbox.tsn_of(chunk)
            self.put(self.there, wire.data_chunk(tsn, 0, chunk.protocol, chunk.payload))

    def put(self, queue: list[tuple[float, int, bytes]], packet: bytes) -> None:
        if self.rng.random() >= self.loss:
            late = self.rng.random() * self.shuffle
            self.number += 1
            heapq.heappush(queue, (self.now + self.delay + late, self.number, packet))

    def step(self) -> bool:
        """To the next thing that happens; False when nothing is left to happen."""
        self.flush()
        times = [queue[0][0] for queue in (self.there, self.back) if queue]
        times += [at for at in (self.outbox.next_send(self.now), self.outbox.deadline()) if at is not None]
        if not times:
            return False
        self.now = max(self.now, min(times))
        for packet in self.due(self.there):
            tsn, protocol, payload = wire.open_data(packet[4:][: int.from_bytes(packet[2:4], "big") - 4])
            for _, data in self.inbox.take(tsn, protocol, payload, unread=self.unread):
                self.got += data
                self.unread += 0 if self.reads else len(data)
        if self.inbox.due or self.inbox.urgent:
            self.put(self.back, self.inbox.sack(unread=self.unread))
        for packet in self.due(self.back):
            self.outbox.on_sack(wire.open_sack(packet[4:]), self.now)
        if not self.outbox.on_timer(self.now):
            raise GaveUp
        return True

    def due(self, queue: list[tuple[float, int, bytes]]) -> list[bytes]:
        ready = []
        while queue and queue[0][0] <= self.now:
            ready.append(heapq.heappop(queue)[2])
        return ready

    def lose(self, number: int) -> bytes:
        """Lose one of the packets that are on their way, by when it comes; returns it."""
        self.there.sort()
        return self.there.pop(number)[2]

    def run(self, *, most: int = 200_000) -> None:
        for _ in range(most):
            if self.outbox.is_done or not self.step():
                return
        raise AssertionError("it never ends")


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    loss=st.sampled_from([0.0, 0.005, 0.05, 0.3]),
    shuffle=st.sampled_from([0.0, 0.01, 0.2]),
    first=st.sampled_from([0, 7, wire.TSNS - 20, wire.TSNS // 2 - 5]),
    window=st.sampled_from([4 << 10, WINDOW, 4 << 20]),
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
)
def test_all_arrives_in_order(
    seed: int, loss: float, shuffle: float, first: int, window: int, sizes: list[int]
) -> None:
    line = Line(seed, loss=loss, shuffle=shuffle, first=first, window=window)
    data = random.Random(seed).randbytes(sum(sizes))
    at = 0
    for size in sizes:
        line.outbox.write(data[at : at + size])
        at += size
    try:
        line.run()
    except GaveUp:
        assume(loss < 0.3)  # of that many a dozen in a row are lost now and then
        raise
    assert bytes(line.got) == data
    assert line.outbox.is_done
    assert line.outbox.flight_bytes == 0
    assert line.outbox.backlog_bytes == 0


def test_a_lost_chunk_goes_again_after_a_round_trip_and_not_a_timeout() -> None:
    line = Line(1)
    line.outbox.write(bytes(20_000))
    line.flush()
    line.lose(2)
    began = line.now
    line.run()
    assert len(line.got) == 20_000
    assert line.now - began < 4 * line.delay + 0.03  # one round trip, and one for the repetition


def test_a_repetition_that_is_lost_is_found_by_what_follows_it() -> None:
    line = Line(1)
    line.outbox.write(bytes(30_000))
    line.flush()
    lost = line.lose(2)
    began, again = line.now, 0
    while not line.outbox.is_done:
        line.step()
        line.flush()
        kept = [item for item in line.there if item[2] != lost]
        if again == 0 and len(kept) < len(line.there):
            again, line.there = 1, sorted(kept)
            line.outbox.write(bytes(20_000))  # and this goes out behind it
    assert again == 1
    assert line.now - began < 6 * line.delay + 0.03


def test_a_hole_is_filled_when_all_the_window_waits_behind_it() -> None:
    inbox = Inbox(0, window_bytes=WINDOW)
    for number in range(1, 3000):
        inbox.take(number, wire.BINARY, b"x", unread=0)
    assert wire.open_sack(inbox.sack(unread=0)[4:]).window == 0
    assert inbox.take(0, wire.BINARY, bytes(1000), unread=0)
    assert inbox.wants_update(unread=0)


def test_random_loss_does_not_shrink_the_window() -> None:
    line = Line(3, loss=0.01, delay=0.025)
    line.outbox.write(bytes(4_000_000))
    line.run()
    assert line.outbox.model.window > 200_000


def test_nothing_is_sent_twice_without_a_loss() -> None:
    line = Line(5)
    line.outbox.write(bytes(1_000_000))
    line.run()
    assert line.sent == -(-1_000_000 // line.outbox.payload_bytes)


def test_a_reader_that_stops_closes_the_window_and_opens_it_again() -> None:
    line = Line(1, window=WINDOW)
    line.reads = False
    line.outbox.write(bytes(1_000_000))
    for _ in range(400):
        line.step()
    assert WINDOW // 2 < len(line.got) <= WINDOW + 8192
    line.reads, line.unread = True, 0
    assert line.inbox.wants_update(unread=0)
    line.put(line.back, line.inbox.sack(unread=0))
    line.run()
    assert len(line.got) == 1_000_000


def test_silence_is_given_up_at_last() -> None:
    outbox = Outbox(0, peer_window=WINDOW)
    outbox.write(b"anybody there")
    now = began = 50.0
    assert outbox.next_chunk(now) is not None
    times = []
    while (deadline := outbox.deadline()) is not None:
        now = deadline
        if not outbox.on_timer(now):
            break
        times.append(now)
        assert outbox.next_chunk(now) is not None
    assert GIVE_UP_SECONDS < now - began < GIVE_UP_SECONDS + 5
    assert len(times) < 20


def test_a_probe_comes_soon_after_a_round_trip() -> None:
    line = Line(1, delay=0.01)
    line.outbox.write(bytes(1000))
    for _ in range(20):
        line.run()
        line.outbox.write(bytes(1000))
    line.flush()
    line.there.clear()  # the tail is lost: nothing after it tells
    deadline = line.outbox.deadline()
    assert deadline is not None
    assert deadline - line.now < 0.02 + 2 * LEAST_PROBE_SECONDS


@pytest.mark.parametrize(
    "sack",
    [
        wire.SackBody(100, 1 << 20, ()),  # never sent
        wire.SackBody(7, 1 << 20, ((2, 60_000),)),
        wire.SackBody(wire.TSNS - 50, 1 << 20, ()),  # long ago
    ],
)
def test_a_lying_acknowledgement_changes_nothing(sack: wire.SackBody) -> None:
    outbox = Outbox(7, peer_window=WINDOW)
    outbox.write(bytes(10_000))
    while outbox.next_chunk(1.0) is not None:
        pass
    before = outbox.flight_bytes
    outbox.on_sack(sack, 1.1)
    assert outbox.flight_bytes == before > 0


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 30)), max_size=80))
def test_gaps_are_what_is_there(chunks: list[tuple[int, int]]) -> None:
    inbox = Inbox(5)
    seen: set[int] = set()
    for number, size in chunks:
        inbox.take((5 + number) % wire.TSNS, wire.BINARY, bytes(size), unread=0)
        seen.add(number)
    first = next(number for number in range(400) if number not in seen)
    sack = wire.open_sack(inbox.sack(unread=0)[4:])
    assert wire.ahead(sack.cumulative, of=5) == first - 1
    told = {number for start, end in sack.gaps for number in range(first - 1 + start, first + end)}
    assert told == {number for number in seen if number > first}


def test_a_window_that_grows_is_told() -> None:
    inbox = Inbox(0, window_bytes=1000)
    inbox.take(0, wire.BINARY, bytes(900), unread=0)
    assert wire.open_sack(inbox.sack(unread=900)[4:]).window == 100
    inbox.widen(WINDOW)
    assert wire.open_sack(inbox.sack(unread=900)[4:]).window == WINDOW - 900
    inbox.widen(10)
    assert wire.open_sack(inbox.sack(unread=0)[4:]).window == WINDOW


def test_what_does_not_fit_is_dropped() -> None:
    inbox = Inbox(0, window_bytes=WINDOW)
    for number in range(1, 10_000):  # the first is missing: all of it has to wait
        inbox.take(number, wire.BINARY, bytes(1000), unread=0)
    sack = wire.open_sack(inbox.sack(unread=0)[4:])
    assert sack.window == 0
    assert sack.gaps[-1][1] * 1000 < 2 * WINDOW
