"""Two mesh-servers that real workers lend to a head which computes nothing, and which introduces them.

The head says to each what a test wants, in the protocol of native/mesh, over the streams of its leases.
"""

import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache

from meshd.build.interface import MESH_PROGRAM
from meshd.daemon.member_node import MemberNode
from meshd.identity.keys import PeerId
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.rpc import mesh_protocol as wire
from meshd.wire.lease import (
    LEASE_SERVICE,
    RPC_SERVICE,
    Acquire,
    Admit,
    Grant,
    Introduced,
    LeaseMessage,
    Neighbour,
    Progress,
    Reserve,
    WorkerOffer,
    decode,
)
from meshd.wire.versions import mesh_protocol

from tests.e2e.bare_node import connected
from tests.e2e.hostile_stage import message
from tests.e2e.models import native

BUFFER = 1
_MARGIN = 64 << 20  # bytes of a lease beside the buffer


@cache
def _release() -> bytes:
    said = subprocess.run(
        [str(native().binaries[MESH_PROGRAM]), "--describe"], capture_output=True, check=True
    ).stdout
    release: str = json.loads(said)["ggml"]
    return release.encode()


class LentServer:
    """A mesh-server of a worker, with one buffer on its first device."""

    def __init__(self, peer: PeerId, messages: MessageStream, offer: WorkerOffer) -> None:
        self.peer = peer
        self.messages = messages
        self.offer = offer
        self._stream: Stream | None = None
        self._held = bytearray()

    async def hears(self) -> LeaseMessage:
        """The next message of the lease, but for its progress. Raises Broken, EndOfStream."""
        while isinstance(said := decode(await self.messages.receive()), Progress):
            pass
        return said

    async def reserve(self, room: int) -> None:
        """Take memory of the first device. Does not wait for the grant."""
        sizes = (room + _MARGIN, *[0] * (len(self.offer.devices) - 1))
        await self.messages.send(Reserve(sizes).encode())

    async def granted(self) -> None:
        """Wait for the grant."""
        said = await self.hears()
        assert isinstance(said, Grant), said

    async def connect(self, mesh: MemberNode, room: int) -> None:
        """Open the lease's stream, and make the buffer."""
        lease = {"lease": self.offer.lease_id}
        self._stream = mesh.mesh.open_stream(self.peer, RPC_SERVICE, metadata=lease)
        await self.say(message(wire.HELLO, wire.VERSION, rest=_release()))
        await self.hear(wire.WELCOME)
        await self.say(message(wire.ALLOCATE, BUFFER, 0, room))
        assert any(await self.hear(wire.ALLOCATED))
        await self.say(message(wire.FILL, BUFFER, 0, 0, room))

    async def say(self, data: bytes) -> None:
        """Requests, whole or in part. Raises Broken."""
        assert self._stream is not None
        await self._stream.write(data)

    async def hear(self, expected: int) -> bytes:
        """Return the body of the next message, PROGRESS left out. Raises Broken, EndOfStream."""
        while True:
            size, kind, _zero, _identity = wire.HEADER.unpack(await self._exactly(wire.HEADER.size))
            body = await self._exactly(size)
            if kind != wire.PROGRESS:
                assert kind == expected, (kind, body)
                return body

    async def _exactly(self, size: int) -> bytes:
        assert self._stream is not None
        while len(self._held) < size:
            data = await self._stream.read()
            self._held += data
            self._stream.consumed(len(data))
        found = bytes(self._held[:size])
        del self._held[:size]
        return found


def push(to: int, size: int, token: int) -> bytes:
    """The request to push the beginning of the buffer."""
    return message(wire.PUSH, to, BUFFER, size, 0, 0, token)


def take(by: int, size: int, token: int) -> bytes:
    """The request to take what comes into the beginning of the buffer."""
    return message(wire.TAKE, by, BUFFER, size, 0, 0, token)


async def _asked(head: MemberNode, name: str) -> LentServer:
    peer = await connected(head, name)
    messages = MessageStream(head.mesh.open_stream(peer, LEASE_SERVICE, metadata={}))
    asked = Acquire(bytes(16), "m", "f" * 64, native().pin, protocol=mesh_protocol(wire.VERSION))
    await messages.send(asked.encode())
    while isinstance(offer := decode(await messages.receive()), Progress):
        pass
    assert isinstance(offer, WorkerOffer), offer
    return LentServer(peer, messages, offer)


@asynccontextmanager
async def lent_pair(head: MemberNode, names: Sequence[str], *, room: int) -> AsyncIterator[list[LentServer]]:
    """Lend one mesh-server of each of these workers; the first opens the stream to the second.

    They are numbered by their places here, and what one is to push before the other is there waits.
    """
    servers = [await _asked(head, name) for name in names]
    first, second = servers
    for server in servers:
        await server.reserve(room)
    for server in servers:
        await server.granted()
    await second.messages.send(Admit(first.peer.raw, 0).encode())
    await first.messages.send(Neighbour(1, second.peer.raw, second.offer.lease_id).encode())
    for server in servers:
        await server.messages.send(Introduced().encode())
    for server in servers:
        await server.connect(head, room)
    try:
        yield servers
    finally:
        for server in servers:
            server.messages.stream.write_eof()
