"""Host, Origin and Content-Type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.gateway.browser import (
    BrowserGuard,
    HttpAuthority,
    is_json,
    normal_host,
    parse_authority,
    preflight_headers,
)


def guard(
    bound: str = "127.0.0.1", *, names: tuple[str, ...] = (), origins: tuple[str, ...] = ()
) -> BrowserGuard:
    return BrowserGuard(bound_host=bound, names=names, origins=origins)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost", "localhost", None),
        ("LOCALHOST.:80", "localhost", 80),
        ("127.0.0.1:8090", "127.0.0.1", 8090),
        ("[::1]", "::1", None),
        ("[0:0:0:0:0:0:0:1]:1", "::1", 1),
        ("a_b.c-d:", "a_b.c-d", None),
    ],
)
def test_authorities_are_read(text: str, host: str, port: int | None) -> None:
    assert parse_authority(text) == HttpAuthority(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "[::1",
        "::1",
        "[127.0.0.1]",
        "[::1]x",
        "a:b",
        "a:1:2",
        "a:123456",
        "a b",
        "a@b",
        "a/b",
        "-a",
        "a:²",
        "[]",
    ],
)
def test_what_is_no_authority_is_refused(text: str) -> None:
    assert parse_authority(text) is None
    assert not guard().host_allowed(text)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    parse_authority(text)
    normal_host(text)
    guard().host_allowed(text)
    guard().origin_allowed(text, text)
    is_json(text)


@given(st.ip_addresses(), st.none() | st.integers(0, 65535))
def test_addresses_pass_only_where_the_network_is_served(address: object, port: int | None) -> None:
    text = f"[{address}]" if ":" in str(address) else str(address)
    authority = text if port is None else f"{text}:{port}"
    assert parse_authority(authority) == HttpAuthority(str(address), port)
    loopback = str(address) == "::1" or str(address).startswith("127.")
    assert guard().host_allowed(authority) == loopback
    assert guard("0.0.0.0").host_allowed(authority)


def test_names_pass_when_bound_or_listed() -> None:
    assert not guard().host_allowed("box.lan")
    assert guard("box.lan").host_allowed("BOX.lan:1")
    assert guard(names=("Box.LAN",)).host_allowed("box.lan")
    assert not guard("0.0.0.0").host_allowed("box.lan")
    assert not guard().host_allowed(None)


def test_an_origin_passes_when_same_or_listed() -> None:
    here = guard(origins=("https://Chat.example/",))
    assert here.origin_allowed(None, "127.0.0.1:80")
    assert here.origin_allowed("http://127.0.0.1:80", "127.0.0.1:80")
    assert here.origin_allowed("https://chat.example", "127.0.0.1:80")
    for bad in (
        "http://127.0.0.1",
        "http://localhost:80",
        "null",
        "ftp://127.0.0.1:80",
        "http://chat.example",
        "127.0.0.1:80",
    ):
        assert not here.origin_allowed(bad, "127.0.0.1:80")
    assert here.is_foreign_but_allowed("https://chat.example")
    assert not here.is_foreign_but_allowed("http://127.0.0.1:80")


@pytest.mark.parametrize(
    "origin", ["*", "null", "chat.example", "http://", "http://a b", "http://a/path", "http://u@a"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(UserError) as caught:
        guard(origins=(origin,))
    assert origin in caught.value.what


@pytest.mark.parametrize("name", ["http://a", "a:80", "", "a b", "*"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UserError):
        guard(names=(name,))


def test_a_preflight_lets_only_header_names_through() -> None:
    allowed = preflight_headers("http://a", asked="x-a, authorization", private_network=False)
    assert allowed["Access-Control-Allow-Headers"] == "x-a, authorization"
    assert "Access-Control-Allow-Private-Network" not in allowed
    for bad in ("x\r\nSet-Cookie: a=b", "", "a b", None, "a," * 100):
        assert "Access-Control-Allow-Headers" not in preflight_headers(
            "http://a", asked=bad, private_network=True
        )
