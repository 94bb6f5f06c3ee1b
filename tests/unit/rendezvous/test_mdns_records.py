"""Test what a node says by mDNS: members know it, strangers learn nothing, hostile records are refused."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import MeshId, PeerId
from meshd.rendezvous.mdns_records import (
    MAX_CANDIDATES_PER_PEER,
    MAX_FIELDS,
    MAX_HOSTS,
    MAX_MDNS_HOSTS,
    MAX_SEEN,
    MAX_TXT_BYTES,
    MDNS_NONCE_BYTES,
    TAG_BYTES,
    TELL_SECONDS,
    Neighbours,
    Place,
    Sign,
    nearby,
    places,
)
from meshd.wire.address import Candidate, ScopedCandidate

from tests.unit.identity.cast import FOUNDER, GUEST, MESH, WORKER

NONCE = bytes(range(MDNS_NONCE_BYTES))
OTHER_MESH = MeshId(b"o" * 32)


def strings(*given: bytes) -> bytes:
    return b"".join(bytes([len(one)]) + one for one in given)


def good(**changes: str) -> bytes:
    text = Sign.of(MESH, FOUNDER.peer, nonce=NONCE).encode()
    fields: dict[str, str] = {}
    while text:
        name, _, value = text[1 : 1 + text[0]].decode().partition("=")
        fields[name], text = value, text[1 + text[0] :]
    return strings(*(f"{name}={value}".encode() for name, value in (fields | changes).items()))


def test_members_recognise_the_mesh_and_the_node() -> None:
    sign = Sign.decode(Sign.of(MESH, FOUNDER.peer, nonce=NONCE, udp_port=17430).encode())
    assert sign.udp_port == 17430
    assert sign.is_of_mesh(MESH) and not sign.is_of_mesh(OTHER_MESH)
    assert sign.is_of_node(MESH, FOUNDER.peer)
    assert not sign.is_of_node(MESH, GUEST.peer)
    assert not sign.is_of_node(OTHER_MESH, FOUNDER.peer)


def test_two_networks_see_nothing_in_common() -> None:
    one = Sign.of(MESH, FOUNDER.peer, nonce=b"a" * MDNS_NONCE_BYTES)
    two = Sign.of(MESH, FOUNDER.peer, nonce=b"b" * MDNS_NONCE_BYTES)
    assert not {one.nonce, one.mesh_tag, one.node_tag} & {two.nonce, two.mesh_tag, two.node_tag}
    for text in (one.encode(), two.encode()):
        for name in (MESH, FOUNDER.peer):
            assert name.raw[:4] not in text and name.short.encode() not in text


@given(
    nonce=st.binary(min_size=MDNS_NONCE_BYTES, max_size=MDNS_NONCE_BYTES),
    tags=st.tuples(*[st.binary(min_size=TAG_BYTES, max_size=TAG_BYTES)] * 2),
    port=st.integers(0, 65535),
)
def test_what_is_written_is_read_again(nonce: bytes, tags: tuple[bytes, bytes], port: int) -> None:
    sign = Sign(nonce, *tags, port)
    assert Sign.decode(sign.encode()) == sign
    assert len(sign.encode()) <= MAX_TXT_BYTES


@given(st.binary(max_size=MAX_TXT_BYTES + 10) | st.lists(st.binary(max_size=40)).map(lambda s: strings(*s)))
def test_anything_else_is_refused_or_read(text: bytes) -> None:
    try:
        sign = Sign.decode(text)
    except RemoteProtocolError as error:
        assert error.code == "mdns"
    else:
        assert Sign.decode(sign.encode()) == sign


@pytest.mark.parametrize(
    "text",
    [
        b"",
        good()[:-1],
        good(v="2"),
        good(n="aa"),
        good(m="!" * 16),
        good(p=""),
        good(u="0"),
        good(u="65536"),
        good(u="１２"),
        good(u="-1"),
        strings(*[f"x{number}=".encode() for number in range(MAX_FIELDS + 1)]) + good(),
        good() + strings(b"y=" + b"z" * 250, b"y=" + b"z" * 250),
        good() + strings(b"\xff=1"),
    ],
)
def test_a_damaged_record_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Sign.decode(text)


def test_unknown_fields_and_bare_words_are_passed_over() -> None:
    assert Sign.decode(strings(b"", b"flag", b"later=1") + good()) == Sign.decode(good())
    assert Sign.decode(good() + strings(b"v=2")).is_of_mesh(MESH)  # the first of a name counts


def test_only_neighbours_are_worth_a_dial() -> None:
    own = ("192.168.1.9", "fd00::9", "203.0.113.7", "2001:db8:1:2::7")
    near = [
        "192.168.1.4",
        own[0],
        "10.1.2.3",
        "169.254.3.4",
        "fd00:1::4",
        "203.0.113.200",
        "2001:db8:1:2:3::1",
    ]
    far = ["127.0.0.1", "::1", "fe80::1", "198.51.100.1", "2001:db8:1:3::1", "224.0.0.251", "0.0.0.0", "x"]
    found = nearby(near, 7447, udp_port=0, own=own, interface="eth0")
    assert [candidate.host for candidate in found] == near
    assert nearby(far[:MAX_MDNS_HOSTS], 7447, udp_port=1, own=own, interface="eth0") == ()
    assert nearby(far[MAX_MDNS_HOSTS:], 7447, udp_port=1, own=own, interface="eth0") == ()
    assert nearby(near, 0, udp_port=0, own=own, interface="eth0") == ()
    assert nearby(near, 7447, udp_port=0, own=(), interface="eth0") == ()
    # an address of this machine's own family in a site is no neighbour of a public one only
    assert nearby(["10.1.2.3"], 7447, udp_port=0, own=("203.0.113.7",), interface="eth0") == ()


def test_a_record_gives_few_addresses() -> None:
    hosts = [f"192.168.1.{number}" for number in range(1, 100)]
    found = nearby(hosts, 7447, udp_port=7448, own=("192.168.1.200",), interface="eth0")
    assert len(found) == 2 * MAX_MDNS_HOSTS
    assert found[:2] == (Candidate("192.168.1.1", 7447), Candidate("192.168.1.1", 7448, "udp"))


@given(st.lists(st.text(max_size=45)), st.integers(-1, 70000), st.integers(0, 65535))
def test_no_host_or_port_breaks_it(hosts: list[str], port: int, udp_port: int) -> None:
    assert (
        len(nearby(hosts, port, udp_port=udp_port, own=("10.0.0.1", "fe80::1"), interface="eth0"))
        <= 2 * MAX_MDNS_HOSTS
    )


def test_a_link_local_address_gets_the_zone_of_the_link_on_which_it_was_heard() -> None:
    """A record has no zone to say, and one of a machine on this link is no neighbour of other addresses."""
    hosts = ["fe80::7", "fe80::8%eth1", "fd00::7"]
    found = nearby(hosts, 7447, udp_port=7448, own=("fe80::1",), interface="eth0")
    assert found == (ScopedCandidate("fe80::7%eth0", 7447),)
    assert nearby(["fe80::7"], 7447, udp_port=0, own=("fd00::1", "10.0.0.1"), interface="eth0") == ()


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


OWN = ("192.168.1.9",)


class Net:
    """A node's view, and records that come to it."""

    def __init__(self, *known: PeerId) -> None:
        self.neighbours = Neighbours(MESH, FOUNDER.peer)
        self.neighbours.know(known)
        self.now = 1000.0
        self._nonce = 0

    def text(self, peer: PeerId, mesh: MeshId = MESH) -> bytes:
        self._nonce += 1
        return Sign.of(mesh, peer, nonce=self._nonce.to_bytes(MDNS_NONCE_BYTES, "big")).encode()

    def saw(self, name: str, text: bytes, *hosts: str, interface: str = "eth0", port: int = 7447) -> bool:
        return self.neighbours.saw(
            (interface, name), text, hosts=hosts or ("192.168.1.4",), port=port, own=OWN, now=self.now
        )

    def heard(self) -> bool:
        return self.neighbours.heard_at == self.now

    def told(self) -> list[tuple[PeerId, Sequence[Candidate]]]:
        return list(self.neighbours.tell(self.now))


def at(*hosts: str, port: int = 7447) -> tuple[Candidate, ...]:
    return tuple(Candidate(host, port) for host in hosts)


def test_a_known_peer_is_told_once() -> None:
    net = Net(WORKER.peer)
    text = net.text(WORKER.peer)
    assert net.saw("a", text)
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]
    assert not net.saw("a", text)
    net.now += 100
    assert net.told() == []


def test_a_peer_that_is_learnt_of_later_is_found_then() -> None:
    net = Net()
    assert net.saw("a", net.text(WORKER.peer))
    assert net.told() == []
    net.neighbours.know([GUEST.peer, WORKER.peer])
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]


def test_another_mesh_and_oneself_are_nobody() -> None:
    net = Net(WORKER.peer, FOUNDER.peer)
    assert not net.saw("own", net.text(FOUNDER.peer))
    assert not net.heard()  # one's own voice proves nothing
    assert not net.saw("other", net.text(WORKER.peer, MeshId(b"o" * 32)))
    assert net.heard()
    assert net.told() == [] and net.neighbours.members == 0


def test_a_restart_is_told_again_though_the_address_is_the_same() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer))
    assert len(net.told()) == 1
    assert net.saw("b", net.text(WORKER.peer))
    assert net.told() == []  # too soon
    net.now += TELL_SECONDS
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]


def test_a_goodbye_and_a_network_left() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer), "192.168.1.4")
    net.saw("b", net.text(WORKER.peer), "192.168.1.5", interface="eth1")
    assert net.told() == [(WORKER.peer, at("192.168.1.5", "192.168.1.4"))]
    net.now += TELL_SECONDS
    assert net.neighbours.lost(("eth0", "a")) and not net.neighbours.lost(("eth0", "a"))
    assert net.told() == [(WORKER.peer, at("192.168.1.5"))]
    net.now += TELL_SECONDS
    net.neighbours.lost_network("eth1")
    assert net.told() == [(WORKER.peer, ())]
    net.now += TELL_SECONDS
    assert net.told() == [] and net.neighbours.members == 0


def test_records_that_change_all_the_time_are_told_seldom() -> None:
    net = Net(WORKER.peer)
    told = 0
    for number in range(100):
        net.saw("a", net.text(WORKER.peer), f"192.168.1.{number + 10}")
        net.now += TELL_SECONDS / 10
        told += len(net.told())
    assert told == 10


def test_what_is_kept_is_bounded_and_one_node_displaces_only_itself() -> None:
    net = Net(WORKER.peer, GUEST.peer)
    net.saw("guest", net.text(GUEST.peer))
    for number in range(2 * MAX_SEEN):
        host = f"192.168.{number // 200}.{number % 200 + 1}"
        net.saw(f"w{number}", net.text(WORKER.peer), host)
    found = net.neighbours.of(WORKER.peer)
    assert len(found) == MAX_CANDIDATES_PER_PEER
    assert found[0] == Candidate("192.168.2.112", 7447)  # the newest: it may have started again
    assert found[1] == Candidate("192.168.0.1", 7447)  # the oldest: the others may be copies
    assert net.neighbours.of(GUEST.peer) == at("192.168.1.4")
    assert net.neighbours.members == 2


def test_made_up_nodes_displace_no_known_one() -> None:
    net = Net(WORKER.peer)
    net.saw("worker", net.text(WORKER.peer))
    for number in range(2 * MAX_SEEN):
        net.saw(f"m{number}", net.text(PeerId(number.to_bytes(32, "big"))))
    assert net.told() == [(WORKER.peer, at("192.168.1.4"))]
    assert net.neighbours.members == MAX_SEEN


def test_a_record_that_becomes_useless_is_forgotten() -> None:
    net = Net(WORKER.peer)
    text = net.text(WORKER.peer)
    net.saw("a", text)
    net.told()
    net.now += TELL_SECONDS
    assert net.saw("a", text, "8.8.8.8")
    assert net.told() == [(WORKER.peer, ())]


def test_a_peer_that_is_not_looked_for_any_more() -> None:
    net = Net(WORKER.peer)
    net.saw("a", net.text(WORKER.peer))
    net.told()
    net.neighbours.know([])
    net.now += TELL_SECONDS
    net.saw("b", net.text(WORKER.peer), "192.168.1.77")
    assert net.told() == []
