"""Test what may be dialled for whom: the rules one by one, and what holds whatever a member names."""

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.peer_limits import ADDRESSES, MACHINE_PORTS, ROUTED, SIGNAL_PORTS
from meshd.wire.address import Candidate, ScopedCandidate
from meshd.wire.dialable import LEAST_PORT, Here, Source, dialable, network_of, trusted

thorough = settings(deadline=None, max_examples=500)

HERE = Here(
    addresses=frozenset(map(ipaddress.ip_address, ("192.168.1.5", "172.17.0.1", "2001:db8:1::5"))),
    networks=(ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("2001:db8:1::/64")),
    outside=frozenset({ipaddress.ip_address("203.0.113.9")}),
)
ALONE = Here(addresses=HERE.addresses, networks=HERE.networks, local_only=True)
TOLD = (Source.RECORD, Source.SIGNAL, Source.NEARBY, Source.SEARCH)
NEVER = (
    "169.254.169.254:80/tcp",
    "169.254.170.2:80/tcp",
    "100.100.100.200:80/tcp",
    "168.63.129.16:80/tcp",
    "[fd00:ec2::254]:80/tcp",
    "0.1.2.3:80/tcp",
    "240.0.0.1:80/tcp",
    "192.168.1.255:80/udp",  # the broadcast address of our own network
    "192.168.1.0:80/udp",
    "[fe80::1]:80/tcp",
    "[64:ff9b::a9fe:a9fe]:80/tcp",  # 169.254.169.254 by NAT64
    "[64:ff9b::7f00:1]:80/tcp",
    "[2002:7f00:1::1]:80/tcp",  # 127.0.0.1 by 6to4
    "[::7f00:1]:80/tcp",  # 127.0.0.1, IPv4-compatible
    "[::ffff:0:7f00:1]:80/tcp",  # IPv4-translated
)


def places(*texts: str) -> list[Candidate]:
    return [Candidate.parse(text) for text in texts]


def by_record(*texts: str, here: Here = HERE, claims: Sequence[str] = ()) -> list[str]:
    claimed = map(ipaddress.ip_address, claims)
    return [str(one) for one in dialable(places(*texts), source=Source.RECORD, here=here, claims=claimed)]


@pytest.mark.parametrize("text", NEVER)
@pytest.mark.parametrize("source", Source)
def test_some_addresses_are_never_dialled(text: str, source: Source) -> None:
    (place,) = places(text)
    own_network = any(place.ip in network for network in HERE.networks if network.version == place.ip.version)
    for here in (HERE, ALONE) if own_network else (HERE, ALONE, Here()):
        claims = [place.ip, *HERE.addresses, *HERE.outside]
        assert dialable([place], source=source, here=here, claims=claims) == []


def test_an_ipv4_address_written_as_ipv6_is_taken_for_what_it_is() -> None:
    assert by_record("[::ffff:127.0.0.1]:7447/tcp", "[::ffff:169.254.169.254]:80/tcp") == []


def test_loopback_of_another_machine_is_not_ours() -> None:
    assert by_record("127.0.0.1:7447/tcp", "[::1]:7447/tcp", "198.51.100.7:7447/tcp") == [
        "198.51.100.7:7447/tcp"
    ]


def test_a_node_on_this_machine_is_dialled_by_loopback_too() -> None:
    told = ("192.168.1.5:7448/tcp", "192.168.1.5:7448/udp", "127.0.0.1:7448/tcp")
    assert by_record(*told) == list(told)


def test_two_nodes_that_keep_to_loopback_meet_there() -> None:
    assert by_record("127.0.0.1:7448/tcp", "127.0.0.1:7448/udp", here=ALONE) != []
    assert by_record("127.0.0.1:7448/tcp", "198.51.100.7:7448/tcp", here=ALONE) == ["198.51.100.7:7448/tcp"]


@pytest.mark.parametrize("here", [HERE, ALONE])
def test_a_record_that_names_several_ports_of_this_machine_reaches_none(here: Here) -> None:
    assert by_record(*(f"127.0.0.1:{port}/tcp" for port in range(9000, 9016)), here=here) == []
    own = [f"192.168.1.5:{port}/tcp" for port in (7448, 7449)]
    assert by_record(*own, "127.0.0.1:7448/tcp", here=here) == []


def test_ports_of_the_system_are_not_dialled_on_this_machine() -> None:
    assert by_record("192.168.1.5:22/tcp", "127.0.0.1:22/tcp") == []


def test_private_addresses_only_in_a_network_of_ours() -> None:
    remote = ["10.1.2.3:7447/tcp", "100.64.7.7:7447/tcp", "169.254.3.3:7447/tcp", "[fd12::1]:7447/tcp"]
    assert by_record(*remote, "198.51.100.7:7447/tcp") == ["198.51.100.7:7447/tcp"]
    assert by_record("192.168.1.77:7447/tcp", "[2001:db8:1::9]:7447/tcp") != []


def test_private_addresses_that_are_routed_behind_one_nat_are_tried_but_few() -> None:
    told = [f"192.168.{net}.9:7447/tcp" for net in range(2, 9)]
    assert len(by_record(*told, claims=["203.0.113.9"])) == ROUTED.most
    assert by_record(*told, claims=["203.0.113.10"]) == []
    assert by_record(*told) == []  # we are seen from outside, and that peer is not


def test_in_a_site_that_nobody_outside_has_seen_too() -> None:
    isolated = Here(HERE.addresses, HERE.networks)
    assert len(by_record("192.168.2.9:7447/tcp", "192.168.3.9:7447/tcp", here=isolated)) == ROUTED.most


def test_mdns_names_neighbours_only() -> None:
    told = places(
        "192.168.1.9:7447/tcp", "192.168.2.9:7447/tcp", "198.51.100.7:7447/tcp", "127.0.0.1:7447/tcp"
    )
    assert dialable(told, source=Source.NEARBY, here=HERE) == told[:1]


def test_a_search_goes_to_public_addresses_that_the_record_claims() -> None:
    told = places("198.51.100.7:4000/udp/srflx", "192.168.1.9:4000/udp", "127.0.0.1:4000/udp")
    assert dialable(told, source=Source.SEARCH, here=HERE) == []
    claims = [one.ip for one in told]
    assert dialable(told, source=Source.SEARCH, here=HERE, claims=claims) == told[:1]


def test_no_kind_of_address_keeps_out_another() -> None:
    many = [f"[2001:db8:9::{number:x}]:7447/tcp" for number in range(1, 30)]
    kept = by_record(*many, "198.51.100.7:7447/tcp/mapped", "198.51.100.8:9/tcp/srflx")
    assert len(kept) == ADDRESSES.most
    assert {"198.51.100.7:7447/tcp/mapped", "198.51.100.8:9/tcp/srflx"} <= set(kept)


def test_a_person_may_give_any_address_of_a_machine() -> None:
    told = places("127.0.0.1:22/tcp", "10.9.9.9:7447/tcp", *(f"198.51.100.{n}:7/tcp" for n in range(1, 20)))
    assert trusted(told) == told


@pytest.mark.parametrize(
    ("address", "prefix", "network"),
    [
        ("192.168.1.5", 24, "192.168.1.0/24"),
        ("100.101.102.103", 32, "100.64.0.0/10"),  # a VPN that numbers its nodes so
        ("10.8.0.2", 32, "10.8.0.2/32"),
        ("fd00::5", 64, "fd00::/64"),
    ],
)
def test_the_network_of_an_interface(address: str, prefix: int, network: str) -> None:
    assert network_of(ipaddress.ip_address(address), prefix) == ipaddress.ip_network(network)


def heard_by_mdns(candidates: Sequence[Candidate], here: Here) -> list[str]:
    return [one.place for one in dialable(candidates, source=Source.NEARBY, here=here)]


def test_link_local_addresses_are_dialled_on_the_link_where_they_were_heard() -> None:
    """As many as others; our own as any of this machine: where the peer names no other, at one port."""
    here = Here(addresses=frozenset({ipaddress.ip_address("fe80::1")}))
    heard = [ScopedCandidate(f"fe80::{number}%eth0", 7447) for number in range(2, 30)]
    assert heard_by_mdns(heard, here) == [one.place for one in heard[: ADDRESSES.most]]
    assert by_record("[fe80::2]:7447/tcp", here=here) == []
    own = [ScopedCandidate("fe80::1%eth0", port) for port in (22, 7447, 7448)]
    assert heard_by_mdns(own, here) == []
    assert heard_by_mdns(own[:1], here) == []
    assert heard_by_mdns(own[1:2], here) == ["[fe80::1%eth0]:7447"]


INTERESTING = st.sampled_from(
    [
        *("127.0.0.1", "127.9.9.9", "::1", "192.168.1.5", "192.168.1.9", "192.168.2.9", "10.0.0.1"),
        *(
            "172.17.0.1",
            "100.64.0.1",
            "169.254.1.1",
            "169.254.169.254",
            "fd00:ec2::254",
            "fe80::1",
            "fd00::1",
        ),
        *("2001:db8:1::5", "2001:db8:1::9", "198.51.100.7", "203.0.113.9", "192.168.1.255", "64:ff9b::1"),
    ]
)
ANY_V4 = st.integers(1, (1 << 32) - 2).map(lambda number: str(ipaddress.IPv4Address(number)))
ANY_V6 = st.integers(1, (1 << 128) - 1).map(lambda number: str(ipaddress.IPv6Address(number)))


def _is_candidate(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_multicast or mapped.is_unspecified or str(mapped) == "255.255.255.255")


NAMED = st.builds(
    Candidate,
    host=st.one_of(INTERESTING, ANY_V4, ANY_V6).filter(_is_candidate),
    port=st.one_of(st.integers(1, 65535), st.integers(7440, 7450)),
    proto=st.sampled_from(["tcp", "udp"]),
    kind=st.sampled_from(["host", "srflx", "mapped", "relay"]),
)


@given(
    st.lists(NAMED, max_size=32),
    st.sampled_from(TOLD),
    st.sampled_from([HERE, ALONE, Here()]),
    st.lists(INTERESTING.map(ipaddress.ip_address), max_size=4),
)
@thorough
def test_whatever_a_member_names(
    told: list[Candidate], source: Source, here: Here, claims: list[ipaddress.IPv4Address]
) -> None:
    found = dialable(told, source=source, here=here, claims=claims)
    assert [one for one in dict.fromkeys(told) if one in found] == found
    hosts = {str(one.ip) for one in found}
    assert not hosts & {"169.254.169.254", "fd00:ec2::254"}
    assert not (here.networks and "192.168.1.255" in hosts)
    machine = [one for one in found if one.is_loopback or one.ip in here.addresses]
    assert (
        len({one.port for one in machine})
        <= (SIGNAL_PORTS if source is Source.SIGNAL else MACHINE_PORTS).most
    )
    assert all(one.port >= LEAST_PORT for one in machine)
    if (
        not here.local_only
        and not {one.ip for one in told} & here.addresses
        and not set(claims) & here.addresses
    ):
        assert not any(one.is_loopback for one in found)
    routed = [
        one
        for one in found
        if (one.is_private or one.is_link_local)
        and one not in machine
        and not any(one.ip in network for network in here.networks if network.version == one.ip.version)
    ]
    for proto in ("tcp", "udp"):
        assert sum(one.proto == proto for one in routed) <= ROUTED.most
        assert sum(one.proto == proto for one in found) <= ADDRESSES.most
