"""Test what a head serves with and why, and what would be better; serve, plan and why say the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.config.forms import HostPort
from meshd.config.load import load
from meshd.daemon.plan_view import plan_reply
from meshd.head.speculation import DraftForecast
from meshd.head.survey import COMPUTES
from meshd.model.layers import ModelLayers
from meshd.model.output import DevicePath
from meshd.model.status import Speeds
from meshd.plan.choose_split import SplitAdvice, SplitChoice, advise, choose_split, plan_model, ranked_splits
from meshd.plan.machines import Machines, NodeOffer, PlainRpc
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT
from meshd.plan.reasons import (
    AdviceBasis,
    Answers,
    ByMemory,
    Drop,
    HalfFloats,
    InProportion,
    LeftOut,
    LetHeadCompute,
    NotMeasured,
    NotNeeded,
    OneAtOnce,
    Reorder,
    Reported,
    RunOn,
    SplitComparison,
    Without,
    brief,
    in_words,
)
from meshd.plan.split import NotEnoughMemory
from meshd.plan.wishes import DraftModel, HeadOptions
from meshd.wire.lease import WorkerOffer

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

AUTO = replace(OPTIONS, split="auto")
TWO = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})


def layers_of(split: SplitChoice) -> dict[str, int]:
    return {share.device.node: share.layers for share in split.plan.shares if share.layers}


def is_alone(split: SplitChoice) -> bool:
    """Return True if the first reason is that it is fastest on `a` alone."""
    first = split.plan.reasons[0]
    return isinstance(first, SplitComparison) and first.chosen.nodes == ("a",)


def test_the_fastest_split_is_used_and_the_others_hear_why_not() -> None:
    found = plan_model(MODEL, WORK, TWO, AUTO)
    assert layers_of(found) == {"a": 30} and [one.node for one in found.offers] == ["a"]
    assert LeftOut("b", "CPU", NotNeeded()) in found.plan.left_out
    assert is_alone(found) and brief(found.plan.reasons) == in_words(found.plan.reasons[:1])
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 20


def test_all_take_part_where_the_user_wants_that_and_it_is_predicted_all_the_same() -> None:
    found = plan_model(MODEL, WORK, TWO, replace(AUTO, split="always"))
    assert set(layers_of(found)) >= {"a", "b"}
    best = plan_model(MODEL, WORK, TWO, AUTO)
    assert found.speeds is not None and best.speeds is not None
    assert (found.speeds.generate_tok_s or 0) < (best.speeds.generate_tok_s or 0)


def test_so_many_workers_as_must_take_part() -> None:
    found = plan_model(MODEL, WORK, TWO, replace(AUTO, min_workers=2))
    assert set(layers_of(found)) >= {"a", "b"}


def test_a_ranking_begins_with_a_split_over_so_many_workers_as_must_take_part() -> None:
    assert nodes(ranked_splits(MODEL, WORK, TWO, AUTO)[0]) == ["a"]
    assert {"a", "b"} <= set(nodes(ranked_splits(MODEL, WORK, TWO, replace(AUTO, min_workers=2))[0]))


@pytest.mark.parametrize(("measured", "lacks"), [({"a": 1.0, "b": 1.0}, "head CPU"), ({}, "head CPU")])
def test_what_was_not_measured_is_not_compared(measured: dict[str, float], lacks: str) -> None:
    there = machines([offer("a", 16), offer("b", 16)], measured)
    found = plan_model(MODEL, WORK, there, AUTO)
    assert set(layers_of(found)) >= {"a", "b"} and found.speeds is None
    assert found.plan.reasons[:2] == (ByMemory(((lacks, NotMeasured()),)), InProportion())


BUSY_FAR = {**dict.fromkeys("ab", 1.0), "head": 9.0}
"""`c` is at 150 ms, and computes for somebody: it was never measured."""


def with_busy(free: float = 16, own: float = 64.0) -> Machines:
    workers = [offer("a", free), offer("b", free), offer("c", 16, rtt=0.15)]
    return replace(machines(workers, BUSY_FAR, own=own), unmeasured={"c": COMPUTES})


def test_one_that_was_never_measured_leaves_the_choice_among_the_others() -> None:
    there = with_busy()
    found = plan_model(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30}
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 25, "as without it"
    assert found.plan.reasons[1] == Without("c", Reported(COMPUTES))
    left_out = {one.node: one.why for one in found.plan.left_out}
    assert (left_out["c"], left_out["b"]) == (Reported(COMPUTES), NotNeeded())
    assert found.machines is there, "who takes its place after a loss is decided with all of them"


@pytest.mark.parametrize(
    ("there", "least", "reason"),
    [(with_busy(free=0.3, own=0.3), 1, "does not fit"), (with_busy(), 3, "no split uses 3 workers")],
)
def test_where_it_is_needed_all_take_part_by_memory_and_the_reason_is_told(
    there: Machines, least: int, reason: str
) -> None:
    found = plan_model(MODEL, WORK, there, replace(AUTO, min_workers=least))
    assert "c" in layers_of(found) and found.speeds is None
    first = found.plan.reasons[0]
    assert isinstance(first, ByMemory) and first.unmeasured == (("c", Reported(COMPUTES)),)
    assert reason in first.refused


def test_what_fits_nowhere_is_refused_with_all_numbers() -> None:
    there = with_busy(free=0.3, own=0.3)
    small = replace(there, offers=tuple(replace(one, offer=offer("x", 0.3).offer) for one in there.offers))
    with pytest.raises(NotEnoughMemory, match="c CPU"):
        plan_model(MODEL, WORK, small, AUTO)


def test_of_a_worker_with_two_devices_those_are_used_that_were_measured() -> None:
    both = WorkerOffer((device(16), device(16, "CUDA0")), False, "m of a", bytes(16))
    there = machines([NodeOffer("a", both, DevicePath(0.0005, 1e9))], {"head": 9.0, "a": 1.0})
    found = plan_model(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30} and found.speeds is not None
    assert [one for one in found.plan.left_out if one.node == "a"] == [LeftOut("a", "CUDA0", NotMeasured())]
    assert not found.offers[0].devices[1:], "it is not started either"


def test_plain_rpc_servers_take_part_as_before() -> None:
    there = Machines(TWO.offers, TWO.own, TWO.speeds, plain_rpc=(PlainRpc("10.0.0.9:1", (device(16),)),))
    found = plan_model(MODEL, WORK, there, replace(AUTO, rpc=(HostPort("10.0.0.9", 1),)))
    assert "10.0.0.9:1" in layers_of(found) and found.speeds is None
    assert isinstance(found.speeds, Speeds | None)


def test_a_head_that_can_get_no_layer_need_not_be_measured_for_them() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"a": 1.0, "b": 2.0})
    found = plan_model(MODEL, WORK, there, replace(AUTO, devices=("none",)))
    assert is_alone(found)


CLOSE = machines([offer("a", 16, rtt=0.004)], {"head": 1.0, "a": 1.2})
"""The head alone is a little faster than the best split, which is a little faster than the worker alone."""
FASTER = machines([offer("a", 16)], {"head": 2.0, "a": 1.0})
TOO_SMALL = machines([offer("a", 16)], {"head": 1.0, "a": 3.0}, own=1.0)


def told(there: Machines, options: HeadOptions) -> tuple[SplitChoice, SplitComparison, SplitAdvice]:
    """Return what runs, the comparison of `meshd plan`, and the advice of `meshd why`."""
    served = plan_model(MODEL, WORK, there, options)
    choices = choose_split(MODEL, WORK, there, options, least=options.min_workers or 0)
    nothing = DraftForecast(
        free=0,
        model=0,
        free_acceptance=0.0,
        model_acceptance=0.0,
        measured=False,
        repetitive_tok_s=0.0,
        prose_tok_s=0.0,
    )
    plan = plan_reply("model", "head", [(one, nothing) for one in choices], ()).plans[0]
    comparison = choices[0].comparison
    assert comparison is not None and plan.why == in_words((comparison,))
    return served, comparison, advise(MODEL, WORK, there, options, served.plan)


def nodes(split: SplitChoice) -> Sequence[str]:
    return list(dict.fromkeys(share.device.node for share in split.plan.shares if share.layers))


@pytest.mark.parametrize("least", [None, 0, 1])
@pytest.mark.parametrize("there", [CLOSE, FASTER, TOO_SMALL])
def test_they_give_the_same_reason_in_the_same_words(there: Machines, least: int | None) -> None:
    served, planned, advice = told(there, replace(AUTO, min_workers=least))
    assert isinstance(advice.basis, AdviceBasis)
    assert served.plan.reasons[0] == planned == advice.basis.comparison
    words = in_words((planned,))
    assert brief(served.plan.reasons).startswith(words) and in_words(served.plan.reasons).startswith(words)
    assert str(advice.basis).startswith(f"{words}; predicted ")


def test_a_model_that_is_fastest_here_runs_here_unless_its_user_demands_a_worker() -> None:
    served, planned, advice = told(CLOSE, AUTO)
    assert nodes(served) == ["head"] and planned.chosen.nodes == ("head",) and planned.other is not None
    assert advice.change is None
    served, planned, advice = told(CLOSE, replace(AUTO, min_workers=1))
    assert "a" in nodes(served) and planned.faster is not None and planned.least == 1
    assert advice.change == RunOn("head", is_head=True)
    assert 0.03 <= advice.gain < 0.3


def test_an_advice_does_not_say_that_another_split_runs() -> None:
    served, planned, advice = told(CLOSE, replace(AUTO, split="always"))
    assert nodes(served) == ["head", "a"] and planned.chosen.nodes == ("head",)
    assert isinstance(advice.basis, AdviceBasis)
    assert not advice.basis.runs and str(advice.basis).startswith(f"{planned.not_running}; predicted ")


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (AUTO, 0),
        (replace(AUTO, min_workers=2), 2),
        (replace(AUTO, min_workers=0, devices=("none",)), 0),
        (replace(AUTO, devices=("none",)), 1),
        (replace(AUTO, tensor_split=(1.0, 1.0)), 1),
        (replace(AUTO, rpc=(HostPort("10.0.0.9", 50052),)), 1),
        (replace(AUTO, split="always"), 1),
    ],
)
def test_a_worker_is_needed_where_the_comparison_cannot_choose_this_node_alone(
    options: HeadOptions, least: int
) -> None:
    assert options.least_workers == least


REMOTE = replace(OPTIONS, devices=("none",))


def advice(there: Machines, options: HeadOptions) -> SplitAdvice:
    """For what runs with these options."""
    plan = plan_model(MODEL, WORK, there, options).plan
    return advise(MODEL, WORK, there, options, plan)


def test_a_worker_that_is_far_away_is_dropped() -> None:
    there = machines([offer("a", 16), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    found = advice(there, replace(REMOTE, tensor_split=(15.0, 15.0)))
    assert found.change == RunOn("a", is_head=False) and 0.5 < found.gain < 1
    assert found.then_tok_s > 2 * found.now.prediction.generate_tok_s and found.now.prediction.is_measured


def test_that_drafts_are_left_out_is_said_of_what_is_predicted() -> None:
    there = machines([offer("a", 16), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    plan = plan_model(MODEL, WORK, there, REMOTE).plan
    for drafts in (True, False):
        basis = advise(MODEL, WORK, there, REMOTE, plan, drafts=drafts).basis
        assert isinstance(basis, AdviceBasis) and basis.drafts == drafts


def test_of_three_the_slow_one_is_dropped() -> None:
    there = machines(
        [offer("a", 2.2), offer("b", 2.2), offer("c", 2.2, rtt=0.3)],
        {"head": 99.0, "a": 1.0, "b": 1.0, "c": 1.0},
    )
    found = advice(there, replace(REMOTE, tensor_split=(10.0, 10.0, 10.0)))
    assert isinstance(found.change, Drop) and found.change.nodes == ("c",) and found.gain > 0.5
    assert {node for node, _ in found.change.layers} == {"a", "b"}


def test_another_order_where_neighbours_are_far_apart() -> None:
    far, near = DevicePath(0.3, 1e9), DevicePath(0.0005, 1e9)
    paths = {
        (one, two): far if {one, two} == {"a", "b"} else near for one in "abc" for two in "abc" if one != two
    }
    there = machines(
        [offer(node, 1.6) for node in "abc"], {"head": 999.0, "a": 1.0, "b": 1.0, "c": 1.0}, paths=paths
    )
    found = advice(there, replace(REMOTE, tensor_split=(10.0, 10.0, 10.0)))
    assert isinstance(found.change, Reorder) and found.change.nodes[1] == "c"


def test_the_fastest_split_is_left_as_it_is() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})
    found = advice(there, OPTIONS_AUTO)
    assert found.change is None and found.gain == 0
    basis = found.basis
    assert (
        isinstance(basis, AdviceBasis)
        and basis.comparison is not None
        and basis.comparison.chosen.nodes == ("a",)
    )
    assert basis.comparison.other is not None and basis.comparison.other.nodes == ("b", "a")
    assert (basis.prompt, basis.answer) == (ASSUMED_PROMPT, ASSUMED_ANSWER)
    assert found.now.prediction.generate_tok_s == found.then_tok_s


OPTIONS_AUTO = replace(REMOTE, split="auto")


def test_this_node_is_used_where_it_was_kept_out() -> None:
    there = machines([offer("a", 16, rtt=0.1)], {"head": 1.0, "a": 1.0})
    found = advice(there, REMOTE)
    assert found.change == LetHeadCompute("head") and found.gain > 0.5


def test_one_answer_at_a_time_where_their_caches_keep_the_model_from_the_near_machine() -> None:
    """Four caches do not fit on `a` beside all layers, so that the far `b` is used; one does."""
    there = machines([offer("a", 3.5), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    found = advice(there, replace(OPTIONS_AUTO, slots=4))
    assert found.change == OneAtOnce(RunOn("a", is_head=False))
    assert found.gain > 0.5 and found.then_tok_s > 2 * found.now.prediction.generate_tok_s
    assert advice(there, replace(OPTIONS_AUTO, slots=1)).change is None, "it runs so already"


def test_half_floats_where_the_path_is_slow() -> None:
    slow = replace(offer("a", 1.7), path=DevicePath(0.001, 1e5))
    other = replace(offer("b", 1.7), path=DevicePath(0.001, 1e5))
    there = machines([slow, other], {"head": 999.0, "a": 0.1, "b": 0.1})
    found = advice(there, replace(REMOTE, tensor_split=(15.0, 15.0)))
    assert found.change == HalfFloats() and found.gain > 0.2
    assert advice(there, replace(REMOTE, tensor_split=(15.0, 15.0), activations="f16")).change is None


def test_what_was_not_measured_is_said() -> None:
    there = machines([offer("a", 16)], {"head": 1.0})
    found = advice(there, REMOTE)
    assert not found.now.prediction.is_measured and found.basis.estimated


@pytest.mark.parametrize("split", [(15.0, 15.0), (1.0, 29.0), (29.0, 1.0)])
def test_no_gain_is_a_loss(split: tuple[float, ...]) -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})
    found = advice(there, replace(REMOTE, tensor_split=split))
    assert 0.03 <= found.gain < 1 and found.change is not None


SCARCE = 3.4  # GiB: the model takes most of it
LONG = replace(MODEL, trained_context=131072)


def on(free: float, options: HeadOptions = OPTIONS, model: ModelLayers = LONG) -> SplitChoice:
    return plan_model(model, WORK, there(free), replace(options, devices=("none",)))


def there(free: float) -> Machines:
    return machines([offer("a", free)], {"head": 1.0, "a": 1.0})


def context(split: SplitChoice) -> int:
    return split.plan.shape.cells


def test_with_memory_to_spare_it_is_what_the_model_was_trained_for() -> None:
    assert context(on(512)) == 131072
    told = [one.at_once.tokens for one in on(512).plan.reasons if isinstance(one, Answers)]
    assert told == [131072], "what is told is what is served"


def test_a_split_that_was_chosen_by_speed_keeps_its_output_where_that_was_found_faster() -> None:
    """Though the estimate, which decides where no speed is known, would put it elsewhere."""
    auto = replace(OPTIONS, split="auto")
    usual = on(512, replace(auto, ctx_size=8192))
    chosen = on(512, auto)
    by_estimate = on(512)
    assert by_estimate.plan.override_tensor and not usual.plan.override_tensor
    assert context(chosen) == 131072
    assert chosen.plan.override_tensor == usual.plan.override_tensor


def test_with_little_memory_it_is_the_usual() -> None:
    assert context(on(SCARCE)) == 8192


def test_no_more_than_half_of_the_free_memory_is_taken_for_it() -> None:
    lengths = set()
    for tenths in range(40, 100, 2):
        found = on(tenths / 10)
        usual = on(tenths / 10, replace(OPTIONS, ctx_size=8192))
        [before], [after] = ([s for s in one.plan.shares if s.layers] for one in (usual, found))
        assert after.total - before.total <= (after.device.free - before.total) / 2
        assert after.layers == before.layers and found.plan.shape.parallel == usual.plan.shape.parallel
        lengths.add(context(found))
    assert len(lengths) > 2 and lengths <= {8192, 16384, 32768, 65536, 131072}


def test_the_cache_of_a_draft_model_grows_with_it_and_is_counted() -> None:
    draft = DraftModel("/d.gguf", replace(MODEL, layers=(1000,) * 30))
    drafting = replace(OPTIONS, speculate="auto", draft=draft)
    on_head = machines([], {"head": 1.0}, own=10.0)
    without = plan_model(LONG, WORK, on_head, replace(OPTIONS, speculate="auto")).plan
    with_it = plan_model(LONG, WORK, on_head, drafting).plan
    cache = draft.memory(with_it.shape)
    assert 8192 < with_it.shape.cells < without.shape.cells
    [own] = on_head.own
    [share] = [share for share in with_it.shares if share.layers]
    assert share.device.free == own.free_bytes - cache
    assert share.total <= share.device.free


def test_a_model_with_a_short_context_has_that() -> None:
    assert context(on(512, model=replace(MODEL, trained_context=4096))) == 4096


@pytest.mark.parametrize("options", [{"ctx_size": 8192}, {"llama_args": ("-c", "8192")}])
def test_what_is_asked_for_is_not_lengthened(options: dict[str, object]) -> None:
    assert context(on(512, replace(OPTIONS, **options))) == 8192  # type: ignore[arg-type]


def test_the_longest_that_fits() -> None:
    longest = replace(OPTIONS, ctx_size=0)
    assert context(on(512, longest)) == 131072
    found = context(on(SCARCE, longest))
    assert 8192 < found < 131072
    with pytest.raises(NotEnoughMemory):
        on(SCARCE, replace(OPTIONS, ctx_size=found + 512))
    with pytest.raises(NotEnoughMemory):
        on(1, longest)


CONFIGS = Path(__file__).parents[3] / "configs"
THERE = machines([offer("a", 16)], {"head": 1.0, "a": 1.0})
LAYERS = {
    "split-head-most.toml": {"a": 5, "head": 25},
    "split-worker-most.toml": {"a": 26, "head": 4},
    "split-all-remote.toml": {"a": 30},
    "split-even.toml": {"a": 15, "head": 15},
}


def test_every_one_is_tested() -> None:
    assert {path.name for path in CONFIGS.glob("split-*.toml")} == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layers_are_where_they_should_be(name: str) -> None:
    serve = load(environ={}, file=CONFIGS / name).config.serve
    options: HeadOptions = replace(
        OPTIONS, tensor_split=serve.tensor_split, devices=serve.devices, split=serve.split
    )
    split = plan_model(MODEL, WORK, THERE, options)
    held = {share.device.node: share.layers for share in split.plan.shares if share.layers}
    assert held == LAYERS[name] and serve.min_workers == 1
