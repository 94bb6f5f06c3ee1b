"""Which pairs of networks are left alone."""

from dataclasses import replace

import pytest
from meshd.link.punch import worth_trying
from meshd.wire.netfacts import Mapping, NetFacts, Tcp, TriState

HOME = NetFacts(tcp=Tcp.WORKS, tcp_mapping=Mapping.INDEPENDENT, public_v4="20.1.0.2")
OFFICE = replace(HOME, tcp_mapping=Mapping.ADDRESS_PORT, public_v4="20.2.0.2")
PUBLIC = replace(HOME, tcp_mapping=Mapping.NONE, public_v4="20.3.0.2")
UNKNOWN = NetFacts()


@pytest.mark.parametrize(
    ("one", "two", "worth"),
    [
        (HOME, replace(HOME, public_v4="20.9.0.2"), True),
        (HOME, OFFICE, False),
        (HOME, replace(OFFICE, tcp_mapping=Mapping.DEPENDENT), False),
        (OFFICE, replace(OFFICE, public_v4="20.9.0.2"), False),
        (OFFICE, OFFICE, True),  # one LAN, perhaps
        (OFFICE, PUBLIC, True),
        (HOME, PUBLIC, True),
        (OFFICE, UNKNOWN, True),
        (HOME, None, True),
        (replace(HOME, ipv6=TriState.YES), replace(OFFICE, ipv6=TriState.YES), True),
        (replace(HOME, ipv6=TriState.YES), OFFICE, False),
        (HOME, replace(PUBLIC, tcp=Tcp.ONLY_443), False),
        (PUBLIC, replace(HOME, tcp=Tcp.BLOCKED), False),
        (PUBLIC, replace(HOME, tcp=Tcp.INTERCEPTED), True),
    ],
)
def test_pairs(one: NetFacts, two: NetFacts | None, worth: bool) -> None:
    assert worth_trying(one, two) is worth_trying(two, one) is worth
