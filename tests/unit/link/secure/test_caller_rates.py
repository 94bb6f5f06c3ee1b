"""Who has called too often: counted for the key that was proven, and for the address that proves nothing."""

from meshd.base.peer_limits import (
    CALLERS_PLACES,
    CALLERS_PLACES_OF_PEER,
    CALLS,
    CALLS_FAILED,
    CALLS_FAILED_KNOWN,
)
from meshd.identity.keys import PeerId
from meshd.link.secure.caller_rates import KNOWN_SECONDS, MOST_ADDRESSES, Callers

PEER, OTHER = PeerId(bytes(32)), PeerId(bytes(31) + b"\1")


def test_a_member_may_come_again_and_again_but_not_for_ever() -> None:
    callers, burst = Callers(), int(CALLS.burst)
    assert [callers.came(PEER, 0.0) for _ in range(burst + 3)] == [True] * burst + [False] * 3
    assert callers.refusal_reason(PEER, 0.0) and not callers.came(PEER, 0.0)
    assert callers.refusal_reason(OTHER, 0.0) is None
    assert callers.refusal_reason(PEER, 1 / CALLS.per_second) is None


def test_to_name_a_key_uses_up_nothing_of_it() -> None:
    callers = Callers()
    for _ in range(10_000):
        assert callers.refusal_reason(PEER, 0.0) is None


def test_an_address_that_proves_nothing_is_not_listened_to_for_a_moment() -> None:
    callers = Callers()
    for _ in range(int(CALLS_FAILED.burst)):
        assert callers.hears("192.0.2.1", 0.0)
        callers.failed("192.0.2.1", 0.0)
    assert not callers.hears("192.0.2.1", 0.0)
    assert callers.hears("192.0.2.2", 0.0)
    assert callers.hears("192.0.2.1", 1 / CALLS_FAILED.per_second)


def test_an_ipv6_host_is_its_whole_network() -> None:
    callers = Callers()
    for number in range(int(CALLS_FAILED.burst)):
        callers.failed(f"2001:db8::{number:x}", 0.0)
    assert not callers.hears("2001:db8::ffff:1", 0.0)
    assert callers.hears("2001:db8:0:1::1", 0.0)


def test_few_addresses_are_remembered() -> None:
    callers = Callers()
    _flood(callers, "192.0.2.1")
    for number in range(MOST_ADDRESSES):
        assert not callers.hears("192.0.2.1", 0.0)
        callers.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert callers.hears("192.0.2.1", 0.0)


def _flood(callers: Callers, host: str, port: int = 0) -> None:
    for _ in range(1000):
        callers.failed(host, 0.0, port)


def test_where_a_member_was_its_udp_port_is_heard_however_many_others_fail() -> None:
    callers = Callers()
    callers.proven_at(PEER, "192.0.2.1", 0.0, 4000)
    _flood(callers, "192.0.2.1")
    _flood(callers, "192.0.2.1", 5000)
    assert callers.hears("192.0.2.1", 0.0, 4000)
    assert not callers.hears("192.0.2.1", 0.0, 5000)
    assert not callers.hears("192.0.2.1", 0.0)
    _flood(callers, "192.0.2.1", 4000)
    assert not callers.hears("192.0.2.1", 0.0, 4000)


def test_where_a_member_was_so_many_more_may_fail() -> None:
    callers = Callers()
    callers.proven_at(PEER, "192.0.2.1", 0.0)
    for _ in range(int(CALLS_FAILED.burst + CALLS_FAILED_KNOWN.burst)):
        assert callers.hears("192.0.2.1", 0.0)
        callers.failed("192.0.2.1", 0.0)
    assert not callers.hears("192.0.2.1", 0.0)


def test_a_member_is_known_by_its_own_address_in_a_flooded_network() -> None:
    callers = Callers()
    callers.proven_at(PEER, "2001:db8::1", 0.0)
    _flood(callers, "2001:db8::2")
    assert callers.hears("2001:db8::1", 0.0)
    assert not callers.hears("2001:db8::2", 0.0)


def test_where_a_member_was_is_known_for_an_hour() -> None:
    callers = Callers()
    callers.proven_at(PEER, "192.0.2.1", 0.0)
    late = KNOWN_SECONDS - 0.1 / CALLS_FAILED.per_second
    for _ in range(int(CALLS_FAILED.burst)):
        callers.failed("192.0.2.1", late)
    assert callers.hears("192.0.2.1", late)
    assert not callers.hears("192.0.2.1", KNOWN_SECONDS)


def test_few_places_are_remembered_and_few_of_each_member() -> None:
    callers, most = Callers(), CALLERS_PLACES_OF_PEER.most
    callers.proven_at(OTHER, "192.0.2.1", 0.0)
    for number in range(10 * most):
        callers.proven_at(PEER, f"198.51.100.{number}", 0.0)
    assert callers.knows("192.0.2.1", 0.0)
    known = [number for number in range(10 * most) if callers.knows(f"198.51.100.{number}", 0.0)]
    assert known == list(range(9 * most, 10 * most))
    hosts = [f"10.0.{number >> 8}.{number & 255}" for number in range(2 * CALLERS_PLACES.most)]
    for number, host in enumerate(hosts):
        callers.proven_at(PeerId(number.to_bytes(32, "big")), host, 0.0)
    assert [host for host in hosts if callers.knows(host, 0.0)] == hosts[CALLERS_PLACES.most :]
    assert not callers.knows("192.0.2.1", 0.0)
