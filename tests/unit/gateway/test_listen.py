"""Reasons why a port cannot be had."""

import asyncio
import errno
import socket

import pytest
from meshd.base.errors import UserError
from meshd.base.listening_socket import listen_at
from meshd.gateway import listen
from meshd.gateway.listen import all_loopback, bind, resolve

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

    monkeypatch.setattr(listen, "listen_at", refuse)
    monkeypatch.setattr(listen, "port_holder", lambda host, port: "`nginx` (pid 1)")
    with pytest.raises(UserError) as caught:
        bind([(V4, "127.0.0.1")], 80)
    assert says in caught.value.what
    assert caught.value.hint


def test_a_family_that_is_missing_does_not_matter_when_another_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listen_at

    def v4_only(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if family == V6:
            raise OSError(errno.EAFNOSUPPORT, "no v6 here")
        return real(family, address, port)

    monkeypatch.setattr(listen, "listen_at", v4_only)
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
