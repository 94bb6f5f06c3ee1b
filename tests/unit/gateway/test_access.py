"""Who may call the API: its port, foreign web pages, and the file of API keys."""

import asyncio
import contextlib
import errno
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.base.sockets import listen_at
from meshd.gateway import access
from meshd.gateway.access import (
    LIMIT_NAMES,
    ApiPort,
    BrowserGuard,
    HttpAuthority,
    KeyRing,
    all_loopback,
    bind,
    foreign_headers,
    is_form,
    is_navigation,
    load_keys,
    may_be_json,
    normal_host,
    normal_origin,
    origin_pattern,
    parse_authority,
    parse_keys,
    preflight_headers,
    resolve,
)
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits
from multidict import CIMultiDict, CIMultiDictProxy

V4, V6 = socket.AF_INET, socket.AF_INET6


def test_loopback_is_told_from_the_rest() -> None:
    assert all_loopback([(V4, "127.0.0.1"), (V4, "127.8.8.8"), (V6, "::1")])
    for address in (
        (V4, "0.0.0.0"),
        (V6, "::"),
        (V4, "10.0.0.1"),
        (V6, "fe80::1%eth0"),
        (V6, "::ffff:10.0.0.1"),
    ):
        assert not all_loopback([(V4, "127.0.0.1"), address])


def test_a_host_is_resolved_once_per_address() -> None:
    assert asyncio.run(resolve("127.0.0.1")) == [(V4, "127.0.0.1")]
    assert asyncio.run(resolve("::1")) == [(V6, "::1")]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EACCES, "needs privileges that this user lacks"),
        (errno.EADDRNOTAVAIL, "this machine has no address `127.0.0.1`"),
        (errno.EAFNOSUPPORT, "this machine has no address `127.0.0.1`"),
        (errno.EADDRINUSE, "port `80` on `127.0.0.1` is taken by `nginx` (pid 1)"),
        (errno.ENOBUFS, "cannot listen on `127.0.0.1` port `80`"),
    ],
)
def test_each_reason_has_words(monkeypatch: pytest.MonkeyPatch, code: int, says: str) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(code, "Some Reason")

    monkeypatch.setattr(access, "listen_at", refuse)
    monkeypatch.setattr(access, "port_holder", lambda host, port: "`nginx` (pid 1)")
    with pytest.raises(UserError) as caught:
        bind([(V4, "127.0.0.1")], 80)
    assert says in caught.value.what
    assert caught.value.hint


def test_a_taken_port_whose_holder_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "port_holder", lambda host, port: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError) as caught:
            bind([(V4, "127.0.0.1")], port)
    assert caught.value.what == f"port `{port}` on `127.0.0.1` is taken"


def test_a_family_that_is_missing_does_not_matter_when_another_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listen_at

    def v4_only(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if family == V6:
            raise OSError(errno.EAFNOSUPPORT, "no v6 here")
        return real(family, address, port)

    monkeypatch.setattr(access, "listen_at", v4_only)
    sockets = bind([(V6, "::1"), (V4, "127.0.0.1")], 0)
    assert [found.family for found in sockets] == [V4]
    for found in sockets:
        found.close()


def test_what_was_bound_is_closed_when_a_later_address_fails() -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match="taken"):
            bind([(V4, "127.0.0.1"), (V4, "127.0.0.2")], port)
        with socket.create_server(("127.0.0.1", port)):
            pass


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
    guard(origins=("https://*.example.com:*", "app://*")).is_foreign_but_allowed(text)
    may_be_json({"Content-Type": text, "Origin": text})


@given(st.text())
def test_any_pattern_is_read_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        origin_pattern(text).fullmatch(normal_origin(text))


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
    assert guard().host_allowed("LocalHost") and guard().host_allowed("127.9.9.9:1")
    for host in (None, "evil.example", "evil.example:8090", "127.0.0.1.evil.example", "192.168.1.5:8090"):
        assert not guard().host_allowed(host)


def test_an_origin_passes_when_same_or_listed() -> None:
    here = guard("0.0.0.0", names=("box.lan",), origins=("https://Chat.example/",))
    assert here.origin_allowed(None, "box.lan:80")
    assert here.origin_allowed("http://box.lan:80", "box.lan:80")
    assert here.origin_allowed("https://chat.example", "box.lan:80")
    for bad in ("http://box.lan", "null", "ftp://box.lan:80", "http://chat.example", "box.lan:80", *PROGRAMS):
        assert not here.origin_allowed(bad, "box.lan:80")
    assert here.is_foreign_but_allowed("https://chat.example")
    assert not here.is_foreign_but_allowed("http://box.lan:80")


PROGRAMS = (
    "app://obsidian.md",
    "tauri://localhost",
    "http://tauri.localhost",
    "file://",
    "vscode-webview://1l2m3n",
    "vscode-file://vscode-app",
    "chrome-extension://abcdefghijklmnop",
    "moz-extension://0b7c9d1e-aaaa-bbbb-cccc-0123456789ab",
    "safari-web-extension://ABCD",
    "http://localhost",
    "http://localhost:3000",
    "https://LOCALHOST:5173",
    "http://127.0.0.1:8080",
    "http://[::1]:8080",
)


@pytest.mark.parametrize(
    ("origin", "bound"),
    [*((origin, "127.0.0.1") for origin in PROGRAMS), (PROGRAMS[0], "::1"), (PROGRAMS[0], "localhost")],
)
def test_on_loopback_programs_of_this_machine_may_call(origin: str, bound: str) -> None:
    assert guard(bound).origin_allowed(origin, "127.0.0.1:8090")
    assert guard(bound).is_foreign_but_allowed(origin)
    assert guard(bound).site_allowed({"Sec-Fetch-Site": "cross-site", "Origin": origin})


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://localhost.evil.example",
        "http://localhost.evil.example:3000",
        "http://evillocalhost",
        "http://127.0.0.1.evil.example",
        "http://localhost@evil.example",
        "http://192.168.1.7:3000",
        "null",
        "",
        "app",
        "app:",
        "ws://localhost:3000",
        "application://x",
        "http://localhost:3000, http://evil.example",
    ],
)
def test_on_loopback_web_sites_stay_out(origin: str) -> None:
    assert not guard().origin_allowed(origin, "127.0.0.1:8090")


@pytest.mark.parametrize(
    ("site", "allowed"),
    [
        (None, True),
        ("none", True),
        (" Same-Origin", True),
        ("same-site", False),
        ("cross-site", False),
        ("Cross-Site", False),
        ("", False),
        ("sideways", False),
    ],
)
def test_a_page_of_another_site_is_known_without_an_origin(site: str | None, allowed: bool) -> None:
    sent = {} if site is None else {"Sec-Fetch-Site": site}
    assert guard(origins=("http://app.example:3000",)).site_allowed(sent) is allowed


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (
            "https://*.example.com",
            ("https://a.example.com", "https://a.b.EXAMPLE.com", "https://a.example.com:443"),
            (
                "https://example.com",
                "http://a.example.com",
                "https://aexample.com",
                "https://a.example.com:1",
            ),
        ),
        (
            "http://box.lan:*",
            ("http://box.lan", "http://box.lan:3000"),
            ("https://box.lan", "http://a.box.lan:3000", "http://box.lan:x"),
        ),
        ("https://chat.example:443", ("https://chat.example",), ("https://chat.example:8443",)),
        ("capacitor://*", ("capacitor://localhost", "capacitor://"), ("http://capacitor", "capacitor:")),
        ("app://obsidian.md", ("app://obsidian.md",), ("app://other", "app://obsidian.md.evil")),
    ],
)
def test_patterns_match(pattern: str, matching: tuple[str, ...], other: tuple[str, ...]) -> None:
    here = guard("0.0.0.0", origins=(pattern,))
    assert [one for one in matching if not here.is_foreign_but_allowed(one)] == []
    assert [one for one in other if here.is_foreign_but_allowed(one)] == []


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "chat.example", "http://", "http://a b", "http://a/path", "http://u@a", "http://a:x"),
        *("http://*", "https://*:*", "http://*.", "http://192.168.1.*", "http://a*.example", "http://a:3*"),
        *("*://a.example", "app://*.md", "https://a.*.example"),
    ],
)
def test_what_no_origin_could_match_is_refused(origin: str) -> None:
    with pytest.raises(UserError) as caught:
        guard(origins=(origin,))
    assert origin in caught.value.what


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "text/plain; x=application/json",
        "multipart/form-data; boundary=a",
        "application/x-www-form-urlencoded",
        "application/jsonx",
    ],
)
def test_only_a_browser_has_to_say_that_it_sends_json(kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    assert may_be_json(headers)
    assert not may_be_json({**headers, "Origin": "http://localhost:3000"})
    assert not may_be_json({**headers, "Sec-Fetch-Site": "same-origin"})
    for json in ("application/json", "Application/JSON; charset=utf-8"):
        assert may_be_json({"Content-Type": json, "Origin": "http://localhost:3000"})


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


def test_a_key_may_have_a_name_and_limits() -> None:
    text = "sk-desk-1234\nsk-anna-1234  name=anna tokens_per_day=1000\tconcurrent=2 requests_per_minute=60\n"
    first, second = parse_keys(text, label="keys")
    assert first == ApiKey("sk-desk-1234", "key-1", KeyLimits())
    assert second == ApiKey("sk-anna-1234", "anna", KeyLimits(2, 60, 1000))


@pytest.mark.parametrize(
    ("rest", "what"),
    [
        ("sk-another-secret", "something else"),
        ("name=anna name=bob", "something else"),
        ("colour=red-secret", "something else"),
        ("name=", "not a name"),
        ("name=-secret", "not a name"),
        (f"name={'a' * 64}", "not a name"),
        ("concurrent=0", "not a number"),
        ("concurrent=two-secret", "not a number"),
        ("tokens_per_day=-1", "not a number"),
        ("tokens_per_day=99999999999999", "not a number"),
        ("requests_per_minute=1e3", "not a number"),
    ],
)
def test_a_bad_option_is_told_without_the_line(rest: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        parse_keys(f"# first\nsk-12345678 {rest}", label="keys")
    told = caught.value.what + caught.value.hint
    assert "line 2" in told and "secret" not in told and "sk-1" not in told


def test_names_are_unique() -> None:
    with pytest.raises(UserError, match="`anna`"):
        parse_keys("sk-12345678 name=anna\nsk-87654321 name=anna", label="keys")
    with pytest.raises(UserError, match="`key-2`"):
        parse_keys("sk-12345678 name=key-2\nsk-87654321", label="keys")


def test_a_secret_is_not_in_what_is_printed_of_a_key() -> None:
    assert "sk-12345678" not in repr(ApiKey("sk-12345678"))


@given(
    st.lists(st.tuples(st.sampled_from(LIMIT_NAMES), st.integers(1, 10**12)), unique_by=lambda one: one[0])
)
def test_all_limits_are_read(limits: list[tuple[str, int]]) -> None:
    line = " ".join(["sk-12345678", *(f"{name}={value}" for name, value in limits)])
    (key,) = parse_keys(line, label="keys")
    assert {name: getattr(key.limits, name) for name in LIMIT_NAMES} == dict.fromkeys(LIMIT_NAMES) | dict(
        limits
    )


@given(st.text())
def test_any_text_is_keys_or_an_error(text: str) -> None:
    try:
        keys = parse_keys(text, label="keys")
    except UserError as error:
        assert error.what and error.hint
    else:
        assert len({key.name for key in keys}) == len(keys)


KEYS = st.text([chr(code) for code in range(0x21, 0x7F)], min_size=8, max_size=60)


def key_file(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def test_keys_are_read_line_by_line(tmp_path: Path) -> None:
    text = "# for the desk\nsk-desk-1234\n\n   # indented\r\n  sk-laptop-1234  \r\nsk#inside-5678"
    keys = load_keys(key_file(tmp_path, text))
    assert [key.secret for key in keys] == ["sk-desk-1234", "sk-laptop-1234", "sk#inside-5678"]
    assert [key.name for key in keys] == ["key-1", "key-2", "key-3"]


def test_a_secret_of_a_container_may_have_any_mode(tmp_path: Path) -> None:
    secret, elsewhere = tmp_path / "run/secrets/api-keys", tmp_path / "api-keys"
    secret.parent.mkdir(parents=True)
    for path in (secret, elsewhere):
        path.write_text("sk-0123456789abcdef")
        path.chmod(0o444)
    (tmp_path / "run/secrets/link").symlink_to(elsewhere)
    for path in (secret, elsewhere):
        with pytest.raises(UserError, match="accessible to others"):
            load_keys(path, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert [key.secret for key in load_keys(secret, tmp_path)] == ["sk-0123456789abcdef"]
    for path in (elsewhere, tmp_path / "run/secrets/link"):
        with pytest.raises(UserError, match="accessible to others"):
            load_keys(path, tmp_path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644, 0o777])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, "sk-12345678", mode)
    with pytest.raises(UserError) as caught:
        load_keys(path)
    assert f"{mode:04o}" in caught.value.what
    assert caught.value.hint == f"run `chmod 600 {path}`"


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_passes(tmp_path: Path, mode: int) -> None:
    assert load_keys(key_file(tmp_path, "sk-12345678", mode)) == (ApiKey("sk-12345678"),)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path, "sk-12345678")
    os.chown(path, 12345, -1)
    with pytest.raises(UserError, match="another user"):
        load_keys(path)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="contains no key"):
        load_keys(key_file(tmp_path, text))


@pytest.mark.parametrize("bad", ["two words-123", "short", "sk-1234567é", "sk-1234\x01567"])
def test_a_bad_line_is_named_without_its_text(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UserError) as caught:
        load_keys(key_file(tmp_path, f"sk-12345678\n{bad}\n"))
    assert "line 2" in caught.value.what
    assert bad not in caught.value.what + caught.value.hint


def test_what_is_no_key_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path, why in (
        (tmp_path / "absent", "no such file"),
        (tmp_path, "is a directory"),
        (fifo, "not a regular file"),
    ):
        with pytest.raises(UserError, match=why):
            load_keys(path)
    with pytest.raises(UserError, match="not text"):
        load_keys(key_file(tmp_path, b"\xff\xfe"))
    with pytest.raises(UserError, match="larger than 1 MiB"):
        load_keys(key_file(tmp_path, b"a" * ((1 << 20) + 1)))


@given(st.lists(KEYS, min_size=1, max_size=4, unique=True), st.data())
def test_exactly_the_keys_open(keys: list[str], draw: st.DataObject) -> None:
    ring = KeyRing([ApiKey(key) for key in keys])
    key = draw.draw(st.sampled_from(keys))
    assert ring.match({"Authorization": f"Bearer {key}"}) is not None
    assert ring.match({"X-Api-Key": key}) is not None
    other = draw.draw(KEYS.filter(lambda text: text not in keys))
    assert ring.match({"Authorization": f"Bearer {other}"}) is None
    assert ring.match({"X-Api-Key": other}) is None
    assert ring.match({"Authorization": f"Bearer {key[:-1]}"}) is None
    for wrong in (key, "Bearer", f"Basic {key}"):
        assert ring.match({"Authorization": wrong, "X-Api-Key": ""}) is None


@given(st.text(), st.text())
def test_any_header_can_be_judged(authorization: str, key: str) -> None:
    headers = {"Authorization": authorization, "X-Api-Key": key}
    assert KeyRing([ApiKey("sk-never-guessed-0123456789")]).match(headers) is None
    assert KeyRing([]).match(headers) is not None


def test_keys_do_not_show() -> None:
    assert "sk-12345678" not in repr(GatewayConfig(api_keys=(ApiKey("sk-12345678"),)))


@pytest.mark.parametrize(
    ("keys", "most", "share"),
    [(0, 10, 10), (1, 10, 10), (2, 10, 7), (3, 8, 6), (2, 4, 3), (2, 1, 1), (2, 0, 1)],
)
def test_one_of_several_keys_has_three_quarters(keys: int, most: int, share: int) -> None:
    ring = KeyRing([ApiKey(f"key-{number:020}") for number in range(keys)])
    assert ring.share_of(most) == share and len(ring) == keys


@pytest.mark.parametrize(
    ("lines", "opens_page", "code"),
    [
        ((("Host", "localhost"),), False, ""),
        ((), False, "bad_host"),
        ((("Host", "localhost"), ("Host", "localhost")), False, "bad_host"),
        ((("Host", "evil.example"),), False, "host_not_allowed"),
        ((("Host", "localhost"), ("Origin", "https://evil.example")), False, "origin_not_allowed"),
        ((("Host", "localhost:1"), ("Origin", "http://localhost:1")), False, ""),
        (
            (("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://localhost")),
            False,
            "origin_not_allowed",
        ),
        ((("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")), False, "site_not_allowed"),
        ((("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")), True, "site_not_allowed"),
        ((("Host", "localhost"), ("Sec-Fetch-Site", "same-origin")), False, ""),
    ],
)
def test_a_request_is_checked_by_its_host_origin_and_site(
    lines: tuple[tuple[str, str], ...], opens_page: bool, code: str
) -> None:
    headers = CIMultiDictProxy(CIMultiDict(lines))
    if not code:
        guard().check(headers, opens_page=opens_page)
        return
    with pytest.raises(HttpRefusal) as refused:
        guard().check(headers, opens_page=opens_page)
    failure = refused.value.failure
    assert (failure.code, failure.status) == (code, 400 if code == "bad_host" else 403)
    assert failure.type == ("invalid_request_error" if code == "bad_host" else "permission_error")


def test_any_site_may_link_to_the_page_and_nothing_else() -> None:
    opens = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for wanted, passes in (("document", True), ("iframe", False)):
        headers = CIMultiDictProxy(CIMultiDict({**opens, "Sec-Fetch-Dest": wanted}))
        assert is_navigation(headers) is passes
        with contextlib.nullcontext() if passes else pytest.raises(HttpRefusal):
            guard().check(headers, opens_page=True)
        with pytest.raises(HttpRefusal):
            guard().check(headers, opens_page=False)
    assert not is_navigation({"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "document"})


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("multipart/form-data; boundary=x", True),
        (" Multipart/Form-Data ", True),
        ("multipart/mixed", False),
        ("application/x-www-form-urlencoded", False),
        (None, False),
    ],
)
def test_a_form_is_known_by_its_type(kind: str | None, form: bool) -> None:
    assert is_form(kind) is form


def test_a_page_of_an_allowed_origin_may_read_an_answer() -> None:
    assert foreign_headers("https://chat.example") == {
        "Access-Control-Allow-Origin": "https://chat.example",
        "Access-Control-Expose-Headers": "Retry-After",
        "Vary": "Origin",
    }


async def test_a_claimed_port_is_bound_until_it_is_closed() -> None:
    port = await ApiPort.claim(GatewayConfig(port=0))
    assert port.port == port.sockets[0].getsockname()[1] != 0 and not port.keys
    assert not port.guard.host_allowed(f"{socket.gethostname()}.local"), "it is of this machine alone"
    with pytest.raises(UserError, match="is taken"):
        await ApiPort.claim(GatewayConfig(port=port.port))
    port.close()
    again = await ApiPort.claim(GatewayConfig(port=port.port))
    again.close()
    again.close()
    assert again.sockets[0].fileno() == -1


async def test_beyond_this_machine_keys_are_demanded_and_its_names_are_known() -> None:
    with pytest.raises(UserError, match="open to everyone"):
        await ApiPort.claim(GatewayConfig(host="0.0.0.0", port=0))
    port = await ApiPort.claim(GatewayConfig(host="0.0.0.0", port=0, api_keys=(ApiKey("a-long-key"),)))
    port.close()
    name = socket.gethostname()
    if normal_host(name):
        assert port.guard.host_allowed(name) and port.guard.host_allowed(f"{name}.local")
    assert port.guard.host_allowed("192.0.2.7") and not port.guard.host_allowed("evil.example")
