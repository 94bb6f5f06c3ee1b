"""Who takes a connection owns it, and leaves none open."""

import asyncio
import errno
import socket

import pytest
from meshd.base import sockets
from meshd.base.errors import Broken
from meshd.base.sockets import accept_from, adopt, listen_at
from meshd.base.tasks import Owner

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("raised", "seen"), [(OSError("gone"), Broken), (asyncio.CancelledError(), asyncio.CancelledError)]
)
def test_a_connection_that_cannot_be_taken_is_closed(
    raised: BaseException, seen: type[BaseException]
) -> None:
    def make() -> asyncio.Protocol:
        raise raised

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, pytest.raises(seen):
        asyncio.run(adopt(ours, make))
    assert ours.fileno() == -1


def test_a_port_whose_last_connections_linger_can_be_had_at_once() -> None:
    with listen_at(V4, "127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            accepted, _ = listener.accept()
            accepted.close()  # who closes first keeps TIME_WAIT
            assert client.recv(1) == b""
    listen_at(V4, "127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_what_cannot_be_had_leaves_nothing_open(host: str) -> None:
    with listen_at(V4, "127.0.0.1", 0) as listener, pytest.raises(OSError, match=r"[Aa]ddress"):
        listen_at(V4, host, listener.getsockname()[1])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
def test_each_family_has_the_port_to_itself() -> None:
    with listen_at(V6, "::", 0) as six:
        listen_at(V4, "0.0.0.0", six.getsockname()[1]).close()


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
