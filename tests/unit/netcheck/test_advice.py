"""Test what two networks allow, and why not: the same from both sides, and never without a reason."""

import pytest
from hypothesis import given
from meshd.netcheck.advice import Likelihood, advise, nat_class, outlook, reachability, why_not_direct
from meshd.wire.netfacts import Filtering, Mapped, Mapping, NetFacts, Ports, Tcp, TriState, Udp

from tests.unit.wire.test_netfacts import FACTS


def _nat(
    mapping: Mapping = Mapping.INDEPENDENT,
    filtering: Filtering = Filtering.ADDRESS_PORT,
    ports: Ports = Ports.PRESERVED,
    tcp_mapping: Mapping | None = None,
) -> NetFacts:
    return NetFacts(
        udp=Udp.WORKS,
        mapping=mapping,
        filtering=filtering,
        ports=ports,
        tcp=Tcp.WORKS,
        tcp_mapping=mapping if tcp_mapping is None else tcp_mapping,
    )


PUBLIC = _nat(Mapping.NONE, Filtering.INDEPENDENT)
CONE = _nat(filtering=Filtering.INDEPENDENT)
RESTRICTED = _nat(filtering=Filtering.ADDRESS)
PORT_RESTRICTED = _nat()
RANDOM = _nat(Mapping.ADDRESS_PORT, ports=Ports.RANDOM)
COUNTING = _nat(Mapping.ADDRESS_PORT, ports=Ports.COUNTING)
NO_UDP = NetFacts(udp=Udp.BLOCKED, tcp=Tcp.WORKS, tcp_mapping=Mapping.INDEPENDENT)
ONLY_443 = NetFacts(udp=Udp.BLOCKED, tcp=Tcp.ONLY_443)


@pytest.mark.parametrize(
    ("a", "b", "udp"),
    [
        (PORT_RESTRICTED, PORT_RESTRICTED, Likelihood.YES),
        (RANDOM, CONE, Likelihood.YES),
        (RANDOM, RESTRICTED, Likelihood.YES),
        (RANDOM, PORT_RESTRICTED, Likelihood.HARD),
        (COUNTING, PORT_RESTRICTED, Likelihood.HARD),
        (RANDOM, RANDOM, Likelihood.NO),
        (RANDOM, COUNTING, Likelihood.NO),
        (COUNTING, COUNTING, Likelihood.HARD),
        (RANDOM, PUBLIC, Likelihood.YES),
        (NO_UDP, PUBLIC, Likelihood.NO),
        (NetFacts(), PORT_RESTRICTED, Likelihood.MAYBE),
    ],
)
def test_udp(a: NetFacts, b: NetFacts, udp: Likelihood) -> None:
    assert reachability(a, b).udp is udp and reachability(b, a).udp is udp


@pytest.mark.parametrize(
    ("a", "b", "tcp"),
    [
        (NO_UDP, PORT_RESTRICTED, Likelihood.YES),
        (NO_UDP, NO_UDP, Likelihood.YES),
        (NO_UDP, RANDOM, Likelihood.HARD),
        (RANDOM, RANDOM, Likelihood.NO),
        (ONLY_443, PORT_RESTRICTED, Likelihood.NO),
        (NetFacts(), PORT_RESTRICTED, Likelihood.MAYBE),
        (RANDOM, NetFacts(mapped=Mapped.YES), Likelihood.YES),
    ],
)
def test_tcp(a: NetFacts, b: NetFacts, tcp: Likelihood) -> None:
    assert reachability(a, b).tcp is tcp and reachability(b, a).tcp is tcp


@given(FACTS, FACTS)
def test_ways_are_the_same_from_both_sides(a: NetFacts, b: NetFacts) -> None:
    assert reachability(a, b) == reachability(b, a)


@given(FACTS, FACTS)
def test_there_is_always_one_sentence(a: NetFacts, b: NetFacts) -> None:
    for theirs in (b, None):
        for error in ("", "timeout"):
            text = why_not_direct(a, theirs, last_error=error)
            assert text and text[0].islower() and not text.endswith(".") and "\n" not in text
    for text in (outlook(a), nat_class(a)):
        assert text and not text.endswith(".")
    for one in advise(a, servers=("stun.example:3478",)):
        assert one.what and not one.what.endswith(".") and one.code


def test_servers_that_were_named_are_not_asked_for() -> None:
    two = ("a.example:3478", "b.example:3478")
    assert "2 of the 2 servers could not be resolved" in outlook(NetFacts(), servers=two, unresolved=two)
    assert "fewer came" in outlook(NetFacts(), servers=two)
    assert "give at least two" in outlook(NetFacts(), servers=two[:1])
    assert "no STUN server is asked" in outlook(NetFacts(), servers=())


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (RANDOM, RANDOM, "no port can be predicted"),
        (ONLY_443, PORT_RESTRICTED, "this node's network allows only TCP to port 443"),
        (PORT_RESTRICTED, ONLY_443, "the peer's network allows only TCP to port 443"),
        (NO_UDP, _nat(tcp_mapping=Mapping.UNKNOWN), "this node's network blocks UDP"),
        (
            NetFacts(udp=Udp.BLOCKED, tcp=Tcp.WORKS, tcp_mapping=Mapping.ADDRESS_PORT),
            RANDOM,
            "allow no incoming TCP",
        ),
        (
            RANDOM,
            PORT_RESTRICTED,
            "this node is behind a NAT that uses a different port for each destination",
        ),
        (PORT_RESTRICTED, RANDOM, "the peer is behind a NAT that uses"),
        (NetFacts(tcp=Tcp.INTERCEPTED), None, "log in"),
        (PORT_RESTRICTED, None, "the peer has not reported"),
        (PORT_RESTRICTED, PORT_RESTRICTED, "both networks allow a direct path"),
    ],
)
def test_the_reason(mine: NetFacts, theirs: NetFacts | None, words: str) -> None:
    assert words in why_not_direct(mine, theirs)


def test_one_nat_that_leads_nobody_back() -> None:
    here = NetFacts(
        udp=Udp.WORKS, mapping=Mapping.INDEPENDENT, filtering=Filtering.ADDRESS_PORT, public_v4="20.1.0.2"
    )
    assert "20.1.0.2" in why_not_direct(here, here)


def test_the_last_error_is_told_where_the_networks_are_not_to_blame() -> None:
    assert why_not_direct(PORT_RESTRICTED, CONE, last_error="no answer").endswith("no answer")
    assert "no answer" not in why_not_direct(RANDOM, RANDOM, last_error="no answer")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (PUBLIC, "none (public address)"),
        (_nat(Mapping.NONE), "none, but a firewall"),
        (CONE, "full cone"),
        (RESTRICTED, "address-restricted"),
        (PORT_RESTRICTED, "port-restricted"),
        (_nat(filtering=Filtering.UNKNOWN), "endpoint-independent"),
        (RANDOM, "symmetric, random"),
        (COUNTING, "symmetric, counting"),
        (NO_UDP, "UDP blocked"),
        (NetFacts(), "unknown"),
    ],
)
def test_the_class_in_words(facts: NetFacts, words: str) -> None:
    assert nat_class(facts) == words


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        (PUBLIC, ()),
        (PORT_RESTRICTED, ()),
        (RANDOM, ("symmetric",)),
        (ONLY_443, ("only_443",)),
        (NO_UDP, ("udp_blocked",)),
        (NetFacts(), ("offline",)),
        (NetFacts(tcp=Tcp.INTERCEPTED, hairpin=TriState.NO), ("captive",)),
        (_nat(Mapping.NONE), ("firewall",)),
        (NetFacts(udp=Udp.WORKS, mapping=Mapping.INDEPENDENT, mapped=Mapped.NO), ("not_mapped",)),
        (NetFacts(udp=Udp.WORKS, mapped=Mapped.BEHIND_NAT, carrier_nat=True), ("carrier_nat",)),
    ],
)
def test_what_is_wrong(facts: NetFacts, codes: tuple[str, ...]) -> None:
    assert tuple(one.code for one in advise(facts, servers=("stun.example:3478",))) == codes


def test_dns_is_named_only_if_no_name_was_resolved() -> None:
    servers = ("a.example:3478", "b.example:3478")
    by_unresolved = {
        count: next(
            one
            for one in advise(NetFacts(), servers=servers, unresolved=servers[:count])
            if one.code == "offline"
        )
        for count in range(3)
    }
    assert {count: "DNS" in found.hint for count, found in by_unresolved.items()} == {
        0: False,
        1: False,
        2: True,
    }


def test_servers_that_are_missing() -> None:
    assert [one.code for one in advise(PUBLIC, servers=())] == ["no_servers"]
    found = advise(NO_UDP, servers=("a:1", "b:2"), unresolved=("a:1",))
    assert [one.code for one in found] == ["unresolved", "udp_blocked"] and "a:1" in found[0].what


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (NetFacts(udp=Udp.WORKS, mapped=Mapped.YES), "through the port that the router maps"),
        (NetFacts(udp=Udp.BLOCKED, tcp=Tcp.ONLY_443), "that listen on TCP port 443"),
        (
            NetFacts(udp=Udp.BLOCKED, tcp=Tcp.WORKS, tcp_mapping=Mapping.INDEPENDENT),
            "over TCP those whose NAT is not symmetric",
        ),
        (NetFacts(udp=Udp.BLOCKED), "others through a relay"),
        (NetFacts(udp=Udp.WORKS, mapping=Mapping.NONE, filtering=Filtering.ADDRESS_PORT), "hole punching"),
    ],
)
def test_whom_a_node_may_reach_directly(facts: NetFacts, words: str) -> None:
    assert words in outlook(facts)
