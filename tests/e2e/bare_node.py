"""A member of a mesh without a role: for tests that speak to daemons as a peer would, kindly or not.

Built from the daemon's own parts. As a program (`python -m tests.e2e.bare_node`) it is a reader that stops
reading, or a writer that pushes at it, so that the memory of each can be looked at from outside.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import Config, LinksConfig, NodeConfig, Paths
from meshd.daemon.member_node import MemberNode
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.transports import enter
from meshd.identity.keys import PeerId
from meshd.identity.keystore import Home
from meshd.peer.interface import PeerState, Stream
from meshd.wire.versions import NativeVersion

SINK = "test-sink"
PUSHED = 1 << 30
CHUNK = 256 << 10
READ_FIRST = 64 << 20  # before the reader stops: the window has grown by then
STALL_SECONDS = 3.0


@asynccontextmanager
async def bare_node(
    home: Path | Home, *, token: str = "", name: str = "bare", links: LinksConfig | None = None
) -> AsyncIterator[MemberNode]:
    """The node with its mesh running; it founds one without a token."""
    place = home if isinstance(home, Home) else Home(home)
    config = Config(
        node=NodeConfig(name=name, join=token),
        links=links or LinksConfig(listen=HostPort("127.0.0.1", 0)),
        paths=Paths(home=place.path, cache=place.path / "cache"),
    )
    with place.lock():
        key = place.load_or_create_identity()
        mesh_port = MeshPort(asked=config.links.listen, home=place)
        try:
            entered = await enter(place, key, config, "client", mesh_port=mesh_port)
            member = MemberNode(
                config=config,
                home=place,
                key=key,
                entered=entered,
                role="client",
                native=NativeVersion(protocol="", pin="", sources="", backend=""),
                mesh_port=mesh_port,
            )
            async with Owner() as owner:
                owner.start(member.serve(), name="peers")
                yield member
                member.mesh.say_goodbye("the test is over")
                owner.cancel()
        finally:
            mesh_port.close()


async def connected(member: MemberNode, name: str) -> PeerId:
    """Wait until the peer of this name is connected."""
    seen = -1
    while True:
        for peer in member.mesh.peers():
            if peer.name == name and peer.state is PeerState.CONNECTED:
                return peer.peer
        seen = await member.mesh.changed(seen)


async def disconnected(member: MemberNode, peer: PeerId) -> None:
    """Wait until there is no session with this peer."""
    seen = -1
    gone = (PeerState.KNOWN, PeerState.LOST, PeerState.CONNECTING)
    while not any(other.peer == peer and other.state in gone for other in member.mesh.peers()):
        seen = await member.mesh.changed(seen)


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def _read_and_stop(stream: Stream) -> None:
    read = 0
    while read < READ_FIRST:
        data = await stream.read()
        read += len(data)
        stream.consumed(len(data))
    _say(f"stopped {read}")
    await asyncio.Event().wait()


async def _reader(home: Path) -> None:
    async with bare_node(home, name="reader") as member:
        member.mesh.handle(SINK, _read_and_stop, allow=lambda _member, _metadata: None)
        _say(member.printed_token() or "")
        await asyncio.to_thread(sys.stdin.readline)


async def _writer(home: Path) -> None:
    async with bare_node(home, token=os.environ["MESHD_JOIN"], name="writer") as member:
        reader = await connected(member, "reader")
        _say("connected")
        await asyncio.to_thread(sys.stdin.readline)
        stream = member.mesh.open_stream(reader, SINK, metadata={}, bulk=True)
        await _push(stream)
        await asyncio.to_thread(sys.stdin.readline)


async def _push(stream: Stream) -> None:
    """Write until nothing is taken for STALL_SECONDS, once a line has said that the reader has stopped."""
    loop = asyncio.get_running_loop()
    told = loop.create_task(asyncio.to_thread(sys.stdin.readline))
    chunk, sent = bytes(CHUNK), 0
    try:
        async with asyncio.timeout(None) as limit:
            told.add_done_callback(lambda _: limit.reschedule(loop.time() + STALL_SECONDS))
            while sent < PUSHED:
                await stream.write(chunk)
                sent += CHUNK
                if told.done():
                    limit.reschedule(loop.time() + STALL_SECONDS)
    except (TimeoutError, Broken) as error:
        _say(f"stalled {sent} {type(error).__name__}")
    else:
        _say("all was taken")


if __name__ == "__main__":
    work = _reader if sys.argv[1] == "reader" else _writer
    asyncio.run(work(Path(sys.argv[2])))
