"""The ways of a token, and what a model holds: from the plan that runs."""

import asyncio
from dataclasses import replace

import pytest
from meshd.base.tasks import Owner
from meshd.gateway.interface import AnswerTimings
from meshd.head.explain import NOT_MEASURED, Explained, explain, ways_of
from meshd.head.measures import AwayTimes, RunFacts, TimedAnswers
from meshd.head.worker_choice import Roster
from meshd.model.drafts import Drafts
from meshd.model.output import DevicePath
from meshd.model.status import SplitPart
from meshd.model.time_account import PartKind, PartSource, TimeAccount
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.plan.choose_split import plan_model
from meshd.plan.machines import Machines
from meshd.plan.two_ways import TwoWays
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import CAPACITY_SERVICE, AskCapacity, Capacity, ComputedSpan, decode

from tests.unit.admin.test_snapshot import path
from tests.unit.head.fake_mesh import Net
from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

NEAR = {"a": DevicePath(0.01, 1e9), "b": DevicePath(0.08, 1e9)}
BETWEEN = DevicePath(0.02, 1e6)
THERE = machines(
    [offer("a", 16), offer("b", 16)], {"head": 1.0, "a": 1.0, "b": 1.0}, paths={("a", "b"): BETWEEN}
)
STATE = 4 * MODEL.widths.embedding


def facts(tensor_split: tuple[float, ...], there: Machines = THERE, **changed: object) -> RunFacts:
    options: HeadOptions = replace(OPTIONS, tensor_split=tensor_split, **changed)  # type: ignore[arg-type]
    split = plan_model(MODEL, WORK, there, options)
    return RunFacts(split.plan, there, options, MODEL, WORK, split.outcome)


def parts(pushed: bool) -> list[SplitPart]:
    return [SplitPart("a", "CPU", 15, 0), SplitPart("b", "CPU", 15, 0, push=pushed)]


def test_a_token_goes_from_worker_to_worker() -> None:
    ways = ways_of(facts((15.0, 15.0), output="worker"), parts(True), NEAR)
    assert [way.where for way in ways] == ["head → a", "a → b", "b → head"]
    assert [way.delay for way in ways] == pytest.approx([0.005, 0.01, 0.04])
    assert ways[0].transfer == pytest.approx(STATE / 1e9) and ways[1].transfer == pytest.approx(STATE / 1e6)
    assert [way.is_result for way in ways] == [False, False, True]
    assert [way.ordered for way in ways] == [None, 0.04, None]


def test_numbers_of_tokens_are_nothing() -> None:
    there = facts((15.0, 15.0))
    ways = ways_of(replace(there, plan=replace(there.plan, input_on_worker=True)), parts(True), NEAR)
    assert ways[0].transfer == 0 and ways[1].transfer > 0


def test_or_through_the_head() -> None:
    ways = ways_of(facts((15.0, 15.0)), parts(False), NEAR)
    assert [way.where for way in ways] == ["head → a", "a → head", "head → b", "b → head"]
    assert all(way.ordered is None for way in ways)


def test_half_floats_are_half_the_bytes() -> None:
    ways = ways_of(facts((15.0, 15.0), activations="f16"), parts(True), NEAR)
    assert ways[1].transfer == pytest.approx(STATE / 2 / 1e6)


def test_layers_of_the_head_come_first() -> None:
    ways = ways_of(facts((10.0, 10.0, 10.0)), parts(True), NEAR)
    assert [way.where for way in ways] == ["head → a", "a → b", "b → head"]
    assert ways[0].transfer == pytest.approx(STATE / 1e9), "a hidden state, and no number of a token"


def test_without_workers_there_are_no_ways() -> None:
    assert ways_of(facts((0.0, 0.0, 30.0)), [], NEAR) == []


def test_a_path_that_nobody_knows_is_left_out() -> None:
    unknown = replace(THERE, paths={})
    ways = ways_of(facts((15.0, 15.0), unknown), parts(True), {"a": NEAR["a"], "b": None})
    assert [way.where for way in ways] == ["head → a"]


def test_what_it_holds_is_what_was_reserved() -> None:
    held = facts((15.0, 15.0)).held
    assert set(held) == {("a", "CPU"), ("b", "CPU")}
    assert all(1.4 * GIB < one < 2.5 * GIB for one in held.values())
    assert set(facts((30.0, 0.0)).held) == {("a", "CPU")}
    with_gpu = replace(THERE, own=(device(64), device(24, "CUDA0")))
    assert set(facts((0.0, 15.0, 15.0), with_gpu).held) == {("b", "CPU"), ("head", "CUDA0")}


def test_computing_is_counted_by_rounds_and_not_by_the_tokens_that_drafts_made() -> None:
    """25 rounds computed 115 tokens and made 100 of them; no worker answers, so all is predicted."""
    there = facts((10.0, 10.0, 10.0))
    answers = TimedAnswers()
    timings = AnswerTimings(100, 0.5, 101, 1000.0, drafted=90, accepted=75)
    answers.answered(timings, 2000.0, alone=True, seconds=1001.0)

    async def account() -> TimeAccount | None:
        async with Owner() as owner:
            mesh, away = Net(owner).mesh("head"), AwayTimes(lambda: 2000.0)
            roster = Roster(mesh, there.options)
            found = await explain(there, [], answers, away, mesh, {}, None, roster, drafts=Drafts(free=8))
        return found.token

    token = asyncio.run(account())
    assert token is not None and (token.tokens, token.rounds) == (100, 25)
    computing = {part.where: part.seconds for part in token.parts if part.kind is PartKind.COMPUTING}
    a_round = there.predictor.device_seconds(there.plan, 115 / 25)
    assert len(computing) == 3 and min(a_round.values()) > 0
    assert computing == pytest.approx({where: seconds * 25 / 100 for where, seconds in a_round.items()})


@pytest.mark.parametrize("slow", ["layers", "tensors"])
def test_by_tensors_both_ways_are_compared_and_no_time_is_divided(slow: str) -> None:
    """With a path between the workers on which sums take long, or next to nothing."""
    model, options = replace(MODEL, architecture="llama"), replace(OPTIONS, split="tensor", devices=("none",))
    between = DevicePath(0.0009, 1e6) if slow == "tensors" else DevicePath(0.00005, 1e9)
    paths = {("a", "b"): between, ("b", "a"): between}
    there = machines([offer("a", 16), offer("b", 16)], {"head": 50.0, "a": 9.0, "b": 9.0}, paths=paths)
    split = plan_model(model, WORK, there, options)
    assert split.plan.by_tensors and split.prediction.is_measured
    known = RunFacts(split.plan, there, options, model, WORK, split.outcome)
    answers = TimedAnswers()
    answers.answered(AnswerTimings(100, 0.5, 101, 1000.0), 2000.0, alone=True, seconds=1001.0)

    async def explained() -> Explained:
        async with Owner() as owner:
            mesh, away = Net(owner).mesh("head"), AwayTimes(lambda: 2000.0)
            roster = Roster(mesh, options)
            return await explain(known, [], answers, away, mesh, {}, None, roster, drafts=Drafts())

    found = asyncio.run(explained())
    assert found.answers and (found.token, found.prompt, found.round) == (None, None, None)
    assert found.why_no_round == NOT_MEASURED
    advice = found.advice
    assert isinstance(advice.ways, TwoWays) and advice.ways.nodes == ("a", "b")
    assert advice.now.prediction.generate_tok_s == split.prediction.generate_tok_s
    if slow == "layers":
        assert advice.change is None and advice.gain == 0.0
    else:
        assert str(advice.change) == "whole layers on each machine (`--split layers`)" and advice.gain > 0.03
        assert advice.then_tok_s > advice.now.prediction.generate_tok_s
    assert str(advice.basis) == (
        "a split by tensors is compared with the fastest by layers alone, without drafts"
    )


@pytest.mark.virtual
@pytest.mark.parametrize("answers", ["as asked", "less", "nothing", "late"])
async def test_what_a_worker_says_that_it_computed_counts_instead_of_the_prediction(answers: str) -> None:
    """Half a round trip is added to how long ago the spans are: the question is on its way."""
    async with Owner() as owner:
        net, there = Net(owner), facts((10.0, 10.0, 10.0))
        mesh, worker = net.mesh("head"), net.mesh("a")
        worker.paths = (path(selected=True),)
        asked: list[AskCapacity] = []

        async def tell(stream: Stream) -> None:
            messages = MessageStream(stream)
            question = decode(await messages.receive())
            assert isinstance(question, AskCapacity)
            asked.append(question)
            if answers == "late":
                await asyncio.sleep(60)
            told = {"less": question.spans[1:], "nothing": ()}.get(answers, question.spans)
            computed = tuple(ComputedSpan(1_000_000 * (at + 2), 5) for at, _ in enumerate(told))
            await messages.send(Capacity((), "m", computed=computed).encode())

        worker.handle(CAPACITY_SERVICE, tell, allow=lambda _member, _metadata: None)
        now = asyncio.get_running_loop().time()
        log = TimedAnswers()
        log.answered(AnswerTimings(100, 0.5, 101, 1000.0), now, alone=True, seconds=1.001)
        roster = Roster(mesh, there.options)
        away = AwayTimes(asyncio.get_running_loop().time)
        peers = {"a": worker.key.peer}
        found = await explain(there, [], log, away, mesh, peers, None, roster, drafts=Drafts())
        assert found.token is not None and found.prompt is not None
        [question] = asked
        assert question.recent and question.lease == bytes(16)
        (begin, end), *_ = question.spans
        assert (begin - end) / 1e6 == pytest.approx(found.token.seconds * found.token.tokens, rel=0.01)
        assert end == pytest.approx(worker.paths[0].idle_rtt / 2 * 1e6, abs=2)  # type: ignore[operator]
        [part] = [part for part in found.token.parts if part.where == "a CPU"]
        in_prompt = [part.seconds for part in found.prompt.parts if part.where == "a CPU"]
        if answers == "as asked":
            assert part.source is PartSource.MEASURED
            assert part.seconds == pytest.approx(2.0 / found.token.tokens)
            assert in_prompt == [3.0]
        else:
            assert part.source is not PartSource.MEASURED and in_prompt == []
