"""Leases, epochs and addresses: pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.portmap.mapper import Beat, begin, failed, forgot, why_not_outside
from meshd.wire.portmap import Granted


def _granted(lifetime: int) -> Granted:
    return Granted(
        proto="tcp", internal_port=1, external_port=2, external_host="20.1.1.1", lifetime=lifetime, epoch=None
    )


@given(st.integers(0, 1 << 20), st.floats(0, 1e6), st.floats(-1 / 20, 1 / 20))
def test_a_clock_that_runs_a_little_wrong_is_no_restart(epoch: int, passed: float, wrong: float) -> None:
    assert not forgot(Beat(epoch, 100.0), Beat(epoch + int(passed * (1 + wrong)), 100.0 + passed))


@given(st.integers(100, 1 << 20), st.floats(3, 1e6))
def test_a_restart_shows_however_long_ago_it_was(epoch: int, passed: float) -> None:
    for since in (0.0, passed / 2):
        assert forgot(Beat(epoch + int(passed), 0.0), Beat(int(since), passed))


def test_the_first_sign_of_life_says_nothing() -> None:
    assert not forgot(None, Beat(0, 5.0))


@given(st.integers(0, 1 << 32), st.floats(0, 1e6))
def test_a_lease_is_due_before_it_ends(lifetime: int, now: float) -> None:
    lease = begin(_granted(lifetime), now)
    assert now + 60 <= lease.due <= now + 3600
    assert lease.due < lease.ends


def test_renewals_that_fail_come_slower() -> None:
    lease, now, pauses = begin(_granted(7200), 0.0), 3600.0, []
    for _ in range(12):
        lease = failed(lease, now)
        pauses.append(lease.due - now)
        now = lease.due
    assert pauses[0] == 15.0 and pauses == sorted(pauses) and pauses[-1] == 900.0


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("100.64.0.1", "carrier-grade"),
        ("192.168.1.1", "another router"),
        ("172.31.255.255", "another router"),
        ("192.0.0.4", "DS-Lite"),
        ("0.0.0.0", "no address"),
        ("255.255.255.255", "impossible"),
        ("fd00::1", "impossible"),
        ("", "no address"),
        ("home.example", "no address"),
    ],
)
def test_addresses_that_nobody_outside_reaches(host: str, why: str) -> None:
    assert why in (why_not_outside(host) or "")


@pytest.mark.parametrize("host", ["20.1.1.1", "172.32.0.1", "100.128.0.1", "2a0e::1"])
def test_addresses_that_may_be_reached(host: str) -> None:
    assert why_not_outside(host) is None
