"""Test what the engine does otherwise than its library: credit, sizes of datagrams, strangers."""

import random
from collections import Counter

import pytest
from aioquic.quic.connection import Limit, QuicConnection
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.engine import (
    FIRST_CREDIT_BYTES,
    JUMBO_DATAGRAM_BYTES,
    PROBED_DATAGRAM_BYTES,
    RECEIVE_WINDOW_BYTES,
    SAFE_DATAGRAM_BYTES,
    QuicEngine,
    Reception,
    start_dialling,
)

from tests.unit.link.quic.quic_pair import CERTIFICATE, DIALLER, FAR, LISTENER, NEAR, Pair

MIB = 1 << 20
VICTIM = Origin(("203.0.113.77", 4444))


def waiting(engine: QuicEngine) -> int:
    return sum(map(len, engine.inbox))


def test_both_see_the_listeners_certificate() -> None:
    pair = Pair()
    pair.connect()
    assert pair.dialler.binding() == CERTIFICATE.sha256
    assert pair.far.binding() == b""


@pytest.mark.parametrize(("proven", "most"), [(False, FIRST_CREDIT_BYTES), (True, RECEIVE_WINDOW_BYTES)])
def test_no_more_arrives_than_was_read(proven: bool, most: int) -> None:
    pair = Pair()
    pair.connect(proven=proven)
    pair.dialler.write([bytes(2 * RECEIVE_WINDOW_BYTES)])
    pair.run(20.0)
    got = waiting(pair.far)
    assert most - 5 <= got <= most  # `hello` came before
    assert pair.dialler.unsent == 2 * RECEIVE_WINDOW_BYTES - got
    pair.far.inbox.clear()
    assert not pair.far.consume(most // 8), "credit for little is not worth a datagram"
    assert pair.far.consume(most // 2)
    pair.run(20.0)
    assert most // 8 + most // 2 <= waiting(pair.far) <= most // 8 + most // 2 + 5


def test_all_arrives_when_all_is_read() -> None:
    pair = Pair()
    pair.connect()
    data = random.Random(5).randbytes(10 * MIB)
    pair.dialler.write([data])
    pair.dialler.finish()
    got = bytearray()
    for _ in range(20_000):
        pair.turn()
        for chunk in pair.far.inbox:
            got += chunk
            pair.far.consume(len(chunk))
        pair.far.inbox.clear()
        if pair.far.ended:
            break
    assert bytes(got) == data
    pair.run()
    assert pair.dialler.finished
    assert pair.dialler.held == 0


@pytest.mark.parametrize("stream", [0, 4, 2])
def test_who_sends_beyond_its_credit_is_hung_up_on(stream: int) -> None:
    """A byte far ahead on the one stream, and the first byte of any other."""
    pair = Pair()
    pair.connect()
    dialler, pair.cheats = pair.dialler, True
    dialler._remote_max_data = 1 << 40
    dialler._remote_max_streams_bidi = dialler._remote_max_streams_uni = 8
    dialler._remote_max_stream_data_uni = dialler._remote_max_stream_data_bidi_remote = 1 << 40
    dialler.send_stream_data(stream, b"x")
    sender = dialler._streams[stream].sender
    dialler._streams[stream].max_stream_data_remote = 1 << 40
    if stream == 0:
        ahead = RECEIVE_WINDOW_BYTES + 100
        sender._pending.subtract(sender._buffer_stop - 1, sender._buffer_stop)
        sender._buffer_start = sender._buffer_stop = ahead
        sender.write(b"y")
    pair.run()
    assert pair.far.gone is not None
    assert waiting(pair.far) == 0


def test_larger_datagrams_are_used_once_one_arrived() -> None:
    pair = Pair()
    pair.connect(proven=False)
    assert pair.dialler._max_datagram_size == SAFE_DATAGRAM_BYTES
    pair.dialler.widen()
    pair.run()
    assert pair.dialler._max_datagram_size == PROBED_DATAGRAM_BYTES[0]
    assert pair.far._max_datagram_size == SAFE_DATAGRAM_BYTES, "each direction finds out for itself"


@pytest.mark.parametrize(
    ("mtu", "size"), [(65536, JUMBO_DATAGRAM_BYTES), (9000, JUMBO_DATAGRAM_BYTES), (8999, 1452), (1500, 1452)]
)
def test_jumbo_datagrams_are_tried_only_where_the_first_hop_takes_them(mtu: int, size: int) -> None:
    pair = Pair()
    pair.connect(proven=False)
    seen: list[int] = []

    def passes(datagram: bytes) -> bool:
        seen.append(len(datagram))
        return True

    pair.passes = passes
    pair.dialler.widen(mtu)
    pair.run()
    assert pair.dialler._max_datagram_size == size == max(seen)


def test_a_jumbo_path_that_becomes_narrow_is_survived() -> None:
    pair = Pair()
    pair.connect(proven=False)
    pair.far.widen(65536)
    pair.dialler.widen(65536)
    pair.run()
    pair.dialler.write([bytes(3 * MIB)])
    pair.run(0.001)
    pair.passes = lambda datagram: len(datagram) <= 1250
    assert waiting(pair.far) < 3 * MIB
    for _ in range(60):
        pair.run(1.0)
    assert waiting(pair.far) == 3 * MIB
    assert pair.dialler._max_datagram_size == SAFE_DATAGRAM_BYTES


@pytest.mark.parametrize("most", [1250, 1420])
def test_datagrams_stay_small_on_a_narrow_path(most: int) -> None:
    pair = Pair()
    pair.passes = lambda datagram: len(datagram) <= most
    pair.connect()
    pair.run(5.0)
    assert pair.dialler._max_datagram_size == max(
        size for size in (SAFE_DATAGRAM_BYTES, *PROBED_DATAGRAM_BYTES) if size <= most
    )
    pair.dialler.write([bytes(MIB)])
    pair.run(5.0)
    assert waiting(pair.far) == MIB


def test_a_path_that_becomes_narrow_is_survived() -> None:
    pair = Pair()
    pair.connect()
    pair.dialler.write([bytes(3 * MIB)])
    pair.run(0.005)
    pair.passes = lambda datagram: len(datagram) <= 1250
    assert waiting(pair.far) < MIB
    pair.run(20.0)
    assert waiting(pair.far) == 3 * MIB
    assert pair.dialler._max_datagram_size == SAFE_DATAGRAM_BYTES


def test_a_probe_that_chance_took_is_sent_again() -> None:
    pair = Pair()
    pair.passes = lambda datagram: len(datagram) <= 1250
    pair.connect()
    pair.run(5.0)
    assert pair.dialler._max_datagram_size == SAFE_DATAGRAM_BYTES
    pair.passes = lambda datagram: True
    for _ in range(70):
        pair.now += 1.0
        pair.dialler.send_ping(0)
        pair.run(0.2)
    assert pair.dialler._max_datagram_size == PROBED_DATAGRAM_BYTES[0]


def test_a_dialler_that_moves_is_followed() -> None:
    pair = Pair()
    pair.connect()
    pair.near = Origin(("198.51.100.9", 77))
    pair.dialler.write([b"from elsewhere"])
    pair.run()
    assert b"".join(pair.far.inbox) == b"from elsewhere"
    assert pair.far.get_peer_address() == pair.near
    pair.far.write([b"found you"])
    pair.run()
    assert b"".join(pair.dialler.inbox) == b"found you"


def test_a_node_at_the_address_of_another_gets_nothing() -> None:
    """A datagram that is copied from elsewhere moves nothing for long: the new address must answer."""
    pair = Pair()
    pair.connect()
    pair.dialler.write([b"one"])
    copied = pair.dialler.datagrams_to_send(pair.now)[0][0]
    pair.far.receive_datagram(copied, Origin(("203.0.113.66", 666)), pair.now)
    pair.far.poll()
    pair.run(5.0)
    pair.dialler.write([b"two"])
    pair.run(5.0)
    assert pair.far.get_peer_address() == NEAR
    assert b"".join(pair.far.inbox) == b"onetwo"


def test_nobody_moves_before_the_handshake_is_done() -> None:
    """RFC 9000 section 9: who begins from its own address cannot end the handshake in another's name."""
    pair = Pair()
    pair.turn()
    pair.near = VICTIM
    pair.run()
    assert pair.dialler.secured  # it has sent all that ends the handshake
    assert not pair.far.secured
    assert pair.far.get_peer_address() == NEAR
    assert [path.addr for path in pair.far._network_paths] == [NEAR]
    pair.near = NEAR
    for _ in range(5000):  # until what was dropped is sent again
        pair.turn()
    pair.connect()


def test_a_member_that_moves_to_the_address_of_another_sends_it_little() -> None:
    """It says that all has arrived, which can be guessed, but cannot answer what it was asked over there."""
    pair = Pair()
    pair.connect(proven=False)
    pair.far.widen()  # large probes are due as well
    pair.far.write([bytes(MIB)] * 4)
    pair.dialler.write([b"from over there"])
    asked = sent = 0
    for _ in range(2000):
        pair.now += 0.005
        for data, _ in pair.due(pair.dialler):
            asked += len(data)
            pair.far.receive_datagram(data, VICTIM, pair.now)
        pair.far.poll()
        for data, origin in pair.due(pair.far):
            sent += len(data) if origin == VICTIM else 0
            pair.dialler.receive_datagram(data, FAR, pair.now)
        pair.dialler._network_paths[0].remote_challenges.clear()
        pair.dialler.poll()
        pair.dialler.consume(sum(map(len, pair.dialler.inbox)))
        pair.dialler.inbox.clear()
        assert sent <= 3 * asked
    assert sent


def test_a_member_that_never_stops_moving_costs_little_and_floods_nobody() -> None:
    """Each datagram comes in another's name: few addresses are kept, none is sent three times what came."""
    pair = Pair()
    pair.connect()
    pair.far.write([bytes(MIB)])
    asked: Counter[Origin] = Counter()
    sent: Counter[Origin] = Counter()
    for number in range(1000):
        pair.now += 0.005
        victim = Origin((f"203.0.113.{number % 250}", 1024 + number))
        pair.dialler.send_ping(number)
        for data, _ in pair.due(pair.dialler):
            asked[victim] += len(data)
            pair.far.receive_datagram(data, victim, pair.now)
        pair.far.poll()
        for data, origin in pair.due(pair.far):
            sent[origin] += len(data)
        assert len(pair.far._network_paths) <= 16
    assert len(asked) > 500
    assert all(sent[victim] <= 3 * asked[victim] for victim in asked)
    pair.dialler.write([b"back again"])
    pair.run(20.0)
    assert b"".join(pair.far.inbox) == b"back again"
    assert pair.far.get_peer_address() == NEAR


def test_before_the_address_is_known_little_is_sent() -> None:
    """RFC 9000 8.1: at most three times of what came, so nobody is flooded in another's name."""
    pair = Pair()
    pair.dialler.poll()
    hello = pair.dialler.datagrams_to_send(pair.now)[0][0]
    pair.to_listener(hello)
    for _ in range(3000):
        pair.now += 0.01
        at = pair.far.get_timer()
        if at is not None and at <= pair.now:
            pair.far.handle_timer(pair.now)
        pair.sent_down += sum(len(data) for data, _ in pair.far.datagrams_to_send(pair.now))
    assert 0 < pair.sent_down <= 3 * len(hello)


def test_when_busy_strangers_show_their_address_first() -> None:
    pair = Pair(busy=True)
    pair.run()
    assert len(pair.answers) == 1
    assert len(pair.answers[0]) < 200
    assert pair.dialler.secured
    pair.connect()


def test_a_token_of_another_address_is_worth_nothing() -> None:
    pair = Pair(busy=True)
    hello = pair.dialler.datagrams_to_send(pair.now)[0][0]
    retry = pair.reception.first(hello, NEAR, pair.now, busy=True)
    assert isinstance(retry, bytes)
    pair.dialler.receive_datagram(retry, Origin(("192.0.2.2", 2000)), pair.now)
    again = pair.dialler.datagrams_to_send(pair.now)[0][0]
    assert pair.reception.first(again, Origin(("203.0.113.66", 1)), pair.now, busy=True) is None
    assert isinstance(pair.reception.first(again, NEAR, pair.now, busy=True), tuple)


def test_what_is_no_greeting_makes_no_connection() -> None:
    hello = Pair().dialler.datagrams_to_send(1.0)[0][0]
    reception = Reception(LISTENER)
    other_version = hello[:1] + b"\x0a\x0a\x0a\x0a" + hello[5:]
    broken = hello[:300] + bytes([hello[300] ^ 1]) + hello[301:]
    assert reception.first(hello[:1199], NEAR, 1.0, busy=False) is None
    assert reception.first(bytes(1200), NEAR, 1.0, busy=False) is None
    assert reception.first(b"\x40" + hello[1:], NEAR, 1.0, busy=False) is None
    assert reception.first(broken, NEAR, 1.0, busy=False) is None
    answer = reception.first(other_version, NEAR, 1.0, busy=False)
    assert isinstance(answer, bytes)
    assert len(answer) < 60


def test_the_library_is_as_we_know_it() -> None:
    """Test what the engine replaces or reads inside the library; a release that renames it shows here."""
    engine = Pair().dialler
    for name in ("_write_connection_limits", "_write_stream_limits", "_on_max_stream_data_delivery"):
        assert hasattr(QuicConnection, name)
    assert isinstance(engine._local_max_data, Limit)
    for holder, names in (
        (engine, ("_loss", "_max_datagram_size", "_packet_number", "_close_event", "_flush_builder")),
        (engine._loss, ("_cc", "_pacer", "_pto_count")),
    ):
        for name in names:
            assert hasattr(holder, name)


def test_an_address_that_never_answers_gets_three_times_what_came_to_the_end_and_after_it() -> None:
    dialler = start_dialling(DIALLER, FAR, 1.0)
    hello = dialler.datagrams_to_send(1.0)[0][0]
    found = Reception(LISTENER).first(hello, VICTIM, 1.0, busy=False)
    assert found is not None and not isinstance(found, bytes)
    engine, now, sent = found[0], 1.0, 0
    while now < 15.0:
        sent += sum(len(data) for data, _ in engine.datagrams_to_send(now))
        now = max(now, engine.get_timer() or 15.0)
        if now < 15.0:
            engine.handle_timer(now)
    assert sent == 3 * len(hello)
    engine.close()
    sent += sum(len(data) for data, _ in engine.datagrams_to_send(now))
    assert sent <= 3 * len(hello)
