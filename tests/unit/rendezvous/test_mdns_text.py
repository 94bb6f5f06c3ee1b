"""What a node says by mDNS: members recognise it, strangers learn nothing, hostile records are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import MeshId
from meshd.rendezvous.mdns_records import (
    MAX_FIELDS,
    MAX_MDNS_HOSTS,
    MAX_TXT_BYTES,
    MDNS_NONCE_BYTES,
    TAG_BYTES,
    Sign,
    nearby,
)
from meshd.wire.address import Candidate, ScopedCandidate

from tests.unit.identity.cast import FOUNDER, GUEST, MESH

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
