"""Who opens and who tries, which ports, how fast and how often."""

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import KeyPair, PeerId
from meshd.link.port_prediction.plan import (
    FIRST_PORT,
    GUESSES,
    LAST_PORT,
    MOST_PROBES,
    NEAR,
    OPEN_COUNTING,
    PROBES_A_SECOND,
    Part,
    Patience,
    due,
    part,
    ports_to_open,
    ports_to_try,
)
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, Udp
from meshd.wire.signal import MAX_OPEN, OpenedPorts
from meshd.wire.stun import Endpoint

SYMMETRIC = NetFacts(
    udp=Udp.WORKS,
    mapping=Mapping.ADDRESS_PORT,
    filtering=Filtering.ADDRESS_PORT,
    ports=Ports.RANDOM,
    public_v4="20.1.0.2",
)
RESTRICTED = NetFacts(
    udp=Udp.WORKS, mapping=Mapping.INDEPENDENT, filtering=Filtering.ADDRESS_PORT, public_v4="20.2.0.2"
)
PEER, OTHER = (KeyPair.from_seed(bytes([n]) * 32).peer for n in (1, 2))


def changed(facts: NetFacts, **values: object) -> NetFacts:
    from dataclasses import replace

    return replace(facts, **values)  # type: ignore[arg-type]


def test_the_one_side_opens_and_the_other_tries() -> None:
    assert part(SYMMETRIC, RESTRICTED) is Part.OPENS
    assert part(RESTRICTED, SYMMETRIC) is Part.PROBES
    for mapping in (Mapping.ADDRESS, Mapping.DEPENDENT):
        assert part(changed(SYMMETRIC, mapping=mapping), RESTRICTED) is Part.OPENS
    assert part(SYMMETRIC, changed(RESTRICTED, filtering=Filtering.UNKNOWN)) is Part.OPENS


@pytest.mark.parametrize(
    "theirs",
    [
        SYMMETRIC,
        NetFacts(),
        changed(RESTRICTED, filtering=Filtering.INDEPENDENT),
        changed(RESTRICTED, filtering=Filtering.ADDRESS),
        changed(RESTRICTED, mapping=Mapping.NONE),
        changed(RESTRICTED, mapping=Mapping.UNKNOWN),
        changed(RESTRICTED, udp=Udp.BLOCKED),
        changed(RESTRICTED, udp=Udp.UNKNOWN),
        changed(RESTRICTED, public_v4=SYMMETRIC.public_v4),
    ],
)
def test_pairs_that_want_no_search(theirs: NetFacts) -> None:
    assert part(SYMMETRIC, theirs) is None
    assert part(theirs, SYMMETRIC) is None


def test_two_with_one_port_each_need_no_search() -> None:
    assert part(RESTRICTED, RESTRICTED) is None


def test_a_nat_that_counts_needs_few_ports() -> None:
    assert ports_to_open(changed(SYMMETRIC, ports=Ports.COUNTING, udp_step=-2)) == (OPEN_COUNTING, -2)
    assert ports_to_open(changed(SYMMETRIC, ports=Ports.COUNTING)) == (MAX_OPEN, 0)
    assert ports_to_open(SYMMETRIC) == (MAX_OPEN, 0)


def opened(port: int = 40_000, *, step: int = 0) -> OpenedPorts:
    return OpenedPorts(attempt=bytes(16), seen=Endpoint("20.1.0.2", port), step=step, count=256)


@given(seed=st.integers(0, 2**64 - 1), step=st.integers(-127, 127), port=st.integers(1, 65535))
def test_what_is_tried_is_bounded_and_in_range(seed: int, step: int, port: int) -> None:
    tried = list(ports_to_try(opened(port, step=step), seed))
    assert len(tried) == MOST_PROBES
    assert min(tried) >= FIRST_PORT
    assert max(tried) <= LAST_PORT
    assert all(tried.count(port) <= 2 for port in tried[:: MOST_PROBES // 50])


def test_guesses_come_first_and_twice() -> None:
    tried = list(ports_to_try(opened(40_000, step=3), 1))
    assert tried[:GUESSES] == tried[GUESSES : 2 * GUESSES] == [40_000 + 3 * n for n in range(1, GUESSES + 1)]
    assert not set(tried[:GUESSES]) & set(tried[2 * GUESSES :])


def test_guesses_beyond_the_last_port_are_left_out() -> None:
    tried = list(ports_to_try(opened(LAST_PORT - 2, step=1), 1))
    assert tried[:4] == [LAST_PORT - 1, LAST_PORT, LAST_PORT - 1, LAST_PORT]


@given(seed=st.integers(0, 2**64 - 1))
def test_no_port_is_tried_twice(seed: int) -> None:
    tried = list(ports_to_try(opened(), seed))
    assert len(set(tried)) == len(tried) == MOST_PROBES


def test_ports_near_the_one_that_was_seen_come_first() -> None:
    tried = list(ports_to_try(opened(40_000), 0x9E3779B97F4A7C15))
    assert sorted(tried[: 2 * NEAR]) == list(range(40_000 - NEAR, 40_000 + NEAR))
    assert tried[: 2 * NEAR] != sorted(tried[: 2 * NEAR])
    far = tried[2 * NEAR :]
    assert max(far) - min(far) > 50_000
    assert not set(far) & set(tried[: 2 * NEAR])
    for port in (1, 500, 65_535):
        edge = list(ports_to_try(opened(port), 7))
        assert len(set(edge)) == MOST_PROBES


def test_a_search_ends_as_often_as_the_odds_say() -> None:
    """Half within 174 tries, nearly all within the limit."""
    rng = random.Random(5)
    needed = []
    for _ in range(400):
        there = set(rng.sample(range(FIRST_PORT, LAST_PORT + 1), MAX_OPEN))
        ports = ports_to_try(opened(), rng.getrandbits(64))
        needed.append(next((at for at, port in enumerate(ports, 1) if port in there), MOST_PROBES + 1))
    assert 130 < statistics.median(needed) < 230
    assert sum(count > MOST_PROBES for count in needed) <= 4


def test_no_more_than_so_many_a_second() -> None:
    assert due(0.0) == 1
    assert due(0.5) == PROBES_A_SECOND // 2 + 1
    assert due(1000.0) == MOST_PROBES
    assert all(two >= one for one, two in itertools.pairwise(due(t / 10) for t in range(50)))


def test_a_search_in_vain_is_not_repeated_soon() -> None:
    patience = Patience()
    assert patience.wait(PEER, 0.0) == 0.0
    waits = []
    now = 0.0
    for _ in range(8):
        patience.failed(PEER, now)
        waits.append(patience.wait(PEER, now))
        now += waits[-1]
        assert patience.wait(PEER, now) == 0.0
    assert waits[0] >= 40.0
    assert waits == sorted(waits)
    assert waits[-1] <= 3600.0
    assert patience.wait(OTHER, now) == 0.0
    patience.failed(PEER, now)
    patience.forget(PEER)
    assert patience.wait(PEER, now) == 0.0
    patience.failed(OTHER, now)
    patience.forget()
    assert patience.wait(OTHER, now) == 0.0


def test_few_peers_are_remembered() -> None:
    patience = Patience()
    peers = [PeerId(number.to_bytes(32, "big")) for number in range(300)]
    for peer in peers:
        patience.failed(peer, 0.0)
    assert [patience.wait(peer, 0.0) > 0 for peer in peers] == [False] * 44 + [True] * 256
