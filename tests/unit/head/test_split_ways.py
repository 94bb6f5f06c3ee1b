"""Test what becomes of a model that `--split auto` has split by tensors: when that is not tried again."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshd.base.errors import Refused
from meshd.gateway.interface import AnswerTimings, ReadyReport
from meshd.head import run as run_module
from meshd.head.better_load import UNASKED_SECONDS, SplitNow
from meshd.head.failures import STEADY_SECONDS
from meshd.head.lease import Lease
from meshd.head.leases import PushPlan
from meshd.head.run import Run
from meshd.head.split_ways import SplitWays
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import SplitChoice, plan_model
from meshd.plan.machines import Machines
from meshd.plan.reasons import NotTogether, OtherWay, TogetherByChoice
from meshd.plan.split import DeviceShare
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import NO_MEMORY, PAUSED

from tests.unit.head.scene import Scene, scene, view
from tests.unit.head.test_leases import held, yes
from tests.unit.head.test_run_mesh import until_started_anew
from tests.unit.head.test_speculation import PLAN
from tests.unit.rpc import mesh_talk as talk

pytestmark = pytest.mark.virtual

BEFORE = "the previous run was split by tensors"


class Choice:
    """In place of the planner: by tensors, unless that has failed."""

    def __init__(self) -> None:
        self.autos: list[AutoWay] = []
        self.found: SplitChoice

    def __call__(
        self,
        layers: ModelLayers,
        work: LayerWork,
        machines: Machines,
        options: HeadOptions,
        auto: AutoWay,
    ) -> SplitChoice:
        self.autos.append(auto)
        if auto.failed:
            by_layers = plan_model(layers, work, machines, replace(options, split="always"))
            self.found = by_layers.besides(NotTogether(auto.failed))
            return self.found
        found = plan_model(
            replace(layers, architecture="llama"), work, machines, replace(options, split="tensor")
        )
        if machines.apart:
            self.found = found
            return found
        assert found.plan.by_tensors, found.plan.reasons
        reason = TogetherByChoice(found.plan.nodes, 2000, 500, 1.0, 0.5, 2.0)
        self.found = replace(found, plan=replace(found.plan, reasons=(reason,)))
        return self.found


@asynccontextmanager
async def together(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    split: str = "auto",
    are_direct: bool = True,
    choice: Choice | None = None,
) -> AsyncIterator[tuple[Scene, Choice]]:
    choice = choice or Choice()
    if are_direct:  # no mesh-server runs here that could connect
        monkeypatch.setattr(PushPlan, "indirect", ())
    monkeypatch.setattr(run_module, "plan_model", choice)
    async with scene(folder, min_workers=2, devices=("none",), split=split) as it:
        for name in ("anna", "bert"):
            it.worker(name)
        yield it, choice


def is_by_tensors(it: Scene) -> bool:
    assert it.llama.spec is not None
    return "tensor" in it.llama.spec.argv


async def ended(it: Scene, why: str = "`llama-server` ended by signal 6") -> None:
    child = it.llama
    child.die(why)
    await until_started_anew(it, child)


async def test_a_load_that_ends_is_tried_by_layers_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with together(tmp_path, monkeypatch) as (it, _):
        await held(it)
        assert is_by_tensors(it)
        it.bench.ready = next_one = asyncio.get_running_loop().create_future()
        await ended(it)
        assert not is_by_tensors(it)
        next_one.set_result(yes())
        await it.until(ModelState.READY)
        assert (
            "a run by tensors ended before it answered (`llama-server` ended by signal 6"
            in it.model.split_why
        )
        # It stays so, also when that run has ended.
        it.bench.ready = None
        await ended(it)
        await it.until(ModelState.READY)
        assert not is_by_tensors(it) and "not by tensors: a run" in it.model.split_why


async def loaded(it: Scene) -> None:
    it.start()
    await it.until(ModelState.READY)
    assert is_by_tensors(it) and it.model.split_why.startswith("each layer on `anna` and `bert`: a prompt of")


@pytest.mark.parametrize("are_connected", [True, False])
async def test_a_run_whose_sums_do_not_go_past_the_daemons_is_by_layers_before_anybody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_connected: bool
) -> None:
    async with together(tmp_path, monkeypatch, are_direct=False) as (it, choice):
        ready = await held(it)
        child = it.llama
        assert is_by_tensors(it)
        if are_connected:
            for place in (0, 1):
                view(it.bench, place).from_peer(talk.welcome() + talk.met(1 - place))
        it.bench.ready = None
        ready.set_result(yes())
        await until_started_anew(it, child)
        await it.until(ModelState.READY)
        assert not is_by_tensors(it)
        assert "`anna` and `bert` could not connect past both daemons" in it.model.split_why
        assert not any(auto.failed for auto in choice.autos), "others may compute together"


def answer(it: Scene) -> None:
    it.serve.answered(AnswerTimings(10, 0.1, 20, 1.0), alone=True, seconds=1.1)


def token(it: Scene) -> None:
    it.serve.generated(1, 1, alone=True)


@pytest.mark.parametrize(
    ("before", "asked", "again"),
    [
        (lambda _: None, 1, False),
        (token, 1, True),
        (answer, 1, True),
        (answer, 0, True),
    ],
    ids=["asked", "first token", "answered, asked again", "answered"],
)
async def test_a_run_that_has_answered_may_be_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[Scene], None],
    asked: int,
    again: bool,
) -> None:
    async with together(tmp_path, monkeypatch) as (it, _):
        await loaded(it)
        it.serve.requested(asked)
        before(it)
        await ended(it)
        await it.until(ModelState.READY)
        assert is_by_tensors(it) is again
        assert (BEFORE in it.model.split_why) is not again
        assert (BEFORE in it.serve.readiness.reason) is not again


@pytest.mark.parametrize("asked", [0, 1])
async def test_a_worker_that_is_lost_says_nothing_of_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    async with together(tmp_path, monkeypatch) as (it, _):
        await loaded(it)
        it.serve.requested(asked)
        child = it.llama
        it.workers["bert"].children[-1].die("`mesh-server` ended by signal 9")
        await until_started_anew(it, child)
        await it.until(ModelState.READY)
        assert is_by_tensors(it)


@pytest.mark.parametrize("name", ["anna", "bert"])
@pytest.mark.parametrize(
    "why", ["its device computed values that are not finite", "wrong value: not a number, to be sorted"]
)
async def test_a_wrong_value_in_a_sum_may_come_from_any_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    """Values that are finite can add up to one that is not, in a worker that has done nothing wrong."""
    async with together(tmp_path, monkeypatch) as (it, _):
        await loaded(it)
        child, backoff = it.llama, it.serve.serving.roster.backoff
        peers = [worker.mesh.key.peer for worker in it.workers.values()]
        it.workers[name].children[-1].die(f"exit code 1: {why}", code=1)
        await until_started_anew(it, child)
        now = asyncio.get_running_loop().time()
        assert [backoff.ends(peer) for peer in peers] == [1, 1]
        assert backoff.are_apart(peers[0], peers[1], now)
        await it.until(ModelState.READY)
        assert not is_by_tensors(it), "through the head, values are looked at"


async def test_a_first_token_that_fails_may_be_any_workers_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with together(tmp_path, monkeypatch) as (it, _):
        await held(it)
        asked, child = it.bench.ready, it.llama
        assert is_by_tensors(it) and asked is not None
        it.bench.ready = asyncio.get_running_loop().create_future()
        asked.set_result(ReadyReport(False, "the first token failed: unordered_map::at"))
        await until_started_anew(it, child)
        backoff = it.serve.serving.roster.backoff
        assert [backoff.ends(worker.mesh.key.peer) for worker in it.workers.values()] == [1, 1]


@pytest.mark.parametrize("code", [NO_MEMORY, PAUSED, "busy"])
async def test_a_worker_that_refuses_once_says_nothing_of_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    grant, refused = Lease.until_granted, False

    async def until_granted(lease: Lease) -> None:
        nonlocal refused
        await grant(lease)
        if lease.name == "bert" and not refused:
            refused = True
            raise Refused("bert: less memory is free than was offered", code=code)

    monkeypatch.setattr(Lease, "until_granted", until_granted)
    async with together(tmp_path, monkeypatch) as (it, choice):
        it.start()
        await it.until(ModelState.READY)
        assert refused and is_by_tensors(it) and not any(auto.failed for auto in choice.autos)


async def test_a_full_disk_says_nothing_of_the_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    introduce, failed = PushPlan.introduce, False

    async def once(plan: PushPlan, *args: Any) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await introduce(plan, *args)

    monkeypatch.setattr(PushPlan, "introduce", once)
    async with together(tmp_path, monkeypatch) as (it, choice):
        it.start()
        await it.until(ModelState.READY)
        assert failed and is_by_tensors(it) and not any(auto.failed for auto in choice.autos)


async def test_runs_that_end_soon_behind_their_first_token_are_by_layers_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with together(tmp_path, monkeypatch) as (it, _):
        await loaded(it)
        it.serve.requested(1)
        for again in (True, False):
            token(it)
            await ended(it)
            await it.until(ModelState.READY)
            assert is_by_tensors(it) is again
        assert "2 runs by tensors ended soon after the load" in it.model.split_why


def test_ends_that_are_not_in_a_row_are_chance() -> None:
    ways = SplitWays()
    for _ in range(3):
        ways.loaded(by_tensors=True)
        ways.ended("signal 6", lasted=STEADY_SECONDS - 1, answered=True)
        ways.loaded(by_tensors=True)  # ends because a worker is lost, say
        assert not ways.failed
    ways.loaded(by_tensors=True)
    ways.ended("signal 6", lasted=1.0, answered=True)
    assert not ways.failed
    ways.loaded(by_tensors=False)  # is no run by tensors
    ways.loaded(by_tensors=True)
    ways.ended("signal 6", lasted=1.0, answered=True)
    assert "2 runs by tensors ended soon after the load" in ways.failed


class FirstByLayers(Choice):
    """A choice: by layers over all as long as nothing was measured, then by tensors over two of three."""

    def __call__(
        self,
        layers: ModelLayers,
        work: LayerWork,
        machines: Machines,
        options: HeadOptions,
        auto: AutoWay,
    ) -> SplitChoice:
        if not self.autos:
            self.autos.append(auto)
            return plan_model(layers, work, machines, replace(options, split="always"))
        two = tuple(offer for offer in machines.offers if offer.node != "carl")
        found = super().__call__(layers, work, replace(machines, offers=two), options, auto)
        self.found = replace(found, machines=machines)
        return self.found


@pytest.mark.parametrize("helps", [False, True])
async def test_a_worker_that_is_no_use_by_tensors_is_not_loaded_for_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helps: bool
) -> None:
    """Also if it was of use by layers. One that would help is, once."""
    asked: list[AutoWay] = []

    async def compare(run: Run, auto: AutoWay | None = None) -> SplitNow:
        if auto is not None:  # else what the load estimated is judged
            asked.append(auto)
        names = {peer.peer: peer.name for peer in run._runtime.mesh.peers()}
        found = choice.found
        three = replace(found.plan, shares=tuple(share_of(share, "carl") for share in found.plan.shares))
        best = replace(found, plan=three if helps else found.plan)
        now = found.outcome
        return SplitNow(
            replace(best, outcome=replace(now, answer_s=now.answer_s / 2)), now, found.machines, names
        )

    choice = FirstByLayers()
    monkeypatch.setattr(Run, "_compare", compare)
    async with together(tmp_path, monkeypatch, choice=choice) as (it, _):
        it.worker("carl")
        it.start()
        await it.until(ModelState.READY)
        assert {part.node for part in it.model.split} >= {"anna", "bert", "carl"}
        it.serve.requested(1)
        answer(it)
        it.serve.requested(0)
        await ended(it)
        await it.until(ModelState.READY)
        assert is_by_tensors(it)
        mesh = next(mesh for mesh in it.net.meshes.values() if mesh.name == "carl")
        for _ in range(4):
            mesh.say(PeerState.LOST)
            await asyncio.sleep(5)
            mesh.since = asyncio.get_running_loop().time()
            mesh.say(PeerState.CONNECTED)
            await asyncio.sleep(60)
        assert len(asked) == (1 if helps else 4), "what was no help after all is judged again much later"
        assert len(choice.autos) == (3 if helps else 2)


def share_of(share: DeviceShare, node: str) -> DeviceShare:
    return replace(share, device=replace(share.device, node=node))


@pytest.mark.parametrize(("seconds", "answers"), [(1.0, 3), (0.7, 3), (9.0, 2)])
async def test_a_run_that_is_slower_than_by_layers_is_loaded_again_once_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, answers: int
) -> None:
    """By layers 500 tokens and a prompt were to take 2 s: 2.25 s are not clearly more, 3 s are.

    Faster answers with drafts do not count.
    """
    async with together(tmp_path, monkeypatch) as (it, _):
        await loaded(it)
        child = it.llama
        it.serve.requested(1)
        for _ in range(answers):
            it.serve.answered(AnswerTimings(10, 0.1, 200, seconds), alone=True, seconds=seconds)
            it.serve.answered(AnswerTimings(10, 0.1, 200, 0.1, 180, 160), alone=True, seconds=0.1)
        await asyncio.sleep(UNASKED_SECONDS + 5)
        assert it.llama is child
        it.serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS + 5)
        await it.until(ModelState.READY)
        is_slower = answers == 3 and seconds == 1.0
        assert is_by_tensors(it) is not is_slower
        assert ("an answer of 500 take 3.0 s by tensors" in it.model.split_why) is is_slower


async def test_a_split_that_the_user_wants_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with together(tmp_path, monkeypatch, split="tensor") as (it, choice):
        await held(it)
        it.bench.ready = None
        await ended(it)
        await it.until(ModelState.READY)
        assert is_by_tensors(it) and not any(auto.failed for auto in choice.autos)


async def test_a_run_that_is_replaced_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with together(tmp_path, monkeypatch) as (it, choice):
        await loaded(it)
        mesh = next(mesh for mesh in it.net.meshes.values() if mesh.name == "bert")
        mesh.paused = True
        await it.until(ModelState.WAITING)
        mesh.paused = False
        mesh.say(PeerState.CONNECTED)
        await it.until(ModelState.READY)
        assert is_by_tensors(it) and not any(auto.failed for auto in choice.autos)


@pytest.mark.parametrize("failed", ["", "it ended"])
async def test_a_run_by_tensors_is_not_ended_for_what_was_measured_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    """Else the way would change with each measurement; one by layers is, for a split by layers."""
    async with together(tmp_path, monkeypatch) as (it, choice):
        judged: list[SplitNow] = []

        async def compare(_run: Run) -> SplitNow:
            outcome = choice.found.outcome
            now = replace(outcome, prediction=replace(outcome.prediction, is_measured=True))
            best = replace(choice.found, outcome=replace(now, answer_s=now.answer_s / 2))
            judged.append(SplitNow(best, now, choice.found.machines, {}))
            return judged[-1]

        monkeypatch.setattr(Run, "_compare", compare)
        it.serve.serving.ways.failed = failed
        it.start()
        await it.until(ModelState.READY)
        child = it.llama
        await asyncio.sleep(2 * UNASKED_SECONDS + 10)
        assert judged and judged[0].is_clearly_faster
        assert (it.llama is child) is not bool(failed)


def test_only_a_change_is_said() -> None:
    """Also the other way round."""
    ways = SplitWays()
    plan = PLAN
    assert ways.noted(plan) is plan
    ways.loaded(by_tensors=False)
    assert ways.noted(plan) is plan
    ways.loaded(by_tensors=True)
    assert ways.noted(plan).reasons == (*plan.reasons, OtherWay(by_tensors=True))
    together = replace(plan, by_tensors=True)
    assert ways.noted(together) is together


def test_ends_behind_an_answer_count_in_a_row_if_they_come_soon() -> None:
    ways = SplitWays()
    for lasted in (0.0, STEADY_SECONDS, 0.0):
        ways.ended("signal 6", lasted=lasted, answered=True)
        assert not ways.failed
    ways.ended("signal 6", lasted=0.0, answered=True)
    assert ways.failed.endswith(
        "because signal 6; tensors are not tried again until meshd restarts on this node"
    )


def test_loads_without_connections_past_the_daemons_are_few() -> None:
    """Each may have other workers, and a model that is never ready is no use."""
    ways = SplitWays()
    for _ in range(2):
        ways.indirect("a → b")
    ways.loaded(by_tensors=True)
    for _ in range(2):
        assert not ways.failed
        ways.indirect("a → b")
    ways.indirect("a → b")
    assert ways.failed
