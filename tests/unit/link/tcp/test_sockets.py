"""Listening sockets: which are opened, and what is said of a port that is taken."""

import os
import socket
import sys
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.link.net.one_port import PortTaken
from meshd.link.tcp.sockets import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_BYTES_V6,
    congestion_control,
    connect,
    limit_segments,
    listen,
    tune,
)
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import has_ipv6


def places(sockets: list[socket.socket]) -> list[tuple[str, int]]:
    found = [(sock.getsockname()[0], sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return found


@pytest.mark.parametrize("host", ["", "::"])
def test_all_addresses_share_a_port(host: str) -> None:
    found = places(listen(host, 0))
    assert [place[0] for place in found] == ["0.0.0.0", "::"][: 1 + has_ipv6()]
    assert len({place[1] for place in found}) == 1


def test_a_name_is_looked_up() -> None:
    found = places(listen("localhost", 0))
    assert {place[0] for place in found} <= {"127.0.0.1", "::1"}
    assert len({place[1] for place in found}) == 1


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_taken_port_is_named_with_its_holder(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            listen(host, port)
        assert caught.value.port == port
        assert f"`{port}`" in caught.value.what
        assert "--listen" in caught.value.hint
        if sys.platform == "linux":
            assert f"(pid {os.getpid()})" in caught.value.what
    assert places(listen(host, port))[0][1] == port


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_a_port_taken_in_one_family_only_leaves_nothing_open() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken):
            listen("", port)
        # the IPv4 half that was opened before is closed again
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize("host", ["198.51.100.1", "no such name", "x" * 300, "2001:db8::1"])
def test_an_address_of_somebody_else(host: str) -> None:
    with pytest.raises(UserError) as caught:
        listen(host, 0)
    assert host[:40] in caught.value.what
    assert caught.value.hint


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


@pytest.mark.parametrize(
    ("family", "host", "most"),
    [
        (socket.AF_INET, "20.0.0.1", MAX_SEGMENT_BYTES),
        (socket.AF_INET, "100.64.0.1", MAX_SEGMENT_BYTES),  # a carrier's: many networks may lie between
        (socket.AF_INET6, "2a0e::1", MAX_SEGMENT_BYTES_V6),
    ],
)
def test_segments_towards_the_world_are_small(family: int, host: str, most: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        limit_segments(sock, host)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) == most


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.1", "10.0.0.1", "169.254.1.1"])
def test_segments_at_home_are_left(host: str) -> None:
    with socket.socket() as sock:
        before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        limit_segments(sock, host)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) == before


async def test_a_connection_is_made_or_its_socket_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        to = trusted([Candidate(*place)])[0]
        sock = await connect(to)
        with sock:
            assert sock.getpeername() == place
            assert not sock.getblocking()
    with pytest.raises(ConnectionRefusedError):
        await connect(to)
