"""The tables of transports and kinds: complete, and right beside each other."""

import pytest
from meshd.link.interface import KINDS, TRANSPORTS, LinkKind, Rank, Transport


def test_every_transport_and_every_kind_has_its_row_in_order() -> None:
    assert list(TRANSPORTS) == list(Transport)
    assert set(KINDS) == set(LinkKind) == {traits.kind for traits in TRANSPORTS.values()}


def test_no_two_are_called_alike() -> None:
    assert len({traits.words for traits in TRANSPORTS.values()}) == len(Transport)


def test_what_dials_addresses_needs_no_signals_and_is_called_as_its_kind() -> None:
    by_address = {name: traits for name, traits in TRANSPORTS.items() if traits.proto is not None}
    assert (by_address[Transport.TCP].proto, by_address[Transport.QUIC].proto) == ("tcp", "udp")
    for name, traits in by_address.items():
        assert not traits.needs_signals
        assert traits.kind.value == name.value


def test_what_carries_without_detours_comes_before_what_does_not() -> None:
    ranks = {kind: traits.rank for kind, traits in KINDS.items()}
    assert ranks[LinkKind.TCP] < ranks[LinkKind.QUIC] == ranks[LinkKind.WEBRTC] < ranks[LinkKind.RELAY]
    assert Rank.PASSING not in ranks.values()


@pytest.mark.parametrize("name", Transport)
def test_a_spare_is_later_than_what_it_is_a_spare_to(name: Transport) -> None:
    traits = TRANSPORTS[name]
    if traits.spare_to is not None:
        assert traits.delay > TRANSPORTS[traits.spare_to].delay
