"""Options of a link's socket: set where the system takes them, and left where it does not."""

import socket
import sys
from pathlib import Path

import pytest
from meshd.link.tcp.sockets import congestion_control, tune

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


def test_a_link_asks_for_bbr_where_it_may() -> None:
    with socket.socket() as sock:
        before = congestion_control(sock)
        tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        may = sys.platform == "linux" and "bbr" in ALLOWED.read_text().split()
        assert congestion_control(sock) == ("bbr" if may else before)


def test_what_the_system_refuses_is_left() -> None:
    class Refusing:
        def setsockopt(self, *option: object) -> None:
            raise OSError("not permitted")

        def getsockopt(self, *option: object) -> bytes:
            raise OSError("not permitted")

    tune(Refusing())  # type: ignore[arg-type]
    assert congestion_control(Refusing()) == ""  # type: ignore[arg-type]


def test_systems_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    with socket.socket() as sock:
        tune(sock)
        assert congestion_control(sock) == ""
