"""The head with real workers between fakes: waits, asks, loads, loses, starts over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.gateway.interface import ReadyReport
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState
from meshd.role.head.cycle import Serve
from meshd.role.head.split_plan import HeadOptions
from meshd.role.worker.cycle import Worker, WorkerOptions

from tests.sim.loop import run
from tests.unit.role.fake_mesh import NATIVE, FakeMesh, Net
from tests.unit.role.rig import COMPRESSED_VERSION, Bench, cpu_lines
from tests.unit.role.stubs import FakeFile, StubChild

LITTLE = cpu_lines(free_mib=1)


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
        patched: bool = True,
        compressed: int = COMPRESSED_VERSION,
        always_compressed: bool = False,
    ) -> None:
        """The head, or another one before it is started."""
        self.file = file or self.file
        mesh = self.net.mesh("head", "serve")
        self.bench = Bench(
            mesh, self.folder, patched=patched, compressed=compressed, always_compressed=always_compressed
        )
        self.serve = Serve(self.bench.runtime, self.file, self.options)

    def worker(
        self,
        name: str,
        *,
        pin: str = "pin",
        there: bool = True,
        patched: bool = True,
        compressed: int = COMPRESSED_VERSION,
    ) -> FakeMesh:
        mesh = self.net.mesh(name)
        bench = self.workers[name] = Bench(
            mesh, self.folder, patched=patched, version=replace(NATIVE, pin=pin), compressed=compressed
        )
        role = self.roles[name] = Worker(bench.runtime, [], WorkerOptions())
        self.net.owner.start(role.serve(), name=name)
        mesh.say(PeerState.CONNECTED if there else PeerState.KNOWN)
        return mesh

    def start(self) -> None:
        self.task = self.net.owner.start(self.serve.serve(), name="serve")

    async def until(self, state: ModelState, why: str = "", *, seconds: float = 30) -> None:
        """Virtual seconds; a state that passes in one turn of the loop is seen, too."""
        async with asyncio.timeout(seconds):
            while (  # noqa: ASYNC110 - nothing tells of it
                self.serve.readiness.state is not state
                or why.lower() not in self.serve.readiness.reason.lower()
            ):
                await asyncio.sleep(0.001)

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
        made = HeadOptions(machine="m", incarnation=bytes(16), **options)  # type: ignore[arg-type]
        try:
            yield Scene(Net(owner), folder, made)
        finally:
            owner.cancel()


def test_it_waits_for_a_worker_then_loads_and_is_ready(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.file.hashed.clear()
            it.start()
            await it.until(ModelState.LOADING, "25 %")
            assert it.serve.readiness.progress == 0.25
            it.file.hashed.set()
            await it.until(ModelState.WAITING, "0 of 1 connected")
            it.worker("anna")
            await it.until(ModelState.READY)
            status = it.serve.status
            assert status.model is not None
            assert {part.node for part in status.model.split} == {"anna", "head"}
            assert sum(part.layers for part in status.model.split) == 4
            assert it.argument("--rpc") == it.bench.tunnels[0].endpoint
            assert it.bench.tunnels[0].asked.compressed == COMPRESSED_VERSION
            assert [child.state.value for child in status.children] == ["ready"]
            assert len(status.tunnels) == 1

    run(main())


def test_a_worker_out_of_reach_is_told_after_ten_seconds_and_needs_no_load(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            anna = it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            ready, llama = it.serve.readiness, it.llama
            anna.since = began = asyncio.get_running_loop().time()
            anna.say(PeerState.SUSPENDED)
            await asyncio.sleep(9.9)
            assert it.serve.readiness == ready
            await it.until(ModelState.DEGRADED, "no connection to worker anna for 10 s", seconds=1)
            assert asyncio.get_running_loop().time() - began == pytest.approx(10.0, abs=0.01)
            model = it.serve.status.model
            assert model is not None
            assert (model.state, model.reason) == ("degraded", "no connection to worker anna for 10 s")
            assert model.split, "what is loaded is shown"
            anna.say(PeerState.CONNECTED)
            assert it.serve.readiness == ready
            assert it.llama is llama

    run(main())


def test_a_worker_that_is_back_for_moments_only_is_done_without(tmp_path: Path) -> None:
    """Each time before the grace is over, so that its session lives on."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            anna = it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            for state in (PeerState.SUSPENDED, PeerState.CONNECTED, PeerState.SUSPENDED):
                anna.since = asyncio.get_running_loop().time()
                anna.say(state)
                await asyncio.sleep(1.0 if state is PeerState.CONNECTED else 110.0)
                if state is PeerState.CONNECTED:
                    assert it.serve.readiness.state is ModelState.READY
            assert it.serve.readiness.state is ModelState.WAITING
            model = it.serve.status.model
            assert model is not None and not model.split
            anna.since = asyncio.get_running_loop().time()
            anna.say(PeerState.CONNECTED)
            await it.until(ModelState.READY)

    run(main())


def test_two_workers_in_the_order_of_their_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("zoe")
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            assert it.argument("--rpc") == ",".join(tunnel.endpoint for tunnel in it.bench.tunnels)
            names = [it.net.meshes[tunnel.asked.peer].name for tunnel in it.bench.tunnels]
            assert names == ["anna", "zoe"]

    run(main())


def test_workers_whose_names_are_made_to_look_alike_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            one, other, third = (it.worker(name) for name in ("one", "two", "three"))
            one.name = other.name = "w"
            third.name = f"w-{one.key.peer.short[:4]}"
            it.start()
            await it.until(ModelState.READY)
            assert it.serve.status.model is not None
            assert {part.node for part in it.serve.status.model.split} == {
                f"w ({one.key.peer.short})",
                f"w ({other.key.peer.short})",
                third.name,
                "head",
            }

    run(main())


def test_a_head_with_the_name_of_a_worker_is_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, node_id="h" * 52) as it:
            worker = it.worker("one")
            worker.name = "head"
            it.start()
            await it.until(ModelState.READY)
            assert it.serve.status.model is not None
            nodes = {part.node for part in it.serve.status.model.split}
            assert nodes == {f"head ({worker.key.peer.short})", "head (hhhhhhhhhh)"}

    run(main())


def test_another_known_worker_gets_three_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        for comes in (True, False):
            async with scene(tmp_path) as it:
                it.worker("anna")
                late = it.worker("bert", there=False)
                it.start()
                began = asyncio.get_running_loop().time()
                if comes:
                    await asyncio.sleep(1)
                    late.say(PeerState.CONNECTED)
                await it.until(ModelState.READY)
                took = asyncio.get_running_loop().time() - began
                assert (1 <= took < 2) if comes else (3 <= took < 4)
                assert len(it.bench.tunnels) == 1 + comes

    run(main())


def test_a_worker_that_refuses_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna", pin="another")
            it.worker("bert")
            it.start()
            await it.until(ModelState.READY)
            assert len(it.bench.tunnels) == 1

    run(main())


def test_when_all_refuse_the_reason_is_told_and_another_worker_helps(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna", pin="another")
            it.start()
            await it.until(ModelState.WAITING, "this worker another")
            it.worker("bert")
            await it.until(ModelState.READY)

    run(main())


def test_too_little_memory_fails_with_numbers_until_the_peers_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, devices=("none",)) as it:
            it.worker("anna")
            it.workers["anna"].device_lines = LITTLE
            it.start()
            await it.until(ModelState.FAILED)
            assert "MiB" in it.serve.readiness.reason
            assert it.bench.children == []
            it.worker("bert")
            await it.until(ModelState.READY, seconds=10)

    run(main())


@pytest.mark.parametrize("what", ["rpc-server", "worker", "llama-server", "gateway"])
def test_a_loss_is_loading_at_once_and_ready_again(tmp_path: Path, what: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            worker = it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            first, broke = it.llama, None
            match what:
                case "rpc-server":
                    it.workers["anna"].children[0].die("ended by signal 9")
                case "worker":
                    worker.net.meshes[it.bench.mesh.key.peer].streams[0].reset(8, "no link for 120 s")
                case "llama-server":
                    it.llama.die("ended by signal 6")
                case "gateway":
                    broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
                    await asyncio.sleep(0)
                    assert it.serve.readiness.state is ModelState.LOADING
            began = asyncio.get_running_loop().time()
            await it.until(ModelState.LOADING, seconds=0.1)
            assert asyncio.get_running_loop().time() - began < 0.1
            await it.until(ModelState.READY, seconds=2)
            assert broke is None or await broke == "the connection was reset"
            assert first.ended and it.llama is not first
            assert it.bench.tunnels[0].closed and not it.bench.tunnels[1].closed
            assert it.workers["anna"].children[0].ended
            assert [child.ended for child in it.workers["anna"].children] == [True, False]

    run(main())


def test_a_worker_that_comes_later_is_used_at_the_next_load(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            it.worker("bert")
            await asyncio.sleep(20)
            assert len(it.bench.tunnels) == 1
            it.llama.die("ended")
            await it.until(ModelState.LOADING)
            await it.until(ModelState.READY)
            assert len(it.bench.tunnels) == 3

    run(main())


def test_alone_without_any_worker(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, min_workers=0) as it:
            it.start()
            await it.until(ModelState.READY)
            assert it.llama.spec is not None and "--rpc" not in it.llama.spec.argv

    run(main())


def test_what_came_over_the_network_is_in_the_status(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model")
            await asyncio.sleep(1)
            endpoint = it.bench.tunnels[0].endpoint
            it.llama.report(f"tensor {endpoint} local same 100 blk.0.attn_q.weight")
            it.llama.report(f"tensor {endpoint} network other_bytes 7 blk.1.attn_q.weight")
            it.llama.report("done")
            await asyncio.sleep(1)
            it.bench.ready.set_result(ReadyReport(True, "", 0.1))
            await it.until(ModelState.READY)
            model = it.serve.status.model
            assert model is not None
            assert (model.weights_local_bytes, model.weights_network_bytes) == (100, 7)
            (tensor,) = model.tensors_from_network
            assert (tensor.name, tensor.node, tensor.reason) == (
                "blk.1.attn_q.weight",
                "anna",
                "other bytes",
            )
            assert model.bytes_per_token is None, "nobody has asked for anything yet"

    run(main())


def test_how_far_each_worker_is_shows_while_the_model_is_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.worker("zoe")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model; anna 0 B of")
            anna, zoe = it.serve.readiness.workers
            assert (anna.node, anna.share, zoe.node, zoe.share) == ("anna", 0, "zoe", 0)
            assert it.serve.readiness.progress == 0
            total = anna.total_bytes
            assert total > 10 and zoe.total_bytes > 10
            first = it.bench.tunnels[0]
            it.llama.report(f"tensor {first.endpoint} local same {total - 10} blk.0.attn_q.weight")
            it.llama.report(f"tensor {first.endpoint} network no_such_hash 10 blk.1.attn_q.weight")
            await asyncio.sleep(1)
            first.sent = 4
            anna, zoe = it.serve.readiness.workers
            assert (anna.local_bytes, anna.missing_bytes, anna.sent_bytes) == (total - 10, 10, 4)
            assert zoe.share == 0
            progress = it.serve.readiness.progress
            assert progress is not None
            assert progress == pytest.approx((total - 6) / (total + zoe.total_bytes))
            assert "over the network" in it.serve.readiness.reason
            first.sent = 10_000_000
            assert it.serve.readiness.workers[0].share == 1, "what else goes through the tunnel is no weight"
            it.bench.ready.set_result(ReadyReport(True, "", 0.1))
            await it.until(ModelState.READY)
            ready = it.serve.readiness
            assert (ready.workers, ready.progress) == ((), None)
            model = it.serve.status.model
            assert model is not None
            assert [load.node for load in model.workers] == ["anna", "zoe"]

    run(main())


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (ReadyReport(False, "no token came"), "no token came"),
        (ReadyReport(True, ""), "was changed while it was loaded"),
    ],
)
def test_a_load_that_does_not_hold_is_done_again(tmp_path: Path, report: ReadyReport, why: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model")
            it.file.unchanged = not report.ready
            it.bench.ready.set_result(report)
            await it.until(ModelState.LOADING, why)
            it.file.unchanged = True
            it.bench.ready = None
            await it.until(ModelState.READY)

    run(main())


@pytest.mark.parametrize("trouble", ["report", "child", 0, 1])
def test_a_llama_server_that_cannot_start_is_tried_again_and_leaks_nothing(
    tmp_path: Path, trouble: str | int
) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.bench.report_fails = trouble == "report"
            it.bench.child_refuses = UserError("it cannot start") if trouble == "child" else None
            it.bench.hand_over_fails_at = trouble if isinstance(trouble, int) else None
            it.start()
            why = "it cannot start" if trouble == "child" else "open files"
            state = ModelState.FAILED if trouble == "child" else ModelState.LOADING
            await it.until(state, why)
            it.bench.report_fails = False
            it.bench.child_refuses = it.bench.hand_over_fails_at = None
            await it.until(ModelState.READY, seconds=600)

    run(main())


def test_cancelled_at_any_turn_nothing_is_left(tmp_path: Path) -> None:
    """Tasks, descriptors and leases: the first two are looked for after every test."""

    async def main() -> None:
        for turns in range(0, 120, 3):
            async with scene(tmp_path) as it:
                it.worker("anna")
                await asyncio.sleep(0)
                it.start()
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert it.task is not None
                await cancel_and_wait(it.task)
                await asyncio.sleep(1)
                assert all(child.ended for child in it.workers["anna"].children)
                assert all(tunnel.closed for tunnel in it.bench.tunnels)

    run(main())


def test_a_lost_lease_in_the_turn_of_the_start_leaks_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for turns in range(60):
            async with scene(tmp_path) as it:
                it.worker("anna")
                it.start()
                for _ in range(turns):
                    await asyncio.sleep(0)
                for stream in it.bench.mesh.streams:
                    stream.reset(8, "lost")
                await it.until(ModelState.READY, seconds=60)

    run(main())
