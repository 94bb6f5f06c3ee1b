"""Segments that pass every path, asked for by the dialer."""

import socket

import pytest
from meshd.link.tcp.sockets import MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES_V6, connect, limit_segments
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted


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
