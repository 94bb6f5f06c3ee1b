"""Where plain connections go: along the path that carries data, if that is TCP to another machine."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import cast

import pytest
from meshd.base.errors import Broken
from meshd.daemon.plain_connections import MeshPortConnections
from meshd.identity.keys import KeyPair
from meshd.link.interface import LinkKind
from meshd.link.tcp.plain_visit import PLAIN, AwaitedConnections
from meshd.peer.interface import Mesh, PathStatus, PeerStatus

from tests.unit.admin.test_snapshot import NODE, path, peer

OTHER = KeyPair.from_seed(bytes(31) + b"o")
TAG = b"a tag of 16 byte"
FAST = replace(path(selected=True), rtt=0.0004)


class Paths:
    """As much of a mesh as is asked."""

    def __init__(self, *paths: PathStatus) -> None:
        self._peer = peer(*paths)

    def peers(self) -> list[PeerStatus]:
        return [self._peer]


def over(*paths: PathStatus, compresses: bool = True) -> MeshPortConnections:
    return MeshPortConnections(cast(Mesh, Paths(*paths)), AwaitedConnections(), compresses=compresses)


def changed(one: PathStatus, **changes: object) -> PathStatus:
    return replace(one, link=replace(one.link, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["lan", "public", "mapped"])
@pytest.mark.parametrize("dialled", [True, False])
def test_a_direct_path_is_one_and_who_dialled_it_connects(where: str, dialled: bool) -> None:
    found = over(changed(FAST, path=where, dialled=dialled))
    assert found.is_direct(NODE.peer)
    assert found.reaches(NODE.peer) is dialled
    assert not found.is_direct(OTHER.peer) and not found.reaches(OTHER.peer)


@pytest.mark.parametrize(
    "one",
    [
        changed(FAST, path="loopback"),
        changed(FAST, path="punched"),
        changed(FAST, path="relayed", kind=LinkKind.RELAY),
        changed(FAST, kind=LinkKind.QUIC),
        changed(FAST, kind=LinkKind.WEBRTC),
        changed(FAST, passing=True),
        replace(FAST, selected=False),
    ],
    ids=["this machine", "punched", "relayed", "quic", "webrtc", "passing", "unused"],
)
def test_another_path_is_none(one: PathStatus) -> None:
    found = over(one)
    assert not found.is_direct(NODE.peer) and not found.reaches(NODE.peer)


def test_a_slow_path_is_left_to_compressed_streams() -> None:
    slow = replace(FAST, rtt=0.05)
    assert not over(slow).is_direct(NODE.peer)
    assert over(slow, compresses=False).is_direct(NODE.peer)


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        yield server


def leads_to(server: socket.socket) -> MeshPortConnections:
    return over(changed(FAST, remote=f"127.0.0.1:{server.getsockname()[1]}"))


async def test_it_connects_to_where_the_link_leads_and_says_the_tag(port: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with await leads_to(port).connect(NODE.peer, TAG) as ours:
        theirs, _ = await loop.sock_accept(port)
        with theirs:
            assert await loop.sock_recv(theirs, 100) == PLAIN + TAG
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_who_does_not_listen_is_not_reached(port: socket.socket) -> None:
    found = leads_to(port)
    port.close()
    with pytest.raises(Broken, match="cannot connect"):
        await found.connect(NODE.peer, TAG)


@pytest.mark.parametrize(
    "remote", ["unknown", "[fe80::1%nowhere]:x", "169.254.169.254:80", "[fe80::1%]:7447"]
)
async def test_what_is_no_address_is_not_dialled(remote: str) -> None:
    with pytest.raises(Broken):
        await over(changed(FAST, remote=remote)).connect(NODE.peer, TAG)


async def test_a_path_that_has_changed_meanwhile_is_not_dialled() -> None:
    with pytest.raises(Broken, match="has changed"):
        await over(changed(FAST, dialled=False)).connect(NODE.peer, TAG)


async def test_what_is_awaited_is_awaited_at_the_port() -> None:
    awaited = AwaitedConnections()
    found = MeshPortConnections(cast(Mesh, Paths(FAST)), awaited)
    one = found.expect(NODE.peer, TAG)
    assert awaited.find(TAG) is one
    one.close()
