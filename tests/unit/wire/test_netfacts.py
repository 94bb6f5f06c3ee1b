"""Network facts survive their ten bytes; anything else is refused or read as unknown."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.netfacts import (
    FACTS_BYTES,
    Filtering,
    Mapped,
    Mapping,
    NetFacts,
    Ports,
    Tcp,
    TriState,
    Udp,
)

STEPS = st.integers(-127, 127)
FACTS = st.builds(
    NetFacts,
    udp=st.sampled_from(Udp),
    mapping=st.sampled_from(Mapping),
    filtering=st.sampled_from(Filtering),
    ports=st.sampled_from(Ports),
    udp_step=STEPS,
    tcp=st.sampled_from(Tcp),
    tcp_mapping=st.sampled_from(Mapping),
    tcp_ports=st.sampled_from(Ports),
    tcp_step=STEPS,
    ipv6=st.sampled_from(TriState),
    hairpin=st.sampled_from(TriState),
    mapped=st.sampled_from(Mapped),
    carrier_nat=st.booleans(),
    public_v4=st.just("")
    | st.integers(1, (1 << 32) - 1).map(lambda number: str(ipaddress.IPv4Address(number))),
)


@given(FACTS)
def test_what_is_written_is_read(facts: NetFacts) -> None:
    assert len(facts.to_bytes()) == FACTS_BYTES
    assert NetFacts.from_bytes(facts.to_bytes()) == facts
    assert NetFacts.from_text(facts.to_text()) == facts


@given(FACTS, st.binary(max_size=6))
def test_a_later_version_may_say_more(facts: NetFacts, more: bytes) -> None:
    assert NetFacts.from_bytes(facts.to_bytes() + more) == facts


@given(st.binary(max_size=20))
def test_any_bytes_are_facts_or_refused(data: bytes) -> None:
    try:
        facts = NetFacts.from_bytes(data)
    except RemoteProtocolError:
        assert not 10 <= len(data) <= 16 or data[0] < 16
    else:
        assert NetFacts.from_bytes(facts.to_bytes()) == facts


@pytest.mark.parametrize("text", ["", "zz", "00" * 10, "10" * 9, "10" * 17, "ä" * 20])
def test_text_that_is_no_facts(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        NetFacts.from_text(text)


def test_a_value_of_a_later_version_is_unknown() -> None:
    data = bytearray(NetFacts().to_bytes())
    data[1] = 7 << 5 | 7 << 2  # a mapping and a filtering that are not there yet
    facts = NetFacts.from_bytes(bytes(data))
    assert facts.mapping is Mapping.UNKNOWN and facts.filtering is Filtering.UNKNOWN


def test_a_step_that_does_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        NetFacts(udp_step=128)


@pytest.mark.parametrize("mapping", Mapping)
def test_a_port_that_depends_on_the_peer_is_symmetric(mapping: Mapping) -> None:
    depends = mapping in (Mapping.ADDRESS, Mapping.ADDRESS_PORT, Mapping.DEPENDENT)
    assert NetFacts(mapping=mapping).symmetric == NetFacts(tcp_mapping=mapping).tcp_symmetric == depends
    assert not NetFacts(mapping=mapping).tcp_symmetric and not NetFacts(tcp_mapping=mapping).symmetric
    for filtering in Filtering:
        public = mapping is Mapping.NONE and filtering is Filtering.INDEPENDENT
        assert NetFacts(mapping=mapping, filtering=filtering).public == public


@pytest.mark.parametrize("step", [-127, 0, 127])
def test_steps_fit_in_a_byte(step: int) -> None:
    facts = NetFacts(udp_step=step, tcp_step=-step)
    assert NetFacts.from_bytes(facts.to_bytes()) == facts
    for wrong in (-128, 128):
        with pytest.raises(LocalProtocolError):
            NetFacts(udp_step=wrong)
        with pytest.raises(LocalProtocolError):
            NetFacts(tcp_step=wrong)


def test_its_bytes_are_as_documented() -> None:
    facts = NetFacts(
        udp=Udp(1),
        hairpin=TriState(2),
        mapping=Mapping(3),
        filtering=Filtering(2),
        ipv6=TriState(1),
        tcp_mapping=Mapping(2),
        ports=Ports(1),
        tcp_ports=Ports(2),
        carrier_nat=True,
        tcp=Tcp(2),
        mapped=Mapped(1),
        udp_step=-1,
        tcp_step=5,
        public_v4="20.1.0.2",
    )
    assert facts.to_bytes() == bytes(
        [1 << 4 | 1 << 2 | 2, 3 << 5 | 2 << 2 | 1, 2 << 5 | 1 << 3 | 2 << 1 | 1, 2 << 5 | 1 << 3, 255, 5]
    ) + bytes([20, 1, 0, 2])
