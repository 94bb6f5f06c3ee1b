"""Which hosts only this machine reaches, and which none does."""

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.hosts import is_loopback, why_no_host


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::1%lo", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("x", False),
        ("", False),
    ],
)
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    "host",
    [
        "relay.example.org",
        "relay.example.org.",
        "a" * 63 + ".x",
        "192.0.2.7",
        "::1",
        "host_1",
        "xn--bcher-kva.x",
    ],
)
def test_a_host_that_can_be_looked_up(host: str) -> None:
    assert why_no_host(host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        ".x",
        "x..y",
        "a" * 64,
        "a" * 64 + ".x",
        "x." * 127 + "x",
        "bücher.x",
        "a b",
        "x/y",
        "::x",
        "a\0",
    ],
)
def test_what_no_resolver_takes(host: str) -> None:
    assert why_no_host(host)


@given(st.text(max_size=80) | st.from_regex(r"[a-z.\-_]{1,70}(\.[a-z]{0,70}){0,4}", fullmatch=True))
def test_what_passes_is_taken_by_the_resolver_and_by_tls(host: str) -> None:
    if not why_no_host(host):
        host.encode("idna")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=host)
