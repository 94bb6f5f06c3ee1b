"""Forms of values: what they take, and that anything else is a ValueError and nothing worse."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.config import forms
from meshd.config.forms import (
    HostPort,
    choice,
    listed,
    parse_address,
    parse_duration,
    parse_rate,
    parse_size,
    whole,
)
from meshd.config.setting import Setting
from meshd.config.tree import SETTINGS

GIB = 1 << 30
JUNK: list[object] = [None, True, 1.5, [], {}, b"8G", object(), "", " ", "\0"]


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("8G", 8 * GIB),
        ("8g", 8 * GIB),
        ("8GiB", 8 * GIB),
        ("8 GiB", 8 * GIB),
        ("8GB", 8 * 10**9),
        ("512M", 512 << 20),
        ("1.5G", 3 * GIB // 2),
        ("2T", 2 << 40),
        ("1K", 1024),
        ("4096", 4096),
        ("4096B", 4096),
        (4096, 4096),
    ],
)
def test_sizes(text: object, bytes_: int) -> None:
    assert parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["0", "-1", "8X", "G", "8GG", "1e9", "8G8", "99999999999T", 0, -5, *JUNK])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("20Mbit", 2_500_000),
        ("20 mbit/s", 2_500_000),
        ("20Mbps", 2_500_000),
        ("20Mb", 2_500_000),
        ("2.5MB", 2_500_000),
        ("2.5MB/s", 2_500_000),
        ("64kbit", 8_000),
        ("64000bit", 8_000),
        ("1Gbit", 125_000_000),
        ("9000B", 9000),
        ("1kbyte", None),
    ],
)
def test_rates(text: str, bytes_: int | None) -> None:
    if bytes_ is None:
        with pytest.raises(ValueError):  # less than any session needs
            parse_rate(text)
    else:
        assert parse_rate(text) == bytes_


@pytest.mark.parametrize(
    "text", ["0", "20", "20M", "-1Mbit", "63kbit", "1e6bit", "9999999Tbit", 20_000_000, *JUNK]
)
def test_what_is_no_rate(text: object) -> None:
    with pytest.raises(ValueError):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86400),
        ("30m", 1800),
        ("7d", 604800),
        ("1h30m", 5400),
        ("90s", 90),
        ("90", 90),
        ("2w", 1209600),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["0", "0s", "h", "1y", "1h x", "-1h", "1.5h", "999999999w", *JUNK])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:17430", HostPort("0.0.0.0", 17430)),
        (":0", HostPort("", 0)),
        ("*:5", HostPort("", 5)),
        ("[::]:17430", HostPort("::", 17430)),
        ("[fe80::1%eth0]:1", HostPort("fe80::1%eth0", 1)),
        ("gpu-1.lan:65535", HostPort("gpu-1.lan", 65535)),
    ],
)
def test_addresses(text: str, address: HostPort) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["1.2.3.4", "::1:80", "[::1]", "h:65536", "h:-1", "h:x", "h h:1", "[x]:1", "a/b:1", "[[::1]:1", *JUNK],
)
def test_what_is_no_address(text: object) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


def test_an_address_prints_as_it_is_read() -> None:
    for address in (HostPort("::1", 80), HostPort("10.0.0.1", 0), HostPort("", 17430)):
        assert parse_address(str(address)) == address


def test_an_address_to_connect_to_needs_host_and_port() -> None:
    assert forms.PEER_ADDRESS.read("10.0.0.1:50052") == HostPort("10.0.0.1", 50052)
    for text in (":50052", "10.0.0.1:0", "*:1"):
        with pytest.raises(ValueError):
            forms.PEER_ADDRESS.read(text)


def test_lists() -> None:
    form = listed(choice("tcp", "quic"), unique=True)
    assert form.read("tcp,quic") == ("tcp", "quic")
    assert form.read(["tcp", "quic,tcp"]) == ("tcp", "quic")
    assert form.read([]) == ()
    for bad in ("tcp,", "tcp,x", [1], 7, None, {"tcp": 1}):
        with pytest.raises(ValueError):
            form.read(bad)


def test_a_list_without_commas_keeps_them() -> None:
    assert listed(forms.PATH, comma=False).read(["a,b.gguf"]) == (Path("a,b.gguf"),)


def test_none_is_the_empty_list_only_where_it_is_said() -> None:
    assert listed(forms.STUN, none="none").read(["none"]) == ()
    with pytest.raises(ValueError):
        listed(forms.STUN).read(["none"])
    with pytest.raises(ValueError):
        listed(forms.STUN, none="none").read(["none", "stun.example.org:3478"])


def test_whole_numbers() -> None:
    form = whole(0, 65535)
    assert (form.read(" 8090 "), form.read(0), form.read("65535")) == (8090, 0, 65535)
    for bad in (-1, 65536, "8090x", "1.0", "", True, 1.0, "9" * 30, None):
        with pytest.raises(ValueError):
            form.read(bad)


def test_shares_are_finite_and_not_negative() -> None:
    form = listed(forms.WEIGHT)
    assert form.read("1,2.5,0") == (1.0, 2.5, 0.0)
    for bad in ("-1", "nan", "inf", "x", [True]):
        with pytest.raises(ValueError):
            form.read(bad)


@pytest.mark.parametrize("name", ["a", "garage-2", "A.b_c", "x" * 63])
def test_node_names(name: str) -> None:
    assert forms.NODE_NAME.read(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "x" * 64, "a\n", "ä", "a/b", "\x1b[2J", 5])
def test_what_is_no_node_name(name: object) -> None:
    with pytest.raises(ValueError):
        forms.NODE_NAME.read(name)


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=8)
)
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4), max_leaves=6)


@pytest.mark.parametrize("key", SETTINGS, ids=lambda key: key.name)
@given(value=_VALUES)
def test_a_form_raises_nothing_but_what_the_loader_expects(key: Setting, value: object) -> None:
    try:
        key.form.read(value)
    except (ValueError, UserError):  # UserError: `~name` of a user that does not exist
        pass


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (parse_rate, "999999T"),  # more bytes than there are
        (parse_rate, "1bit"),  # less than one message a second
        (parse_address, "[not:an-address]:1"),
        (parse_address, "[::g]:1"),
    ],
)
def test_what_looks_right_and_cannot_be(read: Callable[[object], object], value: object) -> None:
    with pytest.raises(ValueError):
        read(value)


@given(st.integers(1, (1 << 60) - 1) | st.integers(1, 1 << 20).map(lambda count: count << 30))
def test_a_size_is_written_as_it_can_be_read(count: int) -> None:
    assert forms.SIZE.read(forms.SIZE.write(count)) == count
    assert forms.SIZE_OR_NONE.write(0) == 0 and forms.SIZE.write(None) is None


@given(st.integers(forms.MIN_RATE_BYTES, 10**9) | st.integers(1, 1000).map(lambda count: count * 125_000))
def test_a_rate_is_written_as_it_can_be_read(rate: int) -> None:
    assert forms.RATE.read(forms.RATE.write(rate)) == rate


@pytest.mark.parametrize(("count", "text"), [(20 << 30, "20G"), (1536 << 20, "1536M"), (1000, 1000)])
def test_sizes_in_their_largest_unit(count: int, text: str | int) -> None:
    assert forms.SIZE.write(count) == text


@pytest.mark.parametrize(("rate", "text"), [(2_500_000, "20Mbit"), (8_000, "64kbit"), (8_001, "8001B")])
def test_rates_in_their_largest_unit(rate: int, text: str) -> None:
    assert forms.RATE.write(rate) == text
