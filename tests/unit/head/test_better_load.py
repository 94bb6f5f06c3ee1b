"""A model that is loaded again though nobody asks: for workers that come, and by what is measured later."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.devices.capacity import CapacityTeller
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.path_probe import PATH_PROBE_SERVICE
from meshd.gateway.interface import Readiness
from meshd.gateway.turns import Turns
from meshd.head.better_load import (
    HELD_SECONDS,
    LONG_ASKED_SECONDS,
    SETTLED_SECONDS,
    UNASKED_SECONDS,
    Arrivals,
    Judgement,
    QuietMoments,
    is_held,
)
from meshd.head.model import Model, is_news
from meshd.head.survey import own_timed
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.link.net.wireless import are_wireless
from meshd.model.layer_work import LayerWork
from meshd.model.status import DrainStatus, ModelState
from meshd.peer.interface import PeerState, PeerStatus, Stream
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice

from tests.conformance.nodes import fresh_key
from tests.unit.admin.test_snapshot import path
from tests.unit.devices.capacity_scene import CPU
from tests.unit.head.fake_mesh import FakeMesh, worker_status
from tests.unit.head.rig import Bench
from tests.unit.head.scene import Scene, scene
from tests.unit.head.test_model import Stage, model_of, ready, stage, until
from tests.unit.plan.plain_options import PLAIN

pytestmark = pytest.mark.virtual

LONG = UNASKED_SECONDS + SETTLED_SECONDS + 5.0


def test_it_is_quiet_when_nobody_has_asked_for_a_while() -> None:
    moments = QuietMoments(list, list)
    assert moments.idle_seconds(0.0) > UNASKED_SECONDS
    moments.requests(1, 10.0)
    assert moments.idle_seconds(1000.0) == 0.0
    moments.requests(0, 1000.0)
    assert moments.idle_seconds(1005.0) == 5.0


def comes(it: Stage, name: str, *, roles: frozenset[Role] = frozenset(Role)) -> Bench:
    """A worker that connects now."""
    worker = it.worker(name, roles=roles)
    worker.mesh.since = asyncio.get_running_loop().time()
    return worker


async def test_a_worker_that_comes_is_taken_in(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        comes(it, "two")
        await until(serve, lambda model: "worker two is here" in model.reason)
        assert await ready(serve) == {"head", "one", "two"}
        assert serve.status.children[0].restarts == 0, "that was no failure"


async def test_not_while_somebody_asks(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        serve.requested(1)
        comes(it, "two")
        await asyncio.sleep(5 * LONG)
        assert model_of(serve).state == "ready" and await ready(serve) == {"head", "one"}
        serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS / 2)
        assert await ready(serve) == {"head", "one"}
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "one", "two"}


async def test_not_one_that_may_not_work_or_does_not_stay(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        await ready(serve)
        comes(it, "guest", roles=frozenset({Role.USE}))
        short = comes(it, "short")
        await asyncio.sleep(SETTLED_SECONDS / 2)
        short.mesh.say(PeerState.SUSPENDED)
        await asyncio.sleep(LONG)
        assert model_of(serve).state == "ready" and await ready(serve) == {"head", "one"}


async def test_a_stranger_is_not_taken_in_where_the_plan_decides_but_one_that_was_used_is(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        back = it.worker("back")
        serve = it.serve_with(replace(PLAIN, split="auto", incarnation=bytes(16)))
        assert await ready(serve) == {"head", "one", "back"}
        back.mesh.say(PeerState.LOST)
        back.children[-1].die("exit code 1")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "one"}
        comes(it, "stranger")
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one"}
        back.mesh.since = asyncio.get_running_loop().time()
        back.mesh.say(PeerState.CONNECTED)
        await until(serve, lambda model: "worker back is here" in model.reason)
        assert {"one", "back"} <= await ready(serve)


async def test_a_worker_that_is_paused_is_let_go_when_no_answer_is_open_and_taken_in_later(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        assert await ready(serve) == {"head", "one", "two"}
        serve.requested(1)
        drained = [serve.model_status.draining]
        two.mesh.paused = True
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one", "two"}
        drained.append(serve.model_status.draining)
        serve.queued(1)  # a second request waits for the load without that worker
        serve.requested(2)
        drained.append(serve.model_status.draining)
        serve.queued(0)
        serve.requested(0)
        await until(serve, lambda model: "worker two is paused" in model.reason)
        assert await ready(serve) == {"head", "one"}
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one"}
        drained.append(serve.model_status.draining)
        assert drained == [None, DrainStatus(("two",), 1), DrainStatus(("two",), 1), None]
        two.mesh.paused = False
        await until(serve, lambda model: "worker two is here" in model.reason)
        assert await ready(serve) == {"head", "one", "two"}
        assert serve.status.children[0].restarts == 0


async def test_the_only_worker_is_waited_for_while_it_is_paused(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        only = it.worker("only")
        serve = it.serve()
        await ready(serve)
        only.mesh.paused = True
        await until(serve, lambda model: "only is paused (`meshd resume` there ends that)" in model.reason)
        only.mesh.paused = False
        only.mesh.say(PeerState.CONNECTED)
        assert await ready(serve) == {"head", "only"}


def test_turns_are_held_after_ten_minutes_and_not_for_long() -> None:
    assert [is_held(at) for at in (0.0, LONG_ASKED_SECONDS - 1, LONG_ASKED_SECONDS)] == [False, False, True]
    over = LONG_ASKED_SECONDS + HELD_SECONDS
    assert [is_held(at) for at in (over - 1, over, over + LONG_ASKED_SECONDS)] == [True, False, True]


@asynccontextmanager
async def overlapping(serve: Model, seconds: float, users: int = 3) -> AsyncIterator[list[float]]:
    """Answers of so many seconds, one after another, of more users than there are slots.

    Yields the times when one began.
    """
    loop = asyncio.get_running_loop()
    turns = Turns(serve)
    began: list[float] = []
    active = 0

    def asks(change: int) -> None:
        nonlocal active
        active += change
        serve.requested(active)

    async def user(number: int) -> None:
        await asyncio.sleep(number * seconds / users)
        while True:
            asks(1)
            with turns.enter(number) as turn:
                await turn.come()
                await ready(serve)
                began.append(loop.time())
                await asyncio.sleep(seconds)
            asks(-1)

    tasks = [asyncio.ensure_future(user(number)) for number in range(users)]
    await asyncio.sleep(2 * seconds)
    try:
        yield began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_worker_that_is_paused_is_let_go_under_overlapping_answers(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        assert await ready(serve) == {"head", "one", "two"}
        async with overlapping(serve, 20.0) as began:
            two.mesh.paused = True
            at = asyncio.get_running_loop().time()
            await asyncio.sleep(5.0)
            assert "worker two is paused" in serve.holds_turns
            await until(serve, lambda model: "worker two is paused" in model.reason)
            assert asyncio.get_running_loop().time() - at < 25.0, "the answers that were open have ended"
            assert max(began) < at + 2.0, "none began meanwhile"
            assert await ready(serve) == {"head", "one"}
            assert serve.holds_turns == ""
            await asyncio.sleep(60.0)
            assert max(began) > at + 30.0, "those that waited have their turns"
            assert model_of(serve).state == "ready"


async def test_a_worker_that_comes_is_taken_in_under_overlapping_answers(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        async with overlapping(serve, 20.0) as began:
            comes(it, "two")
            at = asyncio.get_running_loop().time()
            await asyncio.sleep(LONG_ASKED_SECONDS - 5.0)
            assert serve.holds_turns == "" and max(began) > at + LONG_ASKED_SECONDS - 30.0
            await until(serve, lambda model: "worker two is here" in model.reason)
            assert LONG_ASKED_SECONDS <= asyncio.get_running_loop().time() - at < LONG_ASKED_SECONDS + 25.0
            assert await ready(serve) == {"head", "one", "two"}


async def test_a_long_answer_holds_up_the_others_for_minutes_only(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        serve.requested(1)
        comes(it, "two")
        await asyncio.sleep(LONG_ASKED_SECONDS + 2.0)
        assert "worker two is here" in serve.holds_turns
        await asyncio.sleep(HELD_SECONDS)
        assert serve.holds_turns == "" and await ready(serve) == {"head", "one"}
        await asyncio.sleep(LONG_ASKED_SECONDS)
        assert "worker two is here" in serve.holds_turns
        serve.requested(0)
        await until(serve, lambda model: "worker two is here" in model.reason)


async def test_turns_go_on_where_the_worker_is_resumed_or_lost_before_the_answers_end(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        await ready(serve)
        serve.requested(1)
        two.mesh.paused = True
        await asyncio.sleep(2.0)
        assert serve.holds_turns
        two.mesh.paused = False
        await asyncio.sleep(2.0)
        assert serve.holds_turns == "" and await ready(serve) == {"head", "one", "two"}
        two.mesh.paused = True
        await asyncio.sleep(2.0)
        assert serve.holds_turns
        two.children[-1].die("exit code 1")
        await until(serve, lambda model: model.state != "ready")
        assert serve.holds_turns == ""
        assert await ready(serve) == {"head", "one"} and serve.holds_turns == ""


def worker(name: str, since: float) -> PeerStatus:
    return worker_status(fresh_key().peer, name, since=since)


@dataclass
class Life:
    """A model that runs on `workers`."""

    rig: "Rig"
    loaded: bool = True
    replaced: bool = False
    workers: tuple[PeerId, ...] = ()

    def replace(self, why: str) -> None:
        """Fail: an arrival alone ends no run."""
        raise AssertionError(why)

    async def judge(self) -> Judgement:
        """Fail: nor does it measure what a load has estimated."""
        raise AssertionError

    async def better_with(self) -> Collection[PeerId]:
        """Return those of the rig that would help."""
        self.rig.asked += 1
        if self.rig.fails:
            raise Broken("no devices")
        return self.rig.better


@dataclass
class Rig:
    """A rig: who is there, who would help, and how often that was asked."""

    there: list[PeerStatus] = field(default_factory=list)
    better: frozenset[PeerId] = frozenset()
    asked: int = 0
    idle: float = 1000.0
    fails: bool = False

    def __post_init__(self) -> None:
        self.life = Life(self)
        self.arrivals = Arrivals(lambda: self.there, lambda _now: self.idle)

    def comes(self, name: str) -> PeerStatus:
        """A worker that connects now."""
        found = worker(name, asyncio.get_running_loop().time())
        self.there.append(found)
        return found


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    it = Rig()
    async with Owner() as owner:
        began = asyncio.get_running_loop().time()
        owner.start(it.arrivals.watch(it.life, began), name="arrivals")
        await asyncio.sleep(1)
        try:
            yield it
        finally:
            owner.cancel()


async def test_one_with_which_the_model_is_faster_is_taken_in_and_another_one_is_not() -> None:
    async with rig() as it:
        fast, slow = it.comes("fast"), it.comes("slow")
        it.better = frozenset({fast.peer})
        await asyncio.sleep(LONG)
        assert it.arrivals.helpful == {fast.peer} and slow.peer not in it.arrivals.helpful
        await asyncio.sleep(1000)
        assert it.asked == 1, "once for each arrival"


async def test_one_that_was_there_before_or_does_not_stay_is_not_judged() -> None:
    async with rig() as it:
        it.there = [worker("old", -5.0)]
        short = it.comes("short")
        await asyncio.sleep(SETTLED_SECONDS / 2)
        it.there.remove(short)
        await asyncio.sleep(LONG)
        assert it.asked == 0


class Replaceable(Life):
    """A model that may be loaded again."""

    def replace(self, why: str) -> None:
        """Note it."""
        assert "is here" in why
        self.replaced = True


async def test_one_that_came_while_the_split_was_planned_is_taken_in() -> None:
    """The plan did not know it, and the watch begins after the plan."""
    it = Rig()
    it.life = Replaceable(it)
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(1)
    early = it.comes("early")
    it.better = frozenset({early.peer})
    moments = QuietMoments(lambda: it.there, lambda: it.there)
    await asyncio.sleep(1)
    async with Owner() as owner:
        owner.start(it.arrivals.watch(it.life, began), name="arrivals")
        owner.start(moments.watch(it.life, began), name="quiet moments")
        await asyncio.sleep(LONG)
        owner.cancel()
    assert it.arrivals.helpful == {early.peer}
    assert it.life.replaced


async def test_one_that_may_not_be_asked_at_first_is_judged_once_it_may() -> None:
    """It was paused, or fetched its model, and has been connected all the time."""
    async with rig() as it:
        await asyncio.sleep(LONG)
        it.there = [worker("old", -5.0)]
        await asyncio.sleep(LONG)
        assert it.asked == 1


async def test_it_is_judged_again_when_it_comes_again() -> None:
    async with rig() as it:
        peer = it.comes("peer")
        it.better = frozenset({peer.peer})
        await asyncio.sleep(LONG)
        assert it.arrivals.helpful == {peer.peer}
        it.better, it.there = frozenset(), [replace(peer, since=asyncio.get_running_loop().time())]
        await asyncio.sleep(LONG)
        assert it.asked == 2 and not it.arrivals.helpful


async def test_one_that_was_to_help_and_does_not_take_part_is_judged_later_and_later() -> None:
    """Else it could have the model loaded again each time that it connects."""
    async with rig() as it:
        peer = it.comes("peer")
        it.better = frozenset({peer.peer})
        await asyncio.sleep(LONG)
        for asked, minutes in ((1, 10), (2, 20), (3, 40)):
            assert it.asked == asked and it.arrivals.helpful
            it.arrivals.loaded([], asyncio.get_running_loop().time())
            assert not it.arrivals.helpful
            it.there = [replace(peer, since=asyncio.get_running_loop().time())]
            await asyncio.sleep(60 * minutes - 2)
            assert it.asked == asked
            await asyncio.sleep(LONG)
        it.arrivals.loaded([peer.peer], asyncio.get_running_loop().time())
        assert it.arrivals.helpful


async def test_requests_are_not_disturbed_for_a_minute_and_not_before_the_model_is_loaded() -> None:
    async with rig() as it:
        it.idle, it.life.loaded = 0.0, False
        it.comes("peer")
        await asyncio.sleep(100)
        assert it.asked == 0
        it.life.loaded = True
        await asyncio.sleep(2)
        assert it.asked == 1, "it was there for a minute"
        it.comes("other")
        await asyncio.sleep(LONG)
        assert it.asked == 1
        await asyncio.sleep(60)
        assert it.asked == 2


async def test_a_comparison_that_fails_leaves_the_model_as_it_is() -> None:
    async with rig() as it:
        it.fails = True
        it.comes("peer")
        await asyncio.sleep(LONG)
        assert it.asked == 1 and not it.arrivals.helpful


WORK = LayerWork(kinds=(0,), scales=(1.0,), texts=("layer", "output"), output=1)


def measuring_head(it: Scene, folder: Path) -> None:
    """The head of the scene, whose devices were never measured."""
    bench = it.bench
    it.serve = Model(bench.runtime, it.file, it.options, speeds_of(bench, folder / "speeds"))


def speeds_of(bench: Bench, cache: Path) -> DeviceSpeeds:
    """Return the speeds of its devices, which were never measured."""
    runtime = bench.runtime
    paths = replace(runtime.paths, speed_cache=cache)
    return DeviceSpeeds(runtime.native, runtime.processes.run_to_end, paths, machine="m", threads=1)


SLOW, FAST = (
    [f"took {kind} {tokens} {nanoseconds}" for kind in range(9) for tokens in (1, 128)]
    for nanoseconds in (900_000_000, 9_000)
)


def tells(mesh: FakeMesh, bench: Bench, cache: Path, *, is_busy: Callable[[], bool] = lambda: False) -> None:
    """Let this worker tell how fast it is, which nobody has measured yet."""

    async def devices(*, recent: bool) -> tuple[OfferedDevice, ...]:
        return (replace(CPU, free_bytes=64 << 30, total_bytes=64 << 30),)

    CapacityTeller(
        mesh,
        speeds_of(bench, cache),
        devices=devices,
        machine="a",
        is_busy=is_busy,
        are_wireless=are_wireless,
    )


async def test_a_load_waits_for_no_measurement_and_devices_are_measured_once_nobody_asks(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        it.bench.timing_seconds = 20.0
        measuring_head(it, tmp_path)
        await it.ready()
        status = it.serve.model_status
        assert status.load_seconds is not None and status.load_seconds < 5.0
        assert (status.estimated, status.predicted) == (("head",), None)
        it.serve.requested(1)
        await asyncio.sleep(5 * UNASKED_SECONDS)
        assert not it.bench.timings, "not while somebody asks"
        it.serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS + 5.0)
        assert len(it.bench.timings) == 1 and it.serve.model_status.estimated == ("head",)
        await asyncio.sleep(20.0)
        status = it.serve.model_status
        assert status.estimated == () and status.predicted is not None
        assert 19.9 < status.measuring_seconds < 23.0
        assert status.state is ModelState.READY and len(it.bench.children) == 1
        it.llama.die("aborted")
        await it.until(ModelState.LOADING)
        await it.until(ModelState.READY)
        status = it.serve.model_status
        assert (status.measuring_seconds, status.estimated) == (0.0, ()), "once"
        assert status.predicted is not None


async def test_a_request_ends_a_measurement_which_begins_anew(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        it.bench.timing_seconds = 20.0
        measuring_head(it, tmp_path)
        await it.ready()
        await asyncio.sleep(5.0)
        assert (len(it.bench.timings), it.bench.timings_ended) == (1, 0), "nobody has asked yet"
        it.serve.requested(1)
        await asyncio.sleep(0.01)
        assert it.bench.timings_ended == 1, "at once"
        it.serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS - 2.0)
        assert len(it.bench.timings) == 1
        await asyncio.sleep(25.0)
        assert len(it.bench.timings) == 2 and it.serve.model_status.estimated == ()


@pytest.mark.parametrize(("own", "its", "runs_on"), [(SLOW, FAST, "a"), (FAST, SLOW, "head")])
async def test_the_model_is_loaded_again_only_where_another_split_is_clearly_faster(
    tmp_path: Path, own: list[str], its: list[str], runs_on: str
) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh = it.worker("a")
        mesh.paths = (replace(path(selected=True), rate=1e9),)
        tells(mesh, it.workers["a"], tmp_path / "a")
        it.bench.timing_lines, it.workers["a"].timing_lines = own, its
        measuring_head(it, tmp_path)
        await it.ready()
        status = it.serve.model_status
        assert [part.node for part in status.split if part.layers] == ["head"], "alike, by estimates"
        assert status.estimated == ("a", "head")
        for _ in range(3):
            await asyncio.sleep(UNASKED_SECONDS + 5.0)
            await it.until(ModelState.READY)
        status = it.serve.model_status
        assert [part.node for part in status.split if part.layers] == [runs_on]
        assert status.estimated == () and status.predicted is not None
        assert len(it.bench.children) == (2 if runs_on == "a" else 1)
        assert it.serve.status.children[0].restarts == 0, "that was no failure"


async def test_a_worker_that_is_busy_is_measured_later(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh = it.worker("a")
        mesh.paths = (replace(path(selected=True), rate=1e9),)
        busy = True

        def is_busy() -> bool:
            return busy and it.serve.model_status.state is ModelState.READY

        tells(mesh, it.workers["a"], tmp_path / "a", is_busy=is_busy)
        it.bench.timing_lines = it.workers["a"].timing_lines = FAST
        measuring_head(it, tmp_path)
        await it.ready()
        await asyncio.sleep(100.0)
        assert it.serve.model_status.estimated == ("a",), "its own devices are measured"
        busy = False
        await asyncio.sleep(200.0)
        assert not it.serve.model_status.estimated


class TwoFaced(DeviceSpeeds):
    """A worker's speeds: slow when it is asked for a load, fast when a split is judged."""

    is_asked_for_a_load = False

    def lacks(self, devices: Sequence[OfferedDevice], timed: Sequence[str]) -> bool:
        return False

    def known(self, device: OfferedDevice, timed: Sequence[str]) -> tuple[TimedLayer, ...]:
        nanoseconds = 9_000_000_000 if self.is_asked_for_a_load else 9_000
        return tuple(
            TimedLayer(kind, tokens, nanoseconds) for kind in range(len(timed)) for tokens in (1, 128)
        )


async def test_a_worker_whose_word_does_not_hold_costs_few_loads(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh, bench = it.worker("a"), it.workers["a"]
        mesh.paths = (replace(path(selected=True), rate=None),)
        paths = replace(bench.runtime.paths, speed_cache=tmp_path / "a")
        speeds = TwoFaced(
            bench.runtime.native, bench.runtime.processes.run_to_end, paths, machine="m", threads=1
        )

        async def devices(*, recent: bool) -> tuple[OfferedDevice, ...]:
            speeds.is_asked_for_a_load = recent
            return (replace(CPU, free_bytes=64 << 30, total_bytes=64 << 30),)

        CapacityTeller(
            mesh, speeds, devices=devices, machine="a", is_busy=lambda: False, are_wireless=are_wireless
        )
        it.bench.timing_lines = SLOW
        measuring_head(it, tmp_path)
        await it.ready()
        await asyncio.sleep(3600.0)
        assert 1 <= len(it.bench.children) <= 5


async def test_workers_are_asked_for_leases_at_once_and_paths_are_filled_later(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=1, split="auto") as it:
        measuring_head(it, tmp_path)
        mesh = it.worker("a")
        it.workers["a"].timing_seconds = 20.0
        mesh.paths = (replace(path(selected=True), rate=None),)
        filled: list[float] = []

        async def fill(stream: Stream) -> None:
            filled.append(asyncio.get_running_loop().time())
            mesh.paths = (replace(path(selected=True), rate=1e9),)
            stream.write_eof()

        mesh.handle(PATH_PROBE_SERVICE, fill, allow=lambda _member, _metadata: None)
        tells(mesh, it.workers["a"], tmp_path / "a")
        it.start()
        await it.until(ModelState.READY, seconds=2)
        assert not filled and not it.workers["a"].timings
        it.serve.requested(1)
        await asyncio.sleep(2 * UNASKED_SECONDS)
        assert not filled
        it.serve.requested(0)
        await asyncio.sleep(2 * UNASKED_SECONDS + 20.0)
        assert filled
        assert it.serve.model_status.estimated == ()


def test_a_head_without_layers_times_no_more_than_the_output() -> None:
    assert list(own_timed(WORK, HeadOptions())) == ["layer", "output"]
    alone = HeadOptions(devices=("none",))
    assert list(own_timed(WORK, alone)) == ["output"]
    assert list(own_timed(WORK, replace(alone, output="worker"))) == []
    assert list(own_timed(replace(WORK, output=None), alone)) == []


def test_a_number_that_counts_on_is_no_news() -> None:
    before = Readiness(ModelState.LOADING, "measuring CPU for 2 s")
    assert not is_news(ModelState.LOADING, "measuring CPU for 4 s", before)
    assert is_news(ModelState.LOADING, "planning", before)
    assert is_news(ModelState.WAITING, "measuring CPU for 2 s", before)
