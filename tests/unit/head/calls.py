"""A worker, and heads that a test plays message by message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, EndOfStream
from meshd.base.tasks import Owner
from meshd.devices.interface import PlainConnections
from meshd.identity.membership import Role
from meshd.peer.messages import MessageStream
from meshd.store.interface import ContentStore
from meshd.wire.lease import Acquire, Grant, LeaseMessage, Reserve, WorkerOffer, decode
from meshd.worker.lending import Worker
from meshd.worker.worker_options import WorkerOptions

from tests.unit.head.fake_mesh import NATIVE, FakeMesh, Net
from tests.unit.head.rig import Bench
from tests.unit.head.stubs import FakeFile

MIB = 1 << 20
ACQUIRE = Acquire(bytes(16), "tiny", "f" * 64, "pin", protocol=NATIVE.protocol)


class Scene:
    """A worker and the meshes of its heads."""

    def __init__(self, net: Net, bench: Bench, worker: Worker) -> None:
        self.net, self.bench, self.worker = net, bench, worker
        self.heads: dict[str, FakeMesh] = {}

    def call(self, head: str = "head", *, roles: frozenset[Role] = frozenset(Role)) -> "Call":
        mesh = self.heads.get(head)
        if mesh is None:
            mesh = self.heads[head] = self.net.mesh(head, "serve", roles=roles)
        return Call(mesh, self.bench.mesh)


class Call:
    """A head's side of one lease, message by message."""

    def __init__(self, head: FakeMesh, worker: FakeMesh) -> None:
        self.head, self.worker = head, worker
        self.stream = head.open_stream(worker.key.peer, "lease", metadata={})
        self.messages = MessageStream(self.stream)

    async def says(self, message: LeaseMessage) -> None:
        await self.messages.send(message.encode())

    async def hears(self) -> LeaseMessage:
        async with asyncio.timeout(100):
            return decode(await self.messages.receive())

    async def offer(self, protocol: str = NATIVE.protocol) -> WorkerOffer:
        await self.says(replace(ACQUIRE, protocol=protocol))
        answer = await self.hears()
        assert isinstance(answer, WorkerOffer), answer
        return answer

    async def lease(self, mib: int = 100, *, protocol: str = NATIVE.protocol) -> Grant:
        await self.offer(protocol)
        await self.says(Reserve((mib * MIB,)))
        answer = await self.hears()
        assert isinstance(answer, Grant), answer
        return answer

    async def is_over(self) -> None:
        async with asyncio.timeout(100):
            with pytest.raises((EndOfStream, Broken)):
                while True:
                    await self.messages.receive()

    async def release(self) -> None:
        self.stream.write_eof()
        await self.is_over()

    def rpc(self, grant: Grant) -> None:
        self.head.open_stream(self.worker.key.peer, "rpc", metadata={"lease": grant.lease_id})


@asynccontextmanager
async def scene(
    folder: Path,
    plain: PlainConnections | None = None,
    *,
    seals: bool = True,
    memory: int | None = None,
    threads: int | None = None,
    file: FakeFile | None = None,
    store: ContentStore | None = None,
) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        net = Net(owner)
        bench = Bench(net.mesh("worker"), folder)
        if plain is not None:
            bench.connect_plainly(plain, seals=seals)
        options = WorkerOptions(memory=memory, threads=threads, machine="m")
        worker = Worker(bench.runtime, [file] if file else [], options, store)
        await worker.prepare()
        owner.start(worker.serve(), name="worker")
        try:
            yield Scene(net, bench, worker)
        finally:
            owner.cancel()
