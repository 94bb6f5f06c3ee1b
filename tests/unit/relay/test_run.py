"""Test what `meshd relay` makes of its options and of the machine it finds."""

from pathlib import Path

import pytest
from meshd.identity.keys import KeyPair, MeshId
from meshd.relay.run import RelaySettings, limits_for, public_host
from meshd.relay.switchboard import SMALL, WIDE

MESH = MeshId.of(KeyPair.from_seed(bytes(32)).peer)
HOME = Path("home")
MANY = 1 << 20


def test_a_relay_for_all_holds_each_key_to_little() -> None:
    assert limits_for(RelaySettings(home=HOME), files=MANY) == SMALL


@pytest.mark.parametrize(
    "settings", [RelaySettings(home=HOME, open=True), RelaySettings(home=HOME, meshes=frozenset({MESH}))]
)
def test_open_and_mesh_lift_the_quota_of_a_key(settings: RelaySettings) -> None:
    assert limits_for(settings, files=MANY) == WIDE


def test_a_rate_that_is_asked_for_holds_for_all() -> None:
    limits = limits_for(RelaySettings(home=HOME, open=True, rate=1 << 20), files=MANY)
    assert (limits.rate, limits.burst) == (1 << 20, 4 << 20)
    assert limits_for(RelaySettings(home=HOME, rate=0), files=MANY).rate == 0


def test_there_are_never_more_connections_than_files() -> None:
    limits = limits_for(RelaySettings(home=HOME, open=True), files=1024)
    assert limits.connections == 960
    assert limits.clients + 2 * limits.circuits <= limits.connections


@pytest.mark.parametrize(
    ("bound", "hosts", "expected"),
    [
        ("192.0.2.7", ("198.51.100.1",), "192.0.2.7"),
        ("", ("10.0.0.1", "2600::1", "8.8.8.8"), "8.8.8.8"),
        ("::", ("10.0.0.1", "2600::1"), "2600::1"),
        ("0.0.0.0", ("10.0.0.1",), "10.0.0.1"),
        ("", (), "127.0.0.1"),
    ],
)
def test_the_host_in_the_url_is_one_that_others_reach(
    bound: str, hosts: tuple[str, ...], expected: str
) -> None:
    assert public_host(bound, hosts) == expected
