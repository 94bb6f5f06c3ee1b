"""Test what `meshd bench` makes of its options."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UsageError
from meshd.cli.bench import read_proxy

LOCAL = "127.0.0.1"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("6001:5001", ((LOCAL, 6001), (LOCAL, 5001))),
        ("0:5001", ((LOCAL, 0), (LOCAL, 5001))),
        ("6001:10.0.0.2:5001", ((LOCAL, 6001), ("10.0.0.2", 5001))),
        ("0.0.0.0:6001:5001", (("0.0.0.0", 6001), (LOCAL, 5001))),
        ("127.0.0.2:6001:10.0.0.2:5001", (("127.0.0.2", 6001), ("10.0.0.2", 5001))),
        ("[::1]:6001:[fd00::2]:5001", (("::1", 6001), ("fd00::2", 5001))),
        ("6001:[::1]:5001", ((LOCAL, 6001), ("::1", 5001))),
    ],
)
def test_both_places(text: str, places: tuple[tuple[str, int], tuple[str, int]]) -> None:
    assert read_proxy(text) == places


@pytest.mark.parametrize(
    "text",
    [
        "",
        "6001",
        "6001:",
        ":5001",
        "6001:0",
        "1:2:3",
        "a:b",
        "a:1:b",
        "70000:1",
        "[::1:1:2",
        "1:2:",
        "a:b:1:2",
    ],
)
def test_not_places(text: str) -> None:
    with pytest.raises(UsageError):
        read_proxy(text)


@given(st.text(max_size=60) | st.from_regex(r"[0-9:.a\[\]]{0,30}", fullmatch=True))
def test_any_text(text: str) -> None:
    with contextlib.suppress(UsageError):
        for host, port in read_proxy(text):
            assert host
            assert 0 <= port < 65536
