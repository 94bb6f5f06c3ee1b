"""Classes of NATs from what servers saw: every kind on paper, half-blind servers, and contradictions."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.netcheck.classify import classify, filtering_of, mapping_of, ports_of, tcp_of
from meshd.netcheck.interface import ConnectionFacts, FilterTest, Observations, Outcome, Seen
from meshd.wire.netfacts import Filtering, Mapped, Mapping, Ports, Tcp, TriState, Udp
from meshd.wire.stun import Endpoint

from tests.unit.netcheck.nats import (
    LAN,
    OUTSIDE,
    SERVERS,
    Key,
    PaperNat,
    Pick,
    by_address,
    by_place,
    no_matter_where,
    observed,
)


def _kept(port: int, _number: int) -> int:
    return port


def _counted(_port: int, number: int) -> int:
    return 40000 + number


def _other(port: int, _number: int) -> int:
    return port ^ 0x4AAA


def _random(_port: int, number: int) -> int:
    return random.Random(number).randrange(1024, 65536)


@pytest.mark.parametrize(
    ("key", "mapping"),
    [(no_matter_where, Mapping.INDEPENDENT), (by_address, Mapping.ADDRESS), (by_place, Mapping.ADDRESS_PORT)],
)
@pytest.mark.parametrize("port", [_counted, _random])
def test_mapping_by_a_server_with_two_addresses(key: Key, mapping: Mapping, port: Pick) -> None:
    assert mapping_of(observed(PaperNat(key, port).sees)) is mapping


@pytest.mark.parametrize("key", [by_address, by_place])
def test_two_servers_with_one_address_each_tell_that_it_depends(key: Key) -> None:
    two = (SERVERS[0], SERVERS[2])
    assert mapping_of(observed(PaperNat(key, _counted).sees, servers=two)) is Mapping.DEPENDENT
    assert mapping_of(observed(PaperNat(no_matter_where, _counted).sees, servers=two)) is Mapping.INDEPENDENT


def test_one_server_tells_nothing_of_the_mapping() -> None:
    seen = observed(PaperNat(no_matter_where, _kept).sees, servers=SERVERS[:1])
    assert mapping_of(seen) is Mapping.UNKNOWN
    assert mapping_of(observed(PaperNat(by_address, _other).sees, servers=SERVERS[:2])) is Mapping.UNKNOWN
    assert mapping_of(()) is Mapping.UNKNOWN


def test_no_nat() -> None:
    seen = observed(lambda local, _remote: local, host=OUTSIDE)
    facts = classify(Observations(hosts=(OUTSIDE,), udp_asked=4, udp=seen))
    assert facts.mapping is Mapping.NONE and facts.public_v4 == OUTSIDE and facts.udp is Udp.WORKS
    assert not facts.carrier_nat and facts.ports is Ports.PRESERVED


@pytest.mark.parametrize(
    ("port", "ports", "step"),
    [
        (_kept, Ports.PRESERVED, 0),
        (_counted, Ports.COUNTING, 1),
        (lambda _port, number: 50000 - 2 * number, Ports.COUNTING, -2),
        (_random, Ports.RANDOM, 0),
        (_other, Ports.RANDOM, 0),
    ],
)
def test_which_ports_are_picked(port: Pick, ports: Ports, step: int) -> None:
    assert ports_of(observed(PaperNat(by_place, port).sees)) == (ports, step)


def test_a_nat_that_counts_may_begin_anew_and_skip_what_others_took() -> None:
    ports = [65533, 65534, 65535, 1024, 1025, 1027]
    found = ports_of(observed(PaperNat(by_place, lambda _port, number: ports[number]).sees, sockets=1)[:4])
    assert found == (Ports.COUNTING, 1)
    whole = observed(PaperNat(by_place, lambda _port, number: ports[number % 6]).sees, sockets=2)[:6]
    assert ports_of(whole) == (Ports.COUNTING, 1)


def test_few_ports_tell_nothing() -> None:
    assert ports_of(observed(PaperNat(no_matter_where, _other).sees, sockets=2)) == (Ports.UNKNOWN, 0)


def test_filtering() -> None:
    def test(elsewhere: bool, port: bool, works: bool = True) -> FilterTest:
        return FilterTest(elsewhere, port, works)

    assert filtering_of([]) is Filtering.UNKNOWN
    assert filtering_of([test(False, False, False)]) is Filtering.UNKNOWN, "a server that promises too much"
    assert filtering_of([test(False, False)]) is Filtering.ADDRESS_PORT
    assert filtering_of([test(False, True)]) is Filtering.ADDRESS
    assert filtering_of([test(False, False), test(True, True)]) is Filtering.INDEPENDENT


def _tried(*tried: tuple[int, Outcome]) -> tuple[ConnectionFacts, ...]:
    return tuple(ConnectionFacts(Endpoint("20.9.0.2", port), outcome) for port, outcome in tried)


@pytest.mark.parametrize(
    ("tried", "udp", "tcp"),
    [
        ((), Udp.WORKS, Tcp.UNKNOWN),
        (((3478, Outcome.OK),), Udp.UNKNOWN, Tcp.WORKS),
        (((3478, Outcome.MUTE),), Udp.UNKNOWN, Tcp.WORKS),
        (((3478, Outcome.SILENT), (443, Outcome.OK)), Udp.BLOCKED, Tcp.ONLY_443),
        (((3478, Outcome.REFUSED), (443, Outcome.OK)), Udp.WORKS, Tcp.UNKNOWN),
        (((443, Outcome.OK),), Udp.WORKS, Tcp.UNKNOWN),
        (((3478, Outcome.SILENT),), Udp.WORKS, Tcp.BLOCKED),
        (((3478, Outcome.SILENT),), Udp.UNKNOWN, Tcp.UNKNOWN),
        (((3478, Outcome.REFUSED),), Udp.WORKS, Tcp.UNKNOWN),
        (((3478, Outcome.ODD), (443, Outcome.OK)), Udp.UNKNOWN, Tcp.INTERCEPTED),
    ],
)
def test_tcp(tried: tuple[tuple[int, Outcome], ...], udp: Udp, tcp: Tcp) -> None:
    assert tcp_of(_tried(*tried), udp) is tcp


def test_udp_is_blocked_only_where_the_network_is_up() -> None:
    silent = Observations(udp_asked=2)
    assert classify(silent).udp is Udp.UNKNOWN
    dead = Observations(udp_asked=2, connections=_tried((443, Outcome.SILENT)))
    assert classify(dead).udp is Udp.UNKNOWN
    up = Observations(udp_asked=2, connections=_tried((443, Outcome.REFUSED)))
    assert classify(up).udp is Udp.BLOCKED


def test_a_server_inside_the_site_says_nothing_about_the_nat() -> None:
    nat = PaperNat(by_place, _counted)
    near = Endpoint("192.168.1.1", 3478)

    def sees(local: Endpoint, remote: Endpoint) -> Endpoint:
        return local if remote == near else nat.sees(local, remote)

    facts = classify(Observations(udp_asked=5, udp=observed(sees, servers=(near, *SERVERS))))
    assert facts.mapping is Mapping.ADDRESS_PORT and facts.public_v4 == OUTSIDE
    alone = classify(Observations(udp_asked=1, udp=observed(sees, servers=(near,))))
    assert alone.mapping is Mapping.NONE and alone.public_v4 == ""


@pytest.mark.parametrize(
    ("seen", "carrier"),
    [
        (Observations(hosts=("100.64.0.7",)), True),
        (Observations(router_external="100.70.1.1"), True),
        (Observations(mapped=Mapped.BEHIND_NAT, router_external="192.168.0.5"), True),
        (Observations(hosts=(LAN,), router_external="20.5.0.2"), False),
    ],
)
def test_a_carriers_nat(seen: Observations, carrier: bool) -> None:
    assert classify(seen).carrier_nat == carrier


def test_two_outer_addresses_are_two_nats() -> None:
    seen = observed(PaperNat(no_matter_where, _kept).sees)
    assert not classify(Observations(udp=seen, router_external=OUTSIDE)).carrier_nat
    assert classify(Observations(udp=seen, router_external="20.5.0.2")).carrier_nat


def test_ipv6() -> None:
    server = Endpoint("2001:db8::1", 3478)
    host = "2a0e:1::2"
    seen = (Seen(0, 0.0, Endpoint(host, 1), server, Endpoint(host, 1)),)
    assert classify(Observations(hosts=(host,), v6_asked=1, udp=seen)).ipv6 is TriState.YES
    assert classify(Observations(hosts=(host,), v6_asked=1)).ipv6 is TriState.NO
    assert classify(Observations(hosts=(host,))).ipv6 is TriState.UNKNOWN
    assert classify(Observations(hosts=(LAN, "fd00::5"))).ipv6 is TriState.NO
    assert classify(Observations(hosts=(host,), v6_asked=1, udp=seen)).mapping is Mapping.UNKNOWN


ENDPOINTS = st.builds(
    Endpoint,
    st.sampled_from(["192.168.1.1", "20.1.1.1", "20.1.1.2", "100.64.1.1", "2001:db8::1", "10.0.0.1"]),
    st.integers(1, 65535),
)
SEEN = st.builds(Seen, st.integers(0, 5), st.floats(0, 100), ENDPOINTS, ENDPOINTS, ENDPOINTS)
OBSERVED = st.builds(
    Observations,
    hosts=st.lists(st.sampled_from(["192.168.1.1", "100.64.0.1", "fd00::1", "2a0e::1"])).map(tuple),
    udp_asked=st.integers(0, 9),
    udp=st.lists(SEEN, max_size=20).map(tuple),
    filters=st.lists(st.builds(FilterTest, st.booleans(), st.booleans(), st.booleans())).map(tuple),
    connections=st.lists(st.builds(ConnectionFacts, ENDPOINTS, st.sampled_from(Outcome))).map(tuple),
    tcp=st.lists(SEEN, max_size=20).map(tuple),
    v6_asked=st.integers(0, 2),
    hairpin=st.sampled_from([None, True, False]),
    mapped=st.sampled_from(Mapped),
    router_external=st.sampled_from(["", "20.1.1.1", "100.64.0.1"]),
)


@given(OBSERVED)
def test_contradictions_make_some_facts_that_fit_on_the_wire(seen: Observations) -> None:
    facts = classify(seen)
    assert len(facts.to_bytes()) == 10
    if facts.udp is Udp.BLOCKED:
        assert not seen.udp


@given(st.randoms(), st.sampled_from([no_matter_where, by_place]))
def test_the_order_of_answers_does_not_change_the_mapping(rng: random.Random, key: Key) -> None:
    seen = list(observed(PaperNat(key, _random).sees))
    right = mapping_of(seen)
    rng.shuffle(seen)
    assert mapping_of(seen) is right
