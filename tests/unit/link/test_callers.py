"""Who has called too often: counted for the key that was proven, and for the address that proves nothing."""

from meshd.base.shares import CALLS, CALLS_FAILED
from meshd.identity.keys import PeerId
from meshd.link.callers import MOST_ADDRESSES, Callers

PEER, OTHER = PeerId(bytes(32)), PeerId(bytes(31) + b"\1")


def test_a_member_may_come_again_and_again_but_not_for_ever() -> None:
    callers, burst = Callers(), int(CALLS.burst)
    assert [callers.came(PEER, 0.0) for _ in range(burst + 3)] == [True] * burst + [False] * 3
    assert callers.why_not(PEER, 0.0) and not callers.came(PEER, 0.0)
    assert callers.why_not(OTHER, 0.0) is None
    assert callers.why_not(PEER, 1 / CALLS.per_second) is None


def test_to_name_a_key_uses_up_nothing_of_it() -> None:
    callers = Callers()
    for _ in range(10_000):
        assert callers.why_not(PEER, 0.0) is None


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
    for number in range(3 * MOST_ADDRESSES):
        callers.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(callers._addresses._buckets) == MOST_ADDRESSES
