"""A worker with leases, what their mesh-servers find at their descriptors, and a worker next to it."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from meshd.identity.keys import PeerId
from meshd.peer.interface import MetadataValue, Stream
from meshd.wire.lease import PUSH_SERVICE, Grant, LeaseMessage, Neighbour
from meshd.worker.push_neighbours import COMPLETE

from tests.unit.head.calls import Call, Scene, scene
from tests.unit.head.fake_mesh import FakeMesh
from tests.unit.head.stubs import StubChild

LEASE = b"a lease of theirs"[:16]


class Server:
    """A lease's mesh-server, which finds this at its descriptors."""

    def __init__(self, child: StubChild) -> None:
        assert child.spec is not None
        self.argv = list(child.spec.argv)
        self.head = self._at("--fd")
        self.arrivals_end = self._at("--neighbours-fd")
        for end in (self.head, self.arrivals_end):
            end.setblocking(False)

    def _at(self, option: str) -> socket.socket:
        return socket.socket(fileno=os.dup(int(self.argv[self.argv.index(option) + 1])))

    def hears(self) -> bytes:
        """Return what its head has said since; empty at the end as well."""
        try:
            return self.head.recv(1 << 16)
        except BlockingIOError:
            return b""

    def arrivals(self) -> list[tuple[int, int, socket.socket | None]]:
        """Kinds, numbers, and connections, that have come since."""
        found: list[tuple[int, int, socket.socket | None]] = []
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.arrivals_end, 8, 4)
            except BlockingIOError:
                return found
            if not data:
                return found
            kind, number = struct.unpack("<II", data)
            assert len(descriptors) == (kind != COMPLETE)
            found.append((kind, number, socket.socket(fileno=descriptors[0]) if descriptors else None))

    def told(self) -> list[tuple[int, int]]:
        """As `arrivals`, for who does not want the connections."""
        found = self.arrivals()
        for _, _, end in found:
            if end is not None:
                end.close()
        return [(kind, number) for kind, number, _ in found]

    def close(self) -> None:
        self.head.close()
        self.arrivals_end.close()


@asynccontextmanager
async def lent(folder: Path) -> AsyncIterator[tuple[Scene, Call, Grant, Server]]:
    """A worker with one lease."""
    async with scene(folder) as it:
        call = it.call()
        grant = await call.lease()
        server = Server(it.bench.children[0])
        try:
            yield it, call, grant, server
        finally:
            server.close()


def head_stream(it: Scene, call: Call, grant: Grant) -> Stream:
    return call.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": grant.lease_id})


async def heard(stream: Stream) -> bytes:
    async with asyncio.timeout(10):
        return bytes(await stream.read())


async def says(call: Call, *messages: LeaseMessage) -> None:
    for message in messages:
        await call.says(message)
    await asyncio.sleep(0.1)


class Other:
    """A worker next to the one that is tested, which takes streams of service `push`."""

    def __init__(self, it: Scene, name: str = "other") -> None:
        self.mesh: FakeMesh = it.net.mesh(name)
        self.refusal: str | None = None
        self.streams: list[Stream] = []
        self.over = asyncio.Event()
        self.mesh.handle(PUSH_SERVICE, self._serve, allow=lambda _member, _metadata: self.refusal)

    async def _serve(self, stream: Stream) -> None:
        self.streams.append(stream)
        await self.over.wait()
        stream.write_eof()

    @property
    def peer(self) -> PeerId:
        return self.mesh.key.peer

    def introduction(self, number: int = 3) -> Neighbour:
        return Neighbour(number, self.peer.raw, LEASE)

    def push(self, it: Scene, grant: Grant, **more: MetadataValue) -> Stream:
        return self.mesh.open_stream(
            it.bench.mesh.key.peer, PUSH_SERVICE, metadata={"lease": grant.lease_id, **more}
        )
