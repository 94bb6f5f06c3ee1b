"""A head with real workers between fakes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.head.model import Model
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import PeerState
from meshd.plan.wishes import HeadOptions
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.store.interface import ContentStore
from meshd.worker.lending import Worker
from meshd.worker.worker_options import WorkerOptions

from tests.sim.loop import until
from tests.unit.head.fake_mesh import NATIVE, FakeMesh, Net
from tests.unit.head.rig import COMPRESSED_VERSION, Bench, cpu_lines
from tests.unit.head.stubs import FakeFile, StubChild
from tests.unit.plan.plain_options import PLAIN

LITTLE = cpu_lines(free_mib=1)


def view(bench: Bench, place: int) -> MeshHeadView:
    """Return what the daemon sees of the last llama-server's connection with the worker at this place."""
    seen = next(one.asked.inspector for one in reversed(bench.tunnels) if one.asked.endpoint == str(place))
    assert isinstance(seen, MeshHeadView)
    return seen


class Scene:
    """A head and its workers."""

    def __init__(self, net: Net, folder: Path, options: HeadOptions) -> None:
        self.net, self.folder, self.options = net, folder, options
        self.file: FakeFile = FakeFile()
        self.workers: dict[str, Bench] = {}
        self.roles: dict[str, Worker] = {}
        self.task: asyncio.Task[None] | None = None
        self.head()

    def head(
        self,
        *,
        file: FakeFile | None = None,
        compressed: int = COMPRESSED_VERSION,
        always_compressed: bool = False,
    ) -> None:
        """The head, or another one before it is started."""
        self.file = file or self.file
        mesh = self.net.mesh("head", "serve")
        self.bench = Bench(mesh, self.folder, compressed=compressed, always_compressed=always_compressed)
        self.serve = Model(self.bench.runtime, self.file, self.options)

    def worker(
        self,
        name: str,
        *,
        pin: str = "pin",
        there: bool = True,
        compressed: int = COMPRESSED_VERSION,
        store: ContentStore | None = None,
    ) -> FakeMesh:
        mesh = self.net.mesh(name)
        bench = self.workers[name] = Bench(
            mesh, self.folder, version=replace(NATIVE, pin=pin), compressed=compressed
        )
        role = self.roles[name] = Worker(bench.runtime, [], WorkerOptions(), store)
        self.net.owner.start(role.serve(), name=name)
        mesh.say(PeerState.CONNECTED if there else PeerState.KNOWN)
        return mesh

    def start(self) -> None:
        self.task = self.net.owner.start(self.serve.serve(), name="serve")

    async def ready(self, *names: str) -> None:
        """Start it with these workers, and wait until the model is ready."""
        for name in names:
            self.worker(name)
        self.start()
        await self.until(ModelState.READY)

    async def until(self, state: ModelState, why: str = "", *, seconds: float = 30) -> None:
        """Wait for a state with a word of its reason."""

        def reached() -> bool:
            now = self.serve.readiness
            return now.state is state and why.lower() in now.reason.lower()

        await until(reached, seconds=seconds)

    @property
    def model(self) -> ModelStatus:
        """Return what the head says of its model."""
        found = self.serve.status.model
        assert found is not None
        return found

    @property
    def nodes(self) -> set[str]:
        """Return the nodes of the split."""
        return {part.node for part in self.model.split}

    @property
    def llama(self) -> StubChild:
        """The llama-server that runs now."""
        return self.bench.children[-1]

    def argument(self, name: str) -> str:
        assert self.llama.spec is not None
        argv = list(self.llama.spec.argv)
        return argv[argv.index(name) + 1]


@asynccontextmanager
async def scene(folder: Path, **options: object) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        made = replace(PLAIN, machine="m", incarnation=bytes(16), **options)  # type: ignore[arg-type]
        try:
            yield Scene(Net(owner), folder, made)
        finally:
            owner.cancel()
