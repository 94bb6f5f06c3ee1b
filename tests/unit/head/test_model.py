"""A head in trouble: bad workers and devices are left out, a llama-server that cannot start is called so."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.gateway.interface import ReadyReport
from meshd.head.failures import FIRST_SECONDS, TRIES
from meshd.head.model import MORE_WORKERS_SECONDS, Model
from meshd.identity.membership import Role
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import PeerState
from meshd.plan.wishes import HeadOptions
from meshd.process.interface import ChildFailed, ChildState
from meshd.worker.lending import Worker
from meshd.worker.worker_options import WorkerOptions

from tests.sim import loop
from tests.unit.head.fake_mesh import NATIVE, Net
from tests.unit.head.rig import GPU_LINE, Bench, cpu_lines
from tests.unit.head.stubs import FakeFile
from tests.unit.plan.plain_options import PLAIN

pytestmark = pytest.mark.virtual

NOTHING_FREE = cpu_lines(free_mib=1)


class Stage:
    """One head and its workers, each with its own bench."""

    def __init__(self, owner: Owner, folder: Path) -> None:
        self.owner, self.folder = owner, folder
        self.net = Net(owner)
        self.bench = Bench(self.net.mesh("head", "serve"), folder)
        self.bench.start_seconds = 0.1  # of llama-server: a load after a loss begins at once
        self.states: list[ModelState] = []

    def worker(self, name: str, *, roles: frozenset[Role] = frozenset(Role), machine: str = "") -> Bench:
        bench = Bench(self.net.mesh(name, roles=roles), self.folder)
        worker = Worker(bench.runtime, [FakeFile()], WorkerOptions(machine=machine or name))
        self.owner.start(worker.serve(), name=name)
        return bench

    def serve(self, *, min_workers: int = 1, llama_args: tuple[str, ...] = ()) -> Model:
        return self.serve_with(
            replace(PLAIN, min_workers=min_workers, llama_args=llama_args, incarnation=bytes(16))
        )

    def serve_with(self, options: HeadOptions) -> Model:
        serve = Model(self.bench.runtime, FakeFile(), options)
        self.owner.start(serve.serve(), name="serve")
        return serve


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    async with Owner() as owner:
        try:
            yield Stage(owner, folder)
        finally:
            owner.cancel()


def model_of(serve: Model) -> ModelStatus:
    model = serve.status.model
    assert model is not None
    return model


async def until(serve: Model, true: Callable[[ModelStatus], bool], seconds: float = 1000.0) -> ModelStatus:
    await loop.until(lambda: true(model_of(serve)), seconds=seconds)
    return model_of(serve)


async def ready(serve: Model) -> set[str]:
    """The nodes with layers."""
    model = await until(serve, lambda model: model.state == "ready")
    return {part.node for part in model.split if part.layers}


async def test_a_worker_that_cannot_start_its_server_is_done_without(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad, _good = it.worker("bad"), it.worker("good")
        bad.child_refuses = ChildFailed("it crashed at once")
        serve = it.serve()
        assert await ready(serve) == {"head", "good"}
        assert len(bad.children) == 2
        reason = model_of(serve).reason
        assert "worker bad is left out for 30 s after 2 tries" in reason
        assert "it crashed at once" in reason


async def test_too_few_are_left_and_the_bad_one_is_tried_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad = it.worker("bad")
        it.worker("good")
        bad.child_refuses = ChildFailed("it crashed at once")
        serve = it.serve(min_workers=2)
        model = await until(serve, lambda model: "left out" in model.reason)
        assert model.state == "waiting" and "worker bad is left out" in model.reason
        bad.child_refuses = None
        began = asyncio.get_running_loop().time()
        assert await ready(serve) == {"head", "bad", "good"}
        assert 20 < asyncio.get_running_loop().time() - began < 60


async def test_a_bad_worker_that_reconnects_is_tried_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad = it.worker("bad")
        bad.child_refuses = ChildFailed("it crashed at once")
        serve = it.serve()
        await until(serve, lambda model: "left out" in model.reason)
        bad.child_refuses = None
        began = asyncio.get_running_loop().time()
        bad.mesh.since += 1
        bad.mesh.say(PeerState.CONNECTED)
        assert await ready(serve) == {"head", "bad"}
        assert asyncio.get_running_loop().time() - began < 10


async def test_a_lease_lost_while_loading_is_the_workers_failure(tmp_path: Path) -> None:
    """Even when llama-server, which aborts on it, is seen to end first."""
    async with stage(tmp_path) as it:
        bad, _good = it.worker("bad"), it.worker("good")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in (1, 2):
            await until(serve, lambda model: "loading the model" in model.reason)
            await until(serve, lambda _, n=number: len(it.bench.children) == n)  # type: ignore[misc]
            await asyncio.sleep(0.2)
            it.bench.ready = asyncio.get_running_loop().create_future()  # the other ends with its asker
            it.bench.children[-1].die("aborted")
            await asyncio.sleep(0.1)
            bad.children[-1].die("out of memory")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.bench.ready.set_result(ReadyReport(True, ""))
        assert await ready(serve) == {"head", "good"}
        assert "out of memory" in model_of(serve).reason


async def test_one_that_is_lost_while_others_are_waited_for_is_waited_for_itself(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("here")
        it.worker("late")
        here, late = (mesh for mesh in it.net.meshes.values() if mesh.name in ("here", "late"))
        late.say(PeerState.CONNECTING)
        serve = it.serve()
        await asyncio.sleep(MORE_WORKERS_SECONDS / 2)
        here.say(PeerState.LOST)
        model = await until(serve, lambda model: model.state == "waiting" or "asking" in model.reason)
        demand = "0 of 1 ready, as demanded by `--min-workers 1`"
        assert model.reason.startswith(f"waiting for workers: {demand}; here is not connected")
        assert model.too_few_workers
        late.say(PeerState.CONNECTED)
        assert "late" in await ready(serve)


async def test_workers_without_layers_do_not_count(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        full, _good = it.worker("full"), it.worker("good")
        full.device_lines = NOTHING_FREE
        serve = it.serve(min_workers=2)
        model = await until(serve, lambda model: "can take part" in model.reason)
        assert model.state == "waiting"
        assert "1 of 2 workers can take part" in model.reason
        assert "full CPU" in model.reason and "are left for layers" in model.reason
        assert full.children == [] and it.bench.children == []


async def test_a_worker_without_layers_runs_no_server(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        full, good = it.worker("a-full"), it.worker("b-good")
        full.device_lines = NOTHING_FREE
        serve = it.serve()
        assert await ready(serve) == {"head", "b-good"}
        assert full.children == [] and len(good.children) == 1
        spec = it.bench.children[0].spec
        assert spec is not None
        argv = list(spec.argv)
        assert argv[argv.index("-dev") + 1] == "MESH0"
        assert spec.env["GGML_MESH_DEVICES"] == "1"


async def test_only_members_with_work_are_asked(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        guest = it.worker("guest", roles=frozenset({Role.USE}))
        serve = it.serve()
        model = await until(serve, lambda model: "lacks the role `work`" in model.reason)
        assert model.state == "waiting" and "guest" in model.reason
        it.worker("good").mesh.say(PeerState.CONNECTED)
        assert await ready(serve) == {"head", "good"}
        assert guest.children == []


@pytest.mark.parametrize("llama_args", [(), ("--no-such-option", "1")])
async def test_a_llama_server_that_never_starts_has_failed(
    tmp_path: Path, llama_args: tuple[str, ...]
) -> None:
    async with stage(tmp_path) as it:
        it.worker("good")
        it.bench.child_refuses = ChildFailed("it ended with exit code 1", tail=("bad option",))
        serve = it.serve(llama_args=llama_args)
        model = await until(serve, lambda model: model.state == "failed")
        assert "3 times in a row" in model.reason and "bad option" in model.reason
        assert (" ".join(llama_args) in model.reason) if llama_args else "meshd logs" in model.reason
        assert (model.split, len(it.bench.children)) == ((), 3)
        (child,) = serve.status.children
        assert (child.state, child.restarts) == (ChildState.FAILED, 2)
        it.bench.child_refuses = None
        await ready(serve)
        assert [child.restarts for child in serve.status.children] == [3]


async def test_options_that_llama_server_refuses_are_told_at_once(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("good")
        tail = ("error: invalid argument: --nosuchopt",)
        it.bench.child_refuses = ChildFailed("it ended with exit code 1", tail=tail)
        serve, began = it.serve(llama_args=("--nosuchopt",)), asyncio.get_running_loop().time()
        model = await until(serve, lambda model: model.state == "failed")
        assert asyncio.get_running_loop().time() - began < 10 and len(it.bench.children) == 1
        assert model.reason == (
            "llama-server refuses its options: invalid argument: --nosuchopt "
            "(check the arguments after `--`: `--nosuchopt`)"
        )


async def test_a_worker_that_was_stopped_is_no_reason_to_look_at_llama_server(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("anna")
        other, third = it.worker("bert").mesh, it.worker("carl").mesh
        serve = it.serve()
        assert await ready(serve) == {"head", "anna", "bert", "carl"}
        other.stopped = "the node was stopped"
        it.bench.mesh.streams[-2].reset(8, "the node was stopped")
        other.say(PeerState.KNOWN)
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "anna", "carl"}
        assert [(child.restarts, child.reason) for child in serve.status.children] == [(0, "")]
        it.bench.children[-1].die("ended by signal 6")
        await until(serve, lambda model: model.state != "ready")
        await ready(serve)
        [child] = serve.status.children
        assert child.restarts == 1
        assert child.reason.startswith("the last time because ") and "ended by signal 6" in child.reason
        third.stopped = "the node was stopped"
        it.bench.mesh.streams[-1].reset(8, "the node was stopped")
        third.say(PeerState.KNOWN)
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "anna"}
        shown = [(child.restarts, child.reason) for child in serve.status.children]
        assert shown == [(1, "")], "the last restart was for another reason"


async def test_a_loss_while_the_model_is_loaded_again_is_the_last_reason(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad, _good = it.worker("bad"), it.worker("good")
        serve = it.serve()
        assert await ready(serve) == {"head", "bad", "good"}
        bad.child_refuses = ChildFailed("it crashed at once")
        it.bench.children[-1].die("ended by signal 6")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "good"}
        [child] = serve.status.children
        assert child.restarts == 3 and "bad: it crashed at once" in child.reason


async def test_a_llama_server_that_fails_with_any_split_has_failed(tmp_path: Path) -> None:
    """Free memory differs a little each time, and so may the split."""
    async with stage(tmp_path) as it:
        good = it.worker("good")
        it.bench.child_refuses = ChildFailed("it ended with exit code 1")
        serve, began = it.serve(), asyncio.get_running_loop().time()
        for number in range(1, 7):
            free = 600 if number % 2 else 3000
            good.device_lines = cpu_lines(free_mib=free)
            await until(serve, lambda _, n=number: len(it.bench.children) == n)  # type: ignore[misc]
        model = await until(serve, lambda model: model.state == "failed")
        assert "6 times in a row" in model.reason
        assert asyncio.get_running_loop().time() - began < 60  # it was not called failed before


async def test_nothing_of_the_last_split_is_shown_once_it_is_lost(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        good = it.worker("good")
        serve = it.serve()
        await ready(serve)
        good.mesh.say(PeerState.LOST)
        good.children[-1].die("gone")
        model = await until(serve, lambda model: model.state == "waiting")
        assert (model.split, model.load_seconds, model.bytes_per_token) == ((), None, None)


async def test_a_llama_server_that_has_lost_a_worker_is_started_again(tmp_path: Path) -> None:
    """It lives on, but its buffers there are gone; the lease may know nothing of it."""
    async with stage(tmp_path) as it:
        it.worker("good")
        serve = it.serve()
        await ready(serve)
        child = it.bench.children[-1]
        child.report("lost 0 it has no memory for a buffer")
        model = await until(serve, lambda model: model.state != "ready")
        assert "lost worker good: it has no memory for a buffer" in model.reason
        await ready(serve)
        assert it.bench.children[-1] is not child
        assert child.status.state is ChildState.STOPPED


@pytest.mark.parametrize("knows", ["the lease", "llama-server", "nobody", "the life that is over"])
async def test_a_request_that_met_a_loss_is_told_what_the_head_knows(tmp_path: Path, knows: str) -> None:
    async with stage(tmp_path) as it:
        good = it.worker("good")
        serve = it.serve()
        await ready(serve)
        child = it.bench.children[-1]
        if knows == "the life that is over":
            good.children[-1].die("ended by signal 9")
            await until(serve, lambda model: model.state != "ready")
            await until(serve, lambda _: not serve.status.tunnels)
        broke = asyncio.ensure_future(serve.upstream_broke("the connection was reset"))
        await asyncio.sleep(0)
        assert serve.readiness.state is not ModelState.READY, "nobody else is sent there"
        await asyncio.sleep(0.1)
        if knows == "the lease":
            good.children[-1].die("ended by signal 9")
        elif knows == "llama-server":
            child.report("lost 0 it closed the connection")
        told = await broke
        if knows == "nobody":
            assert told == "the connection was reset"
        elif knows == "llama-server":
            assert told == "llama-server lost worker good: it closed the connection"
        else:
            assert told.startswith("worker good is lost: ") and "signal 9" in told
        await ready(serve)


@pytest.mark.parametrize("ends", [False, True], ids=["answers with an error", "ends"])
async def test_a_worker_lost_while_loading_is_named_not_what_came_of_it(tmp_path: Path, ends: bool) -> None:
    """The lease knows nothing of it, so after two tries the worker is left out for what llama-server says."""
    async with stage(tmp_path) as it:
        it.worker("bad"), it.worker("good")
        serve = it.serve()
        for number in (1, 2):
            asked: asyncio.Future[ReadyReport] = asyncio.get_running_loop().create_future()
            it.bench.ready = asked
            await until(serve, lambda _, n=number: len(it.bench.children) == n)  # type: ignore[misc]
            await asyncio.sleep(0.2)
            child = it.bench.children[-1]
            child.report("lost 0 it closed the connection")
            if ends:
                child.die("exit code 1")
            else:
                asked.set_result(ReadyReport(False, "the first token failed: HTTP 500"))
            model = await until(serve, lambda model: "lost worker" in model.reason)
            assert "llama-server lost worker bad: it closed the connection" in model.reason
            assert "HTTP 500" not in model.reason and "exit code" not in model.reason
        it.bench.ready = None
        assert await ready(serve) == {"head", "good"}
        assert "worker bad is left out" in model_of(serve).reason


async def test_llama_server_is_asked_by_its_health_and_only_then_for_a_token(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("good")
        await ready(it.serve())
        llama = it.bench.children[0].spec
        assert llama is not None
        assert llama.probe is not None and not await llama.probe()  # no such socket


async def test_an_option_of_meshds_own_is_refused_at_the_start(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        with pytest.raises(UserError, match="--port"):
            Model(it.bench.runtime, FakeFile(), replace(PLAIN, llama_args=("--port", "1")))


async def test_a_head_that_is_banned_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        judge = it.net.mesh("judge")
        judge.state, judge.says_banned = PeerState.KNOWN, "node `abc` is banned from this mesh"
        model = await until(it.serve(), lambda model: "waiting for workers" in model.reason)
        assert "this node is banned, according to `judge`: node `abc`" in model.reason


ABORTED = "`mesh-server` was ended by SIGABRT while it ran"


async def until_loading(it: Stage, number: int) -> None:
    children = it.bench.children
    await loop.until(lambda: len(children) > number and children[number].spec is not None)


def with_a_bad_card(worker: Bench) -> None:
    worker.device_lines = (GPU_LINE,)
    worker.trial_lines = ("failed device it cannot be opened",)


async def test_the_others_serve_without_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half, _good = it.worker("a-half"), it.worker("b-good")
        with_a_bad_card(half)
        serve = it.serve()
        assert await ready(serve) == {"head", "b-good"}
        model = model_of(serve)
        assert "a-half GPU0 left out: it cannot be opened" in model.reason
        assert "output on" not in model.reason and "output on" in model.split_why
        assert (len(it.bench.children), len(half.children)) == (1, 0)


async def test_alone_it_is_waited_for_and_no_load_is_tried(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half = it.worker("half")
        with_a_bad_card(half)
        serve = it.serve()
        await until(serve, lambda model: "half GPU0: it cannot be opened" in model.reason)
        await asyncio.sleep(3600)
        assert (len(it.bench.children), len(half.children)) == (0, 0)
        await until(serve, lambda model: model.state == "waiting")


async def test_a_crash_in_the_load_is_tried_once_more(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half, good = it.worker("a-half"), it.worker("b-good")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in (0, 1):
            await until_loading(it, number)
            asked = it.bench.ready
            it.bench.ready = None if number else asyncio.get_running_loop().create_future()
            half.children[number].die(ABORTED, signal=signal.SIGABRT)
            assert asked is not None
            asked.cancel()
        assert await ready(serve) == {"head", "b-good"}
        reason = model_of(serve).reason
        assert "worker a-half is left out for 30 s after 2 tries" in reason and "SIGABRT" in reason
        await asyncio.sleep(FIRST_SECONDS)
        good.children[-1].die("ended by signal 9")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "b-good"}
        assert "a-half CPU left out: its server crashed 2 times" in model_of(serve).reason
        assert len(half.children) == 2


async def test_another_native_part_is_tried_again(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half = it.worker("half")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in range(TRIES):
            await until_loading(it, number)
            half.children[number].die(ABORTED, signal=signal.SIGABRT)
        await until(serve, lambda model: "its server crashed 2 times" in model.reason)
        it.bench.ready = None
        half.mesh.native = replace(NATIVE, sources="newer")
        half.mesh.say(PeerState.CONNECTED)
        assert "half" in await ready(serve)


async def test_a_model_tells_what_it_holds_and_computed_while_it_is_loaded(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        serve = it.serve(min_workers=0)
        assert serve.held == {} and await serve.explain() is None
        assert await serve.computed([(0.0, 1.0)]) == {}
        assert not serve.is_refusal(400) and not serve.is_refusal(503)
        serve.generated(1, 1, alone=True)
        assert await ready(serve) == {"head"}
        assert serve.held == {}, "the head's own CPU is not lent"
        assert await serve.computed([(0.0, 1.0)]) == {}, "there are no workers"
        assert await serve.explain() is not None
