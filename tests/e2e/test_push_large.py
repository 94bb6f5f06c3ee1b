"""In a large mesh two workers may have no session: it is made when one is introduced to the other."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.process.handover import DescriptorSender, socket_pair
from meshd.rpc.frames import NodeReading
from meshd.wire.lease import PUSH_SERVICE, Neighbour, Reached, decode
from meshd.worker.push_neighbours import ARRIVAL, PushNeighbours
from meshd.worker.turn_times import TurnTimes

from tests.conformance.run import run as run_to_end
from tests.e2e.bare_node import bare_node
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import Bench
from tests.unit.tunnel.far import streams

COUNT = 11  # of more than nine not everybody keeps a session with everybody
LEASE = bytes(range(16))
SECONDS = 150.0


@asynccontextmanager
async def crowd(folder: Path) -> AsyncIterator[list[MemberNode]]:
    """Members without a role, all in this process."""
    links = LinksConfig(listen=HostPort("127.0.0.1", 0), stun=(), no_mdns=True, no_portmap=True)
    async with AsyncExitStack() as stack:
        nodes: list[MemberNode] = []
        for number in range(COUNT):
            token = (nodes[0].printed_token() or "") if nodes else ""
            name = f"node-{number}"
            nodes.append(
                await stack.enter_async_context(bare_node(folder / name, token=token, name=name, links=links))
            )
        yield nodes


async def strangers(nodes: Sequence[MemberNode]) -> tuple[MemberNode, MemberNode]:
    """Two that know of each other and have no session, once there are such."""
    by_id = {node.node.peer: node for node in nodes}
    seen = -1
    while True:
        for node in reversed(nodes):
            for peer in node.mesh.peers():
                if peer.present and peer.state is not PeerState.CONNECTED:
                    return node, by_id[peer.peer]
        seen = await nodes[-1].mesh.changed(seen)


def state(node: MemberNode, peer: PeerId) -> PeerState:
    [found] = [status.state for status in node.mesh.peers() if status.peer == peer]
    return found


def test_a_session_is_made_for_those_who_are_introduced(tmp_path: Path) -> None:
    async def main() -> None:
        async with crowd(tmp_path) as nodes, Owner() as owner:
            one, other = await strangers(nodes)
            peer = other.node.peer
            over = asyncio.Event()

            async def serve(_stream: Stream) -> None:
                await over.wait()

            other.mesh.handle(PUSH_SERVICE, serve, allow=lambda _member, _metadata: None)
            tunnels = Bench(Net(owner).mesh("worker"), tmp_path).runtime.tunnels
            descriptors = DescriptorSender()
            near, far, _, _ = streams()
            turns = TurnTimes(asyncio.get_running_loop().time)
            neighbours = PushNeighbours(
                one.mesh, tunnels, MessageStream(near), descriptors, socket_pair, turns, NodeReading()
            )
            introduced = Neighbour(1, peer.raw, LEASE)
            try:
                assert state(one, peer) is not PeerState.CONNECTED
                neighbours.take(introduced)
                owner.start(neighbours.keep(introduced), name="neighbour")
                told = MessageStream(far)
                while decode(await told.receive()) != Reached(1, ""):  # the first try may find it busy
                    pass
                assert state(one, peer) is PeerState.CONNECTED
                with socket.socket(fileno=os.dup(descriptors.child_end)) as server:
                    said, [end], _, _ = socket.recv_fds(server, 64, 2)
                os.close(end)
                assert struct.unpack("<II", said) == (ARRIVAL, 1)
            finally:
                over.set()
                descriptors.close()
                os.close(descriptors.child_end)
                owner.cancel()

    run_to_end(main(), seconds=SECONDS)
