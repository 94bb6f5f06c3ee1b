"""PCP and NAT-PMP messages against the RFCs' layouts, and whatever else a router may send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.portmap import (
    MapRefused,
    NotForUs,
    Wish,
    natpmp_ask_address,
    natpmp_map,
    pcp_announce,
    pcp_map,
    read_natpmp_address,
    read_natpmp_mapped,
    read_pcp_announced,
    read_pcp_mapped,
)

NONCE = bytes(range(12))
WISH = Wish(proto="tcp", internal_port=17430, external_port=17431, lifetime=7200)
V4 = bytes(10) + b"\xff\xff"
# RFC 6887, figures 3 and 10
PCP_MAPPED = bytes.fromhex("02810000 00000e10 00000064".replace(" ", "")) + bytes(12)
PCP_MAPPED += NONCE + bytes.fromhex("06000000 4416 4417".replace(" ", "")) + V4 + bytes([20, 1, 0, 2])


def test_pcp_questions() -> None:
    question = pcp_map(WISH, client="192.168.1.10", nonce=NONCE)
    assert question[:8] == bytes.fromhex("0201000000001c20")
    assert question[8:24] == V4 + bytes([192, 168, 1, 10])
    assert question[24:36] == NONCE and question[36:44] == bytes.fromhex("0600000044164417")
    assert question[44:] == V4 + bytes(4) and len(question) == 60
    gone = pcp_map(Wish(proto="udp", internal_port=1, external_port=5, lifetime=0), client="::1", nonce=NONCE)
    assert gone[4:8] == bytes(4) and gone[36] == 17 and gone[42:44] == bytes(2)
    assert pcp_announce(client="10.0.0.1")[:8] == bytes.fromhex("0200000000000000")


def test_pcp_answers() -> None:
    granted = read_pcp_mapped(PCP_MAPPED, WISH, nonce=NONCE)
    assert (granted.external_host, granted.external_port) == ("20.1.0.2", 0x4417)
    assert (granted.lifetime, granted.epoch) == (3600, 100)
    with pytest.raises(NotForUs):
        read_pcp_mapped(PCP_MAPPED, WISH, nonce=bytes(12))
    with pytest.raises(NotForUs):
        read_pcp_mapped(PCP_MAPPED, Wish(proto="udp", **_fields(WISH)), nonce=NONCE)
    refused = bytearray(PCP_MAPPED)
    refused[3] = 2
    with pytest.raises(MapRefused, match="not allowed") as caught:
        read_pcp_mapped(bytes(refused), WISH, nonce=NONCE)
    assert caught.value.result == 2 and caught.value.epoch == 100
    without_port = bytearray(PCP_MAPPED)
    without_port[42:44] = bytes(2)
    with pytest.raises(RemoteProtocolError, match="has no port"):
        read_pcp_mapped(bytes(without_port), WISH, nonce=NONCE)
    assert read_pcp_announced(bytes.fromhex("02800000 00000000 00000007".replace(" ", "")) + bytes(12)) == 7


def _fields(wish: Wish) -> "dict[str, int]":
    return {
        "internal_port": wish.internal_port,
        "external_port": wish.external_port,
        "lifetime": wish.lifetime,
    }


def test_natpmp() -> None:
    assert natpmp_ask_address() == bytes(2)
    assert natpmp_map(WISH) == bytes.fromhex("00020000 4416 4417 00001c20".replace(" ", ""))
    outside = read_natpmp_address(bytes.fromhex("00800000 00000064 14010002".replace(" ", "")))
    assert (outside.host, outside.epoch) == ("20.1.0.2", 100)
    mapped = bytes.fromhex("00820000 00000064 4416 4417 00000e10".replace(" ", ""))
    granted = read_natpmp_mapped(mapped, WISH)
    assert (granted.external_port, granted.lifetime, granted.external_host) == (0x4417, 3600, "")
    with pytest.raises(NotForUs):
        read_natpmp_mapped(mapped[:8] + b"\0\1" + mapped[10:], WISH)
    with pytest.raises(MapRefused, match="switched off"):
        read_natpmp_mapped(bytes.fromhex("00820002 00000064".replace(" ", "")), WISH)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda tail: PCP_MAPPED[:24] + tail))
def test_anything_else_is_refused(data: bytes) -> None:
    for read in (
        read_pcp_announced,
        read_natpmp_address,
        lambda data: read_pcp_mapped(data, WISH, nonce=NONCE),
        lambda data: read_natpmp_mapped(data, WISH),
    ):
        try:
            read(data)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize(
    "bad", [{"internal_port": 0}, {"internal_port": 65536}, {"external_port": -1}, {"lifetime": 1 << 32}]
)
def test_a_wish_that_cannot_be_written(bad: "dict[str, int]") -> None:
    with pytest.raises(LocalProtocolError):
        Wish(proto="tcp", **{**_fields(WISH), **bad})


def test_our_own_mistakes() -> None:
    with pytest.raises(LocalProtocolError):
        pcp_map(WISH, client="garage", nonce=NONCE)
    with pytest.raises(LocalProtocolError):
        pcp_map(WISH, client="10.0.0.1", nonce=b"")


def natpmp(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("00", RemoteProtocolError),
        ("008000", RemoteProtocolError),
        ("00800000 00000064 14010002 00", RemoteProtocolError),
        ("00800000 00000064 140100", RemoteProtocolError),
        ("01800000 00000064 14010002", RemoteProtocolError),
        ("02800001 00000064 14010002", MapRefused),
        ("00000000 00000064 14010002", NotForUs),
        ("00810000 00000064 14010002", NotForUs),
        ("00800003", MapRefused),
    ],
)
def test_an_address_by_natpmp_is_read_or_refused_by_its_kind(data: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        read_natpmp_address(natpmp(data))
    assert type(caught.value) is error


@pytest.mark.parametrize(("data", "epoch"), [("00800003 00000007", 7), ("00800003 000000", None)])
def test_a_refusal_by_natpmp_tells_its_epoch_if_it_is_whole(data: str, epoch: int | None) -> None:
    with pytest.raises(MapRefused) as caught:
        read_natpmp_address(natpmp(data))
    assert (caught.value.result, caught.value.epoch) == (3, epoch)


@pytest.mark.parametrize(("external", "lifetime"), [("0000", "00000e10"), ("4417", "00000000")])
def test_a_mapping_by_natpmp_has_a_port_and_a_lifetime_unless_it_ends(external: str, lifetime: str) -> None:
    data = natpmp(f"00820000 00000064 4416 {external} {lifetime}")
    with pytest.raises(RemoteProtocolError, match="no port or no lifetime"):
        read_natpmp_mapped(data, WISH)
    gone = Wish(proto="tcp", internal_port=17430, external_port=0, lifetime=0)
    assert read_natpmp_mapped(data, gone).internal_port == 0x4416
    with pytest.raises(RemoteProtocolError, match="bytes"):
        read_natpmp_mapped(data + b"\0", WISH)
