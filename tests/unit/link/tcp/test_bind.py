"""Listening sockets: which are opened, and what is said of a port that is taken."""

import asyncio
import errno
import os
import socket
import sys

import pytest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.link.net.one_port import PortTaken
from meshd.link.tcp import sockets
from meshd.link.tcp.sockets import accept_from, listen

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


class Exhausted(socket.socket):
    """A listening socket of a system that has run out of descriptors once."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class Greeted(asyncio.Protocol):
    """Says who has come."""

    def __init__(self, came: asyncio.Event) -> None:
        self._came = came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._came.set()
        transport.close()


async def test_accepting_goes_on_after_descriptors_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "NO_ROOM_SECONDS", 0.001)

    server = Exhausted()
    server.setblocking(False)
    server.bind(("127.0.0.1", 0))
    server.listen()
    came = asyncio.Event()
    async with Owner() as owner:
        owner.start(accept_from(server, lambda: Greeted(came)), name="accept")
        with socket.socket() as guest:
            guest.setblocking(False)
            await asyncio.get_running_loop().sock_connect(guest, server.getsockname())
            await came.wait()
            assert server.failures == 0
        owner.cancel()
    assert server.fileno() == -1
