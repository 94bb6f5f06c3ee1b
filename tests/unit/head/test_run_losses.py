"""The head loses a worker, a program or a connection: it starts over, and knows whose doing it was."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.processes import ProcessWork
from meshd.base.tasks import cancel_and_wait
from meshd.gateway.interface import ReadyReport
from meshd.head.failures import ENDS
from meshd.head.leases import WHY_APART
from meshd.head.llama_server import LOAD_STILL_SECONDS, STUCK
from meshd.head.model import Model
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState

from tests.unit.head.rig import Bench, cpu_lines
from tests.unit.head.scene import scene, view
from tests.unit.head.stubs import StubTunnel
from tests.unit.head.test_model import Stage, model_of, ready, stage, until
from tests.unit.plan.plain_options import PLAIN
from tests.unit.rpc import mesh_talk as talk

pytestmark = pytest.mark.virtual


async def test_a_worker_out_of_reach_is_told_after_ten_seconds_and_needs_no_load(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        await it.ready()
        ready, llama = it.serve.readiness, it.llama
        anna.since = began = asyncio.get_running_loop().time()
        anna.say(PeerState.SUSPENDED)
        await asyncio.sleep(9.9)
        assert it.serve.readiness == ready
        await it.until(ModelState.DEGRADED, "no connection to worker anna for 10 s", seconds=1)
        assert asyncio.get_running_loop().time() - began == pytest.approx(10.0, abs=0.01)
        model = it.model
        assert (model.state, model.reason) == ("degraded", "no connection to worker anna for 10 s")
        assert model.split, "the split is shown"
        anna.say(PeerState.CONNECTED)
        assert it.serve.readiness == ready
        assert it.llama is llama


async def test_a_worker_that_is_back_for_moments_only_is_done_without(tmp_path: Path) -> None:
    """Each time before the grace is over, so that its session lives on."""
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        await it.ready()
        for state in (PeerState.SUSPENDED, PeerState.CONNECTED, PeerState.SUSPENDED):
            anna.since = asyncio.get_running_loop().time()
            anna.say(state)
            await asyncio.sleep(1.0 if state is PeerState.CONNECTED else 110.0)
            if state is PeerState.CONNECTED:
                assert it.serve.readiness.state is ModelState.READY
        assert it.serve.readiness.state is ModelState.WAITING
        model = it.model
        assert not model.split
        anna.since = asyncio.get_running_loop().time()
        anna.say(PeerState.CONNECTED)
        await it.until(ModelState.READY)


@pytest.mark.parametrize("what", ["rpc-server", "worker", "llama-server", "gateway"])
async def test_a_loss_is_loading_at_once_and_ready_again(tmp_path: Path, what: str) -> None:
    async with scene(tmp_path) as it:
        worker = it.worker("anna")
        await it.ready()
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


@pytest.mark.parametrize(
    ("ended_by", "seconds"), [(signal.SIGKILL, 0.1), (signal.SIGTERM, 0.1), (signal.SIGABRT, 1.1)]
)
async def test_a_llama_server_that_somebody_ended_is_started_again_without_the_word_of_a_lease(
    tmp_path: Path, ended_by: signal.Signals, seconds: float
) -> None:
    async with scene(tmp_path) as it:
        await it.ready("anna")
        first, began = it.llama, asyncio.get_running_loop().time()
        it.llama.die("ended", signal=ended_by)
        broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
        await it.until(ModelState.LOADING, seconds=0.1)
        await it.until(ModelState.READY)
        took = asyncio.get_running_loop().time() - began
        assert seconds - 0.1 <= took < seconds + 0.1 and it.llama is not first
        assert "llama-server ended" in await broke


@pytest.mark.parametrize("state", [ModelState.LOADING, ModelState.READY])
async def test_a_llama_server_that_is_suspended_is_killed_and_started_again(
    tmp_path: Path, state: ModelState
) -> None:
    """It would keep its clients for ever, or the load."""
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        if state is ModelState.LOADING:
            it.bench.ready = asyncio.get_running_loop().create_future()  # no first token comes
        await it.until(state, "loading the model" if state is ModelState.LOADING else "")
        first = it.llama
        assert first.status.pid is not None
        it.bench.stopped.add(first.status.pid)
        why = "llama-server ended: it is suspended (SIGSTOP), and does not answer"
        await it.until(ModelState.LOADING, why, seconds=1.1)
        it.bench.stopped.clear()
        it.bench.ready = None
        await it.until(ModelState.READY, seconds=5)
        assert first.killed and first.ended and it.llama is not first


async def test_a_llama_server_whose_load_never_ends_is_killed_and_says_why(tmp_path: Path) -> None:
    """A chat template that loops: it computes, and nothing else happens."""
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.work = lambda: ProcessWork(asyncio.get_running_loop().time(), 1000)
        it.bench.start_seconds = 100 * LOAD_STILL_SECONDS
        it.start()
        await it.until(ModelState.LOADING, STUCK, seconds=LOAD_STILL_SECONDS + 10)
        assert it.llama.killed
        it.bench.start_seconds = 0.0
        await it.until(ModelState.READY, seconds=60)


@pytest.mark.parametrize("trouble", ["report", "child", 0])
async def test_a_llama_server_that_cannot_start_is_tried_again_and_leaks_nothing(
    tmp_path: Path, trouble: str | int
) -> None:
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


async def test_cancelled_at_any_turn_nothing_is_left(tmp_path: Path) -> None:
    """Tasks, descriptors and leases: the first two are looked for after every test."""
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


async def test_a_lost_lease_in_the_turn_of_the_start_leaks_nothing(tmp_path: Path) -> None:
    for turns in range(60):
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            for stream in it.bench.mesh.streams:
                stream.reset(8, "lost")
            await it.until(ModelState.READY, seconds=60)


class Attack:
    """`a` pushes to `b`, if the head lets it; each life of the model ends by the doing of one of the two."""

    def __init__(self, it: Stage, *, loaded: bool, devices: tuple[str, ...] = ()) -> None:
        self.it, self.loaded = it, loaded
        self.first, self.second = it.worker("a"), it.worker("b")
        self.lives = 0
        self.set_ready(loaded)
        self.serve = it.serve_with(replace(PLAIN, min_workers=1, devices=devices, incarnation=bytes(16)))

    def set_ready(self, now: bool) -> None:
        self.it.bench.ready = asyncio.get_running_loop().create_future()
        if now:
            self.it.bench.ready.set_result(ReadyReport(True, "", 0.1))

    async def life(self) -> set[str]:
        """The next one has begun; who takes part."""
        self.lives += 1
        await until(self.serve, lambda _: len(self.it.bench.children) == self.lives)
        state = "ready" if self.loaded else "loading"
        await until(
            self.serve, lambda model: model.state == state and self.it.bench.tokens_asked == self.lives
        )
        return {worker.mesh.name for worker in (self.first, self.second) if self.is_used(worker)}

    def is_used(self, worker: Bench) -> bool:
        return any(t.asked.peer == worker.mesh.key.peer and not t.closed for t in self.it.bench.tunnels)

    def connect(self) -> None:
        """Their servers have a connection with each other, as they say."""
        for place in (0, 1):
            view(self.it.bench, place).from_peer(talk.welcome() + talk.met(1 - place))

    def pushes(self) -> bool:
        """The head has introduced them."""
        return any(not tunnel.closed for tunnel in self.first.tunnels)

    async def lost(self, worker: Bench, why: str = "it ended", *, last: bool = False) -> None:
        """llama-server says so, and the lease of the worker stands."""
        server, asked = self.it.bench.children[-1], self.it.bench.ready
        self.set_ready(self.loaded or last)
        server.report(f"lost {tunnel_to(self.it, worker).endpoint} {why}")
        if not self.loaded:
            server.die("ended with exit code 1")
            assert asked is not None
            asked.cancel()
        await until(self.serve, lambda model: "llama-server lost worker" in model.reason)
        await asyncio.sleep(1.1)


NAMES_THE_OTHER = ("it says: lost neighbour {}: it ended", "it has waited for neighbour {} for 20 s")


def ends(serve: Model, *workers: Bench) -> list[int]:
    return [serve.serving.roster.backoff.ends(worker.mesh.key.peer) for worker in workers]


@pytest.mark.parametrize("why", NAMES_THE_OTHER)
async def test_one_that_names_the_other_and_goes_is_known_the_next_time(tmp_path: Path, why: str) -> None:
    """Before the load. Two of them, and no third: the honest one serves."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=False)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        attack.connect()
        await attack.lost(attack.second, why.format(0))
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        for last in (False, True):
            assert await attack.life() == {"a", "b"} and not attack.pushes()
            await attack.lost(attack.second, last=last)
        assert await ready(attack.serve) == {"head", "a"}
        assert "worker b is left out for 30 s after 2 tries" in model_of(attack.serve).reason


@pytest.mark.parametrize("loaded", [False, True], ids=["before the load", "after it"])
async def test_one_that_ends_a_push_does_not_have_the_other_left_out(tmp_path: Path, loaded: bool) -> None:
    """The other's server ends then, and names it."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=loaded)
        while await attack.life() == {"a", "b"} and attack.pushes():
            attack.connect()
            await attack.lost(attack.first, NAMES_THE_OTHER[0].format(1))
        assert attack.lives == 2
        attack.set_ready(True)
        if not loaded:
            it.bench.children[-1].die("ended with exit code 1")
        assert await ready(attack.serve) == {"head", "a", "b"}
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        parts = {part.node: part.why_no_push for part in model_of(attack.serve).split}
        assert parts["b"] == WHY_APART


async def test_what_the_gateway_sees_first_is_both_ones_doing_all_the_same(tmp_path: Path) -> None:
    """An open answer breaks, and llama-server says why a moment later."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        attack.connect()
        told = asyncio.ensure_future(attack.serve.upstream_broke("the connection was closed"))
        await asyncio.sleep(0.1)
        await attack.lost(attack.first, NAMES_THE_OTHER[0].format(1))
        assert (await told).startswith("llama-server lost worker a: it says: lost neighbour 1")
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        assert await attack.life() == {"a", "b"} and not attack.pushes()


@pytest.mark.parametrize("why", ["it ended", "it says: lost neighbour 7: it ended"])
async def test_what_is_certain_is_one_workers_doing(tmp_path: Path, why: str) -> None:
    """It names nobody, or nobody who is there."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        for number in range(ENDS):
            assert await attack.life() == {"a", "b"}
            attack.connect()
            await attack.lost(attack.second, why)
            assert ends(attack.serve, attack.first, attack.second) == [0, number + 1]
        assert await attack.life() == {"a"}


WRONG = "it says: wrong value: not a number, to be sorted"
NOT_FINITE = "it sent values that are not finite"


@pytest.mark.parametrize("loaded", [False, True], ids=["before the load", "after it"])
@pytest.mark.parametrize("connected", [False, True])
async def test_one_that_cannot_compute_with_a_value_is_not_to_blame_alone(
    tmp_path: Path, loaded: bool, connected: bool
) -> None:
    """Whoever has layers before its own may have sent it. They push to each other no more."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=loaded)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        if connected:
            attack.connect()
        await attack.lost(attack.second, WRONG)
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        assert await attack.life() == {"a", "b"} and not attack.pushes()


async def test_the_word_of_its_lease_is_heard_as_that_of_llama_server(tmp_path: Path) -> None:
    """A mesh-server that refuses ends, and its worker says so at once."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        attack.second.children[-1].die(f"exit code 1: {WRONG.removeprefix('it says: ')}", code=1)
        assert await attack.life() == {"a", "b"} and not attack.pushes()
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]


async def test_a_worker_that_ends_for_its_neighbour_is_not_to_blame_alone(tmp_path: Path) -> None:
    """Test that its lease is heard last: llama-server or the neighbour's lease may say more."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        attack.connect()
        attack.second.children[-1].die("exit code 1: lost neighbour 0: it ended", code=1)
        await asyncio.sleep(0.5)
        assert ends(attack.serve, attack.first, attack.second) == [0, 0]
        assert await attack.life() == {"a", "b"} and not attack.pushes()
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]


async def test_the_first_worker_has_its_values_from_the_head(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        await attack.lost(attack.first, WRONG)
        assert ends(attack.serve, attack.first, attack.second) == [1, 0]


@pytest.mark.parametrize("connected", [False, True])
async def test_values_that_are_not_finite_are_of_who_sent_them_or_pushed_them_on(
    tmp_path: Path, connected: bool
) -> None:
    """Test that values are looked at where they go through llama-server."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        if connected:
            attack.connect()
        await attack.lost(attack.second, NOT_FINITE)
        assert ends(attack.serve, attack.first, attack.second) == [int(connected), 1]
        assert await attack.life() == {"a", "b"} and attack.pushes() is not connected


async def fail_first_tokens(attack: Attack) -> None:
    """Each life until a token is asked of a head and one worker."""
    for number in range(1, ENDS + 1):
        assert await attack.life() == {"a", "b"}
        asked = attack.it.bench.ready
        assert asked is not None
        attack.set_ready(number == ENDS)
        asked.set_result(ReadyReport(False, "the first token failed: unordered_map::at"))
        await until(attack.serve, lambda model: "the first token failed" in model.reason)
        assert model_of(attack.serve).state == "loading"
        await asyncio.sleep(1.5)


async def test_first_tokens_that_fail_are_tried_without_the_worker_that_makes_them(tmp_path: Path) -> None:
    """It may be its doing, and llama-server need not report it."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=False, devices=("none",))
        await fail_first_tokens(attack)
        assert ends(attack.serve, attack.first, attack.second) == [0, ENDS]
        assert await ready(attack.serve) == {"a"}
        assert "worker b is left out for 60 s" in model_of(attack.serve).reason


async def test_a_push_that_there_was_not_is_no_reason_to_doubt(tmp_path: Path) -> None:
    """The two have no connection."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        await attack.lost(attack.second, NAMES_THE_OTHER[0].format(0))
        assert ends(attack.serve, attack.first, attack.second) == [0, 1]


def tunnel_to(it: Stage, worker: Bench) -> StubTunnel:
    return next(tunnel for tunnel in reversed(it.bench.tunnels) if tunnel.asked.peer == worker.mesh.key.peer)


@asynccontextmanager
async def bad_and_good(folder: Path, *, min_workers: int = 1) -> AsyncIterator[tuple[Model, Bench, Bench]]:
    """A head, and its workers of these names."""
    async with stage(folder) as it:
        bad, good = it.worker("bad"), it.worker("good")
        yield it.serve(min_workers=min_workers), bad, good


async def end_lease(serve: Model, worker: Bench) -> None:
    """As its rpc-server is ended."""
    worker.children[-1].die("exit code 1")
    await until(serve, lambda model: model.state != "ready")


async def test_a_worker_that_ends_its_leases_soon_is_done_without(tmp_path: Path) -> None:
    """And a new connection does not help it."""
    async with bad_and_good(tmp_path) as (serve, bad, _good):
        for _ in range(ENDS):
            assert await ready(serve) == {"head", "bad", "good"}
            bad.mesh.since += 1.0
            await end_lease(serve, bad)
        assert await ready(serve) == {"head", "good"}
        reason = model_of(serve).reason
        assert "worker bad is left out for 60 s: it failed 3 times soon after loading" in reason
        assert "exit code 1" in reason


async def test_what_the_gateway_sees_first_is_the_workers_doing_all_the_same(tmp_path: Path) -> None:
    """llama-server ends with its worker; the lease tells why a moment later."""
    async with bad_and_good(tmp_path) as (serve, bad, _good):
        for _ in range(ENDS):
            assert await ready(serve) == {"head", "bad", "good"}
            told = asyncio.ensure_future(serve.upstream_broke("the connection was closed"))
            await asyncio.sleep(0)
            assert model_of(serve).state == "loading"
            await asyncio.sleep(0.1)
            await end_lease(serve, bad)
            await until(serve, lambda model: "bad is lost" in model.reason)
            assert (await told).startswith("worker bad is lost: ")
        assert await ready(serve) == {"head", "good"}


async def test_its_time_out_ends_and_the_next_one_is_longer(tmp_path: Path) -> None:
    async with bad_and_good(tmp_path) as (serve, bad, good):
        for _ in range(ENDS):
            await ready(serve)
            await end_lease(serve, bad)
        assert await ready(serve) == {"head", "good"}
        await asyncio.sleep(300.0)
        good.children[-1].die("exit code 2")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "bad", "good"}
        await end_lease(serve, bad)
        assert await ready(serve) == {"head", "good"}
        assert "worker bad is left out for 120 s" in model_of(serve).reason


async def test_with_too_few_others_it_is_used_all_the_same(tmp_path: Path) -> None:
    async with bad_and_good(tmp_path, min_workers=2) as (serve, bad, _good):
        for _ in range(4 * ENDS):
            began = asyncio.get_running_loop().time()
            assert await ready(serve) == {"head", "bad", "good"}
            assert asyncio.get_running_loop().time() - began < 10.0
            await end_lease(serve, bad)


async def test_a_model_that_does_not_fit_without_it_is_run_with_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad, small = it.worker("bad"), it.worker("small")
        small.device_lines = cpu_lines(free_mib=1)
        serve = it.serve()
        for _ in range(2 * ENDS):
            began = asyncio.get_running_loop().time()
            assert "bad" in await ready(serve)
            assert asyncio.get_running_loop().time() - began < 15.0
            await end_lease(serve, bad)
