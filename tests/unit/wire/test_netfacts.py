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
