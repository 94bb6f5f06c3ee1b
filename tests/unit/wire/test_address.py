"""Candidates: three forms read back, what is not an address of one machine refused, the order of trying."""

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.wire.address import (
    Candidate,
    ScopedCandidate,
    order,
    pack_candidates,
    unpack_candidates,
)
from meshd.wire.limits import MAX_CANDIDATES

thorough = settings(deadline=None, max_examples=300)

V4 = st.integers(0x01000001, 0xDFFFFFFF).map(ipaddress.IPv4Address)
V6 = (
    st.integers(1, 0xFEFF << 112)
    .map(ipaddress.IPv6Address)
    .filter(lambda address: address.ipv4_mapped is None)
)
CANDIDATES = st.builds(
    Candidate,
    host=st.one_of(V4, V6).map(str),
    port=st.integers(1, 65535),
    proto=st.sampled_from(["tcp", "udp"]),
    kind=st.sampled_from(["host", "srflx", "mapped", "relay"]),
)


@given(CANDIDATES)
@thorough
def test_a_candidate_is_read_back_from_its_text(candidate: Candidate) -> None:
    assert Candidate.parse(str(candidate)) == candidate


@given(st.lists(CANDIDATES, max_size=MAX_CANDIDATES))
@thorough
def test_candidates_are_read_back_from_bytes(candidates: list[Candidate]) -> None:
    assert unpack_candidates(pack_candidates(candidates)) == tuple(candidates)


@pytest.mark.parametrize(
    ("text", "host", "port", "proto", "kind"),
    [
        ("1.2.3.4:80/tcp", "1.2.3.4", 80, "tcp", "host"),
        ("[::1]:80/udp", "::1", 80, "udp", "host"),
        (" 1.2.3.4:80 ", "1.2.3.4", 80, "tcp", "host"),
        ("1.2.3.4:80/udp/mapped", "1.2.3.4", 80, "udp", "mapped"),
        ("[2001:DB8:0:0::1]:1/tcp", "2001:db8::1", 1, "tcp", "host"),
        ("[::ffff:1.2.3.4]:80/tcp", "1.2.3.4", 80, "tcp", "host"),
    ],
)
def test_what_people_write(text: str, host: str, port: int, proto: str, kind: str) -> None:
    found = Candidate.parse(text)
    assert (found.host, found.port, found.proto, found.kind) == (host, port, proto, kind)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "host.example:80/tcp",
        "1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:0/tcp",
        "1.2.3.4:65536/tcp",
        "1.2.3.4:03030300/tcp",
        "1.2.3.4:+80/tcp",
        "1.2.3.4:٣/tcp",
        "1.2.3.4:80/sctp",
        "1.2.3.4:80/tcp/far",
        "1.2.3.4:80/tcp/host/more",
        "::1:80/tcp",
        "[::1:80/tcp",
        "[fe80::1%eth0]:80/tcp",
        "0.0.0.0:80/tcp",
        "[::]:80/tcp",
        "224.0.0.1:80/udp",
        "[ff02::1]:80/udp",
        "255.255.255.255:80/udp",
        "[::ffff:0.0.0.0]:80/tcp",
        "1.2.3.4:80/tcp" + " " * 200,
    ],
)
def test_what_is_not_an_address_is_a_user_error_with_a_hint(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Candidate.parse(text)
    assert caught.value.hint


@given(st.text(max_size=60))
@thorough
def test_noise_raises_only_a_user_error(text: str) -> None:
    with pytest.raises(UserError):
        Candidate.parse(text)


@pytest.mark.parametrize(("host", "port"), [("::", 1), ("1.2.3.4", 0), ("1.2.3.4", 65536), ("name", 1)])
def test_our_own_mistakes_are_local_errors(host: str, port: int) -> None:
    with pytest.raises(LocalProtocolError):
        Candidate(host, port)


@given(st.binary(max_size=120))
@thorough
def test_noise_as_bytes_raises_only_a_remote_error(data: bytes) -> None:
    try:
        found = unpack_candidates(data)
    except RemoteProtocolError:
        return
    assert unpack_candidates(pack_candidates(found)) == found


def test_a_cut_off_list_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="truncated"):
        unpack_candidates(Candidate("1.2.3.4", 80).to_bytes()[:-1])


def test_candidates_of_a_later_version_and_unusable_ones_are_left_out() -> None:
    good = Candidate("1.2.3.4", 80)
    later = bytes([0x10]) + good.to_bytes()[1:]
    multicast = bytes([0]) + bytes([224, 0, 0, 1]) + b"\0\x50"
    no_port = good.to_bytes()[:-2] + b"\0\0"
    assert unpack_candidates(later + multicast + no_port + good.to_bytes()) == (good,)


def test_too_many_are_refused() -> None:
    many = [Candidate("1.2.3.4", port) for port in range(1, MAX_CANDIDATES + 2)]
    with pytest.raises(RemoteProtocolError):
        unpack_candidates(pack_candidates(many))


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("127.0.0.2", "loopback"),
        ("::1", "loopback"),
        ("10.1.1.1", "private"),
        ("172.31.0.1", "private"),
        ("172.32.0.1", ""),
        ("192.168.0.1", "private"),
        ("fd00::1", "private"),
        ("169.254.1.1", "link_local"),
        ("fe80::1", "link_local"),
        ("8.8.8.8", ""),
        ("100.64.0.1", ""),
        ("2001:db8::1", ""),
    ],
)
def test_classes_of_addresses(host: str, what: str) -> None:
    found = Candidate(host, 1)
    classes = {
        "loopback": found.is_loopback,
        "private": found.is_private,
        "link_local": found.is_link_local,
    }
    assert [name for name, is_it in classes.items() if is_it] == ([what] if what else [])


def test_near_comes_before_far_and_both_families_take_turns() -> None:
    texts = [
        "8.8.8.8:1/tcp/relay",
        "8.8.4.4:1/tcp/srflx",
        "8.8.8.8:1/tcp",
        "192.168.0.1:1/tcp",
        "10.0.0.1:1/tcp",
        "[fd00::1]:1/tcp",
        "9.9.9.9:1/tcp/mapped",
        "127.0.0.1:1/tcp",
        "192.168.0.1:1/tcp",
        "169.254.0.1:1/tcp",
    ]
    assert [str(candidate) for candidate in order(map(Candidate.parse, texts))] == [
        "[fd00::1]:1/tcp",
        "192.168.0.1:1/tcp",
        "10.0.0.1:1/tcp",
        "8.8.8.8:1/tcp",
        "9.9.9.9:1/tcp/mapped",
        "8.8.4.4:1/tcp/srflx",
        "169.254.0.1:1/tcp",
        "127.0.0.1:1/tcp",
        "8.8.8.8:1/tcp/relay",
    ]


@given(st.lists(CANDIDATES, max_size=20))
@thorough
def test_ordering_loses_nothing(candidates: list[Candidate]) -> None:
    assert set(order(candidates)) == set(candidates)
    assert len(order(candidates)) == len(set(candidates))


SCOPED = ScopedCandidate("fe80::7%eth0", 7447)


def test_a_scoped_address_is_dialled_and_shown_with_its_zone_and_never_packed() -> None:
    assert ScopedCandidate("fe80:0::7%eth0", 7447) == SCOPED != ScopedCandidate("fe80::7%eth1", 7447)
    assert (SCOPED.place, SCOPED.is_link_local, SCOPED.is_v6) == ("[fe80::7%eth0]:7447", True, True)
    with pytest.raises(LocalProtocolError):
        pack_candidates([SCOPED])
    with pytest.raises(UserError):
        Candidate.parse(str(SCOPED))


@pytest.mark.parametrize(
    "host", ["fe80::7", "fe80::7%", "fe80::7%a%b", "fd00::7%eth0", "169.254.1.1%eth0", "::1%lo", "%eth0"]
)
def test_only_link_local_ipv6_has_a_zone(host: str) -> None:
    with pytest.raises(LocalProtocolError):
        ScopedCandidate(host, 7447)


@given(st.text(max_size=40) | st.text(max_size=20).map(lambda zone: f"fe80::7%{zone}"))
@thorough
def test_any_other_text_is_refused_or_is_an_address_with_its_zone(host: str) -> None:
    try:
        found = ScopedCandidate(host, 7447)
    except LocalProtocolError:
        return
    assert found.ip.is_link_local
    assert str(found.ip) == found.host


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("10.0.0.1:1", True),
        ("10.0.0.1:65535", True),
        ("10.0.0.1:0", False),
        ("10.0.0.1:65536", False),
        ("10.0.0.1:000001", False),
        ("10.0.0.1:٣", False),
        ("10.0.0.1:", False),
        ("10.0.0.1", False),
        ("::1:7447", False),
        ("[::1]:7447/udp", True),
        ("[::1:7447", False),
        ("10.0.0.1:1/udp/srflx", True),
        ("10.0.0.1:1/udp/srflx/x", False),
        ("10.0.0.1:1" + "/" * 128, False),
    ],
)
def test_an_address_is_read_at_its_limits(text: str, ok: bool) -> None:
    try:
        found = Candidate.parse(text)
    except UserError as error:
        assert not ok and error.hint
    else:
        assert ok and str(found).startswith(text.split("/")[0])
