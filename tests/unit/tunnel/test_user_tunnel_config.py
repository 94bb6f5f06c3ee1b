"""Exposed services and tunnels: to bytes and back, limits, names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity.keys import PeerId
from meshd.tunnel.user_tunnel_config import (
    MAX_ALLOWED_PEERS,
    MAX_EXPOSED,
    Exposed,
    Kept,
    Opened,
    check_name,
    is_name,
    unique,
)
from meshd.wire.message import Value, pack

peers = st.binary(min_size=32, max_size=32).map(PeerId)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
hosts = st.sampled_from(["127.0.0.1", "::1", "nas.lan"])
exposed = st.builds(
    Exposed,
    name=names,
    host=hosts,
    port=st.integers(1, 65535),
    peers=st.lists(peers, max_size=4, unique=True).map(tuple),
)
opened = st.builds(Opened, peer=peers, service=names, host=hosts, port=st.integers(0, 65535))


@given(st.lists(exposed, max_size=4).map(tuple), st.lists(opened, max_size=4).map(tuple))
def test_what_is_kept_is_read_again(these: tuple[Exposed, ...], those: tuple[Opened, ...]) -> None:
    kept = Kept(these, those)
    assert Kept.decode(kept.encode()) == kept


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        Kept.decode(data)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize(
    "damage",
    [
        {"name": "../up"},
        {"name": ""},
        {"port": 0},
        {"port": 65536},
        {"peers": [b"short"]},
        {"peers": [bytes(32)] * (MAX_ALLOWED_PEERS + 1)},
        {"host": "h" * 300},
    ],
)
def test_a_damaged_service_is_refused(damage: dict[str, Value]) -> None:
    good: dict[str, Value] = {"name": "web", "host": "127.0.0.1", "port": 80, "peers": [bytes(32)]}
    assert Kept.decode(pack({"exposed": [good], "opened": []})).exposed[0].name == "web"
    with pytest.raises(RemoteProtocolError):
        Kept.decode(pack({"exposed": [{**good, **damage}], "opened": []}))
    with pytest.raises(RemoteProtocolError):
        Kept.decode(pack({"exposed": [good] * (MAX_EXPOSED + 1), "opened": []}))


@pytest.mark.parametrize("text", ["", ".web", "-x", "a b", "ä", "a" * 64, "a/b", "a\n"])
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(UserError, match="cannot be the name of a service"):
        check_name(text)


def test_a_node_counts_once_and_few_are_named() -> None:
    one, two = PeerId(b"1" * 32), PeerId(b"2" * 32)
    assert unique([one, two, one]) == (one, two)
    with pytest.raises(UserError, match="can be exposed to"):
        unique(PeerId(number.to_bytes(32, "big")) for number in range(MAX_ALLOWED_PEERS + 1))
