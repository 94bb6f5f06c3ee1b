"""Where mDNS announces what: each network its own addresses, and nothing where no listener answers."""

from meshd.rendezvous.mdns_records import MAX_HOSTS, Place, places
from meshd.wire.address import Candidate, ScopedCandidate

ADDRESSES = [
    ("lo", "127.0.0.1"),
    ("eth0", "192.168.1.9"),
    ("eth0", "fd00::9"),
    ("eth0", "fe80::9"),
    ("wlan0", "10.3.0.2"),
]


def test_each_network_is_told_its_own_addresses() -> None:
    offered = [Candidate(host, 7447) for host in ("10.3.0.2", "192.168.1.9", "fd00::9", "127.0.0.1")]
    offered.append(Candidate("10.3.0.2", 7448, "udp"))
    offered.append(Candidate("198.51.100.1", 9, "tcp", "mapped"))
    assert places(ADDRESSES, offered) == [
        Place("eth0", ("192.168.1.9", "fd00::9"), 7447),
        Place("wlan0", ("10.3.0.2",), 7447, 7448),
    ]


def test_a_listener_on_one_address_is_announced_there_alone() -> None:
    assert places(ADDRESSES, [Candidate("192.168.1.9", 7447)]) == [Place("eth0", ("192.168.1.9",), 7447)]


def test_a_node_that_listens_on_loopback_is_in_no_network() -> None:
    assert places(ADDRESSES, [Candidate("127.0.0.1", 7447), Candidate("::1", 7447)]) == []


def test_who_only_looks_is_everywhere_and_offers_nothing() -> None:
    assert places(ADDRESSES, []) == [
        Place("eth0", ("192.168.1.9", "fd00::9", "fe80::9")),
        Place("wlan0", ("10.3.0.2",)),
    ]


def test_a_link_local_address_is_announced_on_its_link_alone() -> None:
    """Two interfaces may have the same; its zone is not told."""
    addresses = [*ADDRESSES, ("eth1", "fe80::9"), ("eth2", "fe80::2")]
    offered = [Candidate("fd00::9", 7447), ScopedCandidate("fe80::9%eth0", 7447)]
    assert places(addresses, [*offered, ScopedCandidate("fe80::2%eth2", 7447)]) == [
        Place("eth0", ("fd00::9", "fe80::9"), 7447),
        Place("eth2", ("fe80::2",), 7447),
    ]


def test_few_addresses_are_told() -> None:
    many = [("eth0", f"10.0.0.{number}") for number in range(1, 50)]
    [place] = places(many, [Candidate(host, 7447) for _, host in many])
    assert len(place.hosts) == MAX_HOSTS
