"""Which addresses are offered, and what two addresses say of a path."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.link.net import local_addresses
from meshd.link.net.local_addresses import (
    InterfaceAddress,
    addresses,
    beside,
    choose,
    enumerate_addresses,
    hosts,
    path_between,
)
from meshd.wire.address import Candidate, ScopedCandidate

ETHERNET = InterfaceAddress("eth0", "192.168.1.5")
WIFI6 = InterfaceAddress("wlan0", "2001:db8:1::5")
DOCKER = InterfaceAddress("docker0", "172.17.0.1")
BRIDGE = InterfaceAddress("br-8a1b", "172.18.0.1")
VPN = InterfaceAddress("tailscale0", "100.101.102.103")
LOOPBACK = InterfaceAddress("lo", "127.0.0.1")
LINK_LOCAL6 = InterfaceAddress("eth0", "fe80::1")
SELF_ASSIGNED = InterfaceAddress("eth1", "169.254.7.7")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([LOOPBACK, ETHERNET, WIFI6, LINK_LOCAL6], ("192.168.1.5", "2001:db8:1::5")),
        ([DOCKER, BRIDGE, VPN, ETHERNET], ("192.168.1.5",)),
        ([DOCKER, BRIDGE, VPN], ("100.101.102.103",)),
        ([DOCKER, LOOPBACK], ("172.17.0.1",)),
        ([SELF_ASSIGNED, ETHERNET], ("192.168.1.5",)),
        ([SELF_ASSIGNED, DOCKER], ("169.254.7.7",)),
        ([ETHERNET, InterfaceAddress("eth0:1", "192.168.1.5")], ("192.168.1.5",)),
        ([LOOPBACK, LINK_LOCAL6], ()),
        ([], ()),
    ],
)
def test_choose(found: list[InterfaceAddress], expected: tuple[str, ...]) -> None:
    assert choose(found) == expected


found_addresses = st.builds(
    InterfaceAddress,
    st.sampled_from(["eth0", "wlan0", "docker0", "veth12", "wg0", "lo", ""]),
    st.ip_addresses().map(str),
)


@given(st.lists(found_addresses, max_size=8))
def test_choose_offers_only_what_was_found_and_can_be_reached(found: list[InterfaceAddress]) -> None:
    chosen = choose(found)
    assert set(chosen) <= {item.host for item in found}
    assert len(set(chosen)) == len(chosen)
    for host in chosen:
        address = ipaddress.ip_address(host)
        assert not address.is_loopback
        assert not address.is_multicast
        assert not (address.version == 6 and address.is_link_local)


@pytest.mark.parametrize(
    ("local", "remote", "path"),
    [
        ("127.0.0.1", "127.0.0.1", "loopback"),
        ("::1", "::1", "loopback"),
        ("192.168.1.5", "192.168.1.5", "loopback"),
        ("192.168.1.5", "192.168.1.9", "lan"),
        ("10.1.2.3", "172.20.0.9", "lan"),
        ("172.15.0.1", "10.0.0.1", "public"),
        ("fd00::1", "fd00::2", "lan"),
        ("fe80::1", "fe80::2", "lan"),
        ("2001:db8:1:2::5", "2001:db8:1:2::6", "lan"),
        ("2001:db8:1:2::5", "2001:db8:1:3::6", "public"),
        ("192.168.1.5", "8.8.8.8", "public"),
        ("100.64.0.1", "100.64.0.2", "public"),
        ("", "", "public"),
    ],
)
def test_path_between(local: str, remote: str, path: str) -> None:
    assert path_between(local, remote) == path


def test_the_machine_itself() -> None:
    found = enumerate_addresses()
    assert any(item.ip.is_loopback for item in found)
    assert set(hosts()) <= {item.host for item in found}
    assert addresses() <= {item.host for item in found}
    assert addresses() == addresses()


def test_without_getifaddrs(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {item.host for item in enumerate_addresses()}

    def fails() -> tuple[InterfaceAddress, ...]:
        raise OSError("no such thing here")

    monkeypatch.setattr(local_addresses, "_getifaddrs", fails)
    found = {item.host for item in enumerate_addresses()}
    assert "127.0.0.1" in found
    assert found <= usual


def test_containers_that_come_and_go_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_addresses, "_getifaddrs", lambda: (ETHERNET, LOOPBACK, VPN))
    before = addresses()
    assert before == {ETHERNET.host, VPN.host}
    monkeypatch.setattr(local_addresses, "_getifaddrs", lambda: (ETHERNET, LOOPBACK, VPN, DOCKER, BRIDGE))
    assert addresses() == before


@pytest.mark.parametrize(
    ("remote", "near"),
    [
        ("127.0.0.1", True),
        ("192.168.1.7", True),
        ("192.168.2.7", False),
        ("203.0.113.7", False),
        ("2001:db8:1:2::7", True),
        ("2001:db8:1:3::7", False),
        ("no address", False),
    ],
)
def test_what_lies_beside_this_machine(remote: str, near: bool) -> None:
    assert beside(["192.168.1.2", "203.0.113.9", "2001:db8:1:2::1"], remote) is near


def test_a_peer_is_beside_us_if_one_of_its_tcp_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_addresses, "hosts", lambda: ("192.168.7.1",))
    far, near = Candidate("192.168.8.9", 1), Candidate("192.168.7.9", 1)
    assert local_addresses.any_beside([far, near])
    assert not local_addresses.any_beside([far, Candidate("192.168.7.9", 1, "udp")])


def test_link_local_addresses_are_offered_by_who_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (("eth0", "192.168.1.5"), ("eth0", "fe80::1"), ("eth1", "fe80::1"), ("eth1", "fd00::1"))
    monkeypatch.setattr(local_addresses, "neighbourhood", lambda: found)
    offered = local_addresses.offered_on_links(("0.0.0.0", "::"), 7447, "tcp")
    assert offered == [ScopedCandidate("fe80::1%eth0", 7447), ScopedCandidate("fe80::1%eth1", 7447)]
    assert local_addresses.offered_on_links(("0.0.0.0", "fd00::1"), 7447, "tcp") == ()


def test_a_scoped_address_is_near() -> None:
    assert local_addresses.any_beside([ScopedCandidate("fe80::7%eth0", 7447)])


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("192.168.1.7", "wlp2s0"),
        ("192.168.1.8", "enp1s0"),
        ("fe80::7%wlp2s0", "wlp2s0"),
        ("fe80::7%enp1s0", "enp1s0"),
        ("fe80::7%3", "wlp2s0"),
        ("fe80:0::7", "wlp2s0"),
        ("10.0.0.1", ""),
        ("", ""),
        ("relay", ""),
    ],
)
def test_the_interface_of_an_address(host: str, interface: str) -> None:
    found = [
        InterfaceAddress("enp1s0", "192.168.1.8", 24),
        InterfaceAddress("wlp2s0", "192.168.1.7", 24),
        InterfaceAddress("wlp2s0", "fe80::7", 64),
        InterfaceAddress("enp1s0", "fe80::7", 64),
    ]
    assert local_addresses.interface_of(host, found) == interface
