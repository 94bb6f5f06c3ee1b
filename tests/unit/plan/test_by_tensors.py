"""Test which models workers may compute together, layer by layer, and what is planned for that."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.model.cache import ContextShape
from meshd.model.output import DevicePath
from meshd.plan.auto_way import AutoWay, WhyByLayers
from meshd.plan.by_tensors import MOST_WORKERS
from meshd.plan.choose_split import SplitChoice, plan_model
from meshd.plan.machines import IN_DOUBT, INDIRECT, Machines, NodeOffer
from meshd.plan.reasons import (
    AllOn,
    Answers,
    AsGiven,
    ByMemory,
    ByTensors,
    ComparisonFailed,
    HeadCpu,
    InProportion,
    MicroBatch,
    NotByTensors,
    NotTogether,
    OutputOn,
    SplitComparison,
    brief,
    in_words,
)
from meshd.plan.split import NoSplit, followers, placed_tensors
from meshd.plan.wishes import HeadOptions

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

LLAMA = replace(MODEL, architecture="llama")
TENSOR = replace(OPTIONS, split="tensor")
AUTO = AutoWay()
TWO = machines([offer("a", 16), offer("b", 16)], {})


def planned(there: Machines = TWO, options: HeadOptions = TENSOR) -> SplitChoice:
    return plan_model(LLAMA, WORK, there, options)


def worth(choice: SplitChoice) -> dict[str, int]:
    return {share.device.node: share.layers for share in choice.plan.taking}


def value_of(option: str, arguments: Sequence[str]) -> str:
    return arguments[arguments.index(option) + 1]


def test_two_workers_have_half_of_each_layer_and_the_head_none() -> None:
    found = planned()
    assert found.plan.by_tensors and worth(found) == {"a": 15, "b": 15}
    assert found.plan.reasons[0] == ByTensors(("a", "b"))
    assert brief(found.plan.reasons).startswith("each layer on `a` and `b`, as `--split tensor` says")
    arguments = found.plan.arguments
    assert value_of("-sm", arguments) == "tensor" and value_of("-fa", arguments) == "on"
    assert value_of("-dev", arguments) == "RPC0,RPC1" and value_of("-ts", arguments) == "15,15"
    assert value_of("-ngl", arguments) == "31" and "-ot" not in arguments


def test_its_reasons_are_not_those_of_a_split_by_layers() -> None:
    three = machines([offer("a", 16), offer("b", 16), offer("c", 16)], {})
    by_layers = planned(three, replace(OPTIONS, split="always", devices=("none",)))
    assert any(isinstance(reason, InProportion) for reason in by_layers.plan.reasons)
    found = planned(three)
    dropped = InProportion | AsGiven | AllOn | HeadCpu | SplitComparison | ByMemory | ComparisonFailed
    assert not [reason for reason in found.plan.reasons if isinstance(reason, dropped)]
    assert [str(reason) for reason in found.plan.reasons if isinstance(reason, OutputOn | MicroBatch)] == [
        "output on all workers",
        "micro batches of 512 tokens: all workers compute each together",
    ]
    assert found.plan.shape.step_tokens == 512
    assert in_words(found.plan.reasons).startswith("each layer on `a`, `b` and `c`, as `--split tensor` says")
    assert any(isinstance(reason, Answers) for reason in found.plan.reasons), "that is so"
    with_shares = planned(three, replace(TENSOR, tensor_split=(2.0, 1.0, 1.0), llama_args=("-ub", "64")))
    assert not [reason for reason in with_shares.plan.reasons if isinstance(reason, dropped | MicroBatch)]


BETWEEN = dict.fromkeys((("a", "b"), ("b", "a")), DevicePath(0.0002, 1e8))


def test_rates_are_predicted_where_devices_and_the_path_between_them_were_measured() -> None:
    layer_ms, offers = {"head": 9.0, "a": 1.0, "b": 1.0}, [offer("a", 16), offer("b", 16)]
    found, no_path = (planned(machines(offers, layer_ms, paths=paths)) for paths in (BETWEEN, {}))
    assert found.speeds is not None and no_path.speeds is None
    alone = plan_model(LLAMA, WORK, machines(offers[:1], layer_ms), replace(OPTIONS, devices=("none",)))
    both, one = found.prediction.generate_tok_s, alone.prediction.generate_tok_s
    assert one < both < 2 * one and found.speeds.generate_tok_s == round(both, 2)
    assert found.plan.output_worker is None, "no worker makes the logits alone"


def test_shares_are_by_speed_unless_that_does_not_fit_or_workers_are_alike() -> None:
    def shares(layer_ms: float, free: float = 16, tensor_split: tuple[float, ...] = ()) -> dict[str, int]:
        there = machines([offer("a", free), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": layer_ms})
        return worth(planned(there, replace(TENSOR, tensor_split=tensor_split)))

    assert shares(2.0) == {"a": 20, "b": 10}
    assert shares(1.1) == {"a": 15, "b": 15}, "trials of one device differ as much"
    assert shares(2.0, tensor_split=(1.0, 2.0)) == {"a": 10, "b": 20}
    room = sum(LLAMA.layers) / GIB
    assert shares(9.0) == {"a": 23, "b": 7}, "no more uneven than was tried"
    assert shares(9.0, 0.85 * room) == {"a": 15, "b": 15}, "three quarters do not fit"


def test_the_user_gives_the_shares() -> None:
    for given in ((2.0, 1.0), (2.0, 1.0, 0.0)):  # the last one: of the head, which computes nothing
        assert worth(planned(options=replace(TENSOR, tensor_split=given))) == {"a": 20, "b": 10}


def test_as_many_shares_as_workers_are_needed() -> None:
    """As when one of three is lost, and the user gave shares for three."""
    found = planned(options=replace(TENSOR, tensor_split=(1.0, 1.0, 1.0)))
    assert not found.plan.by_tensors
    assert "`--tensor-split` has 3 shares above 0, for 2 workers" in in_words(found.plan.reasons)
    with pytest.raises(NoSplit, match="has 1 shares, expected 2 or 3"):
        planned(options=replace(TENSOR, tensor_split=(2.0,)))
    three = machines([offer(name, 16) for name in "abc"], {})
    for given in ((1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(NoSplit, match="has 2 shares, expected 3 or 4"):
            planned(three, options=replace(TENSOR, tensor_split=given))
    found = planned(three, options=replace(TENSOR, tensor_split=(1.0, 1.0, 0.0)))
    assert not found.plan.by_tensors and "has 2 shares above 0, for 3 workers" in in_words(found.plan.reasons)


def test_each_worker_has_memory_for_all_that_is_not_divided() -> None:
    (first, second) = planned().plan.taking
    assert first.total == second.total and first.compute > 0
    undivided = LLAMA.output + LLAMA.output_rest + LLAMA.shared
    assert first.weights >= sum(LLAMA.layers) / 2 + undivided
    assert first.weights < sum(LLAMA.layers) / 2 + undivided + 2 * max(LLAMA.layers)
    (least, most) = planned(options=replace(TENSOR, tensor_split=(1.0, 4.0))).plan.taking
    assert least.total < first.total < most.total and least.compute == most.compute


def test_micro_batches_are_as_large_as_for_one_stage_unless_the_user_has_others() -> None:
    assert planned().plan.shape.micro_batch == ContextShape(1).micro_batch
    given = replace(TENSOR, llama_args=("-ub", "64"))
    assert planned(options=given).plan.shape.micro_batch == 64


def test_each_two_workers_are_to_reach_each_other() -> None:
    three = machines([offer(name, 16) for name in "abc"], {})
    pairs = [(one.device.node, other.device.node) for one, other in followers(planned(three).plan)]
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]


def test_every_worker_needs_all_tensors_but_those_of_the_head() -> None:
    names = ["token_embd.weight", "blk.0.ffn_up.weight", "blk.29.ffn_up.weight", "output_norm.weight"]
    found = placed_tensors(planned().plan, replace(LLAMA, tied=False), names)
    assert found == {"a": [1, 2, 3], "b": [1, 2, 3]}
    assert placed_tensors(planned().plan, replace(LLAMA, tied=True), names)["a"] == [0, 1, 2, 3]


def _why(
    offers: Sequence[NodeOffer] = TWO.offers,
    options: HeadOptions = TENSOR,
    arch: str = "llama",
    indivisible: str = "",
) -> str:
    """Why the layers are divided in the end."""
    there = replace(TWO, offers=tuple(offers))
    model = replace(LLAMA, architecture=arch, indivisible=indivisible)
    found = plan_model(model, WORK, there, options)
    assert not found.plan.by_tensors
    assert isinstance(found.plan.reasons[0], NotByTensors)
    return in_words(found.plan.reasons[:1])


def test_what_cannot_be_divided_is_split_by_layers_with_the_reason() -> None:
    assert "architecture `mamba` have not been tried" in _why(arch="mamba")
    assert _why([]) == "by layers: `--split tensor` needs two workers besides this node; it has 0 workers"
    assert _why([offer("a", 16)]).endswith("it has 1 worker")
    assert MOST_WORKERS == 4 and "two to four workers, " in _why(
        [offer(f"w{n}", 16) for n in range(MOST_WORKERS + 1)]
    )
    assert "`-fa off` is given" in _why(options=replace(TENSOR, llama_args=("-fa", "off")))
    for option in ("-md", "--model-draft", "--spec_draft_model"):
        assert f"`{option}` names one" in _why(options=replace(TENSOR, llama_args=(option, "small.gguf")))
    assert "`--reranking` has not been tried" in _why(options=replace(TENSOR, llama_args=("--reranking",)))
    for option in ("--lora", "--lora_scaled", "-ot", "--override-tensor", "-nkvo", "--no-kv-offload"):
        assert f"divide it with `{option}`" in _why(options=replace(TENSOR, llama_args=(option, "value")))
    assert "`no_push` is set" in _why(options=replace(TENSOR, no_push=True))
    two = replace(
        offer("a", 16), offer=replace(offer("a", 16).offer, devices=(device(16), device(16, "GPU")))
    )
    assert "each with one device" in _why([two, offer("b", 16)])


def test_a_worker_that_is_left_has_a_part_also_where_the_head_alone_would_be_faster() -> None:
    """The head waits for one: if the plan did without it, the model would never be loaded."""
    there = machines([offer("a", 16)], {"head": 1.0, "a": 9.0})
    assert plan_model(LLAMA, WORK, there, replace(TENSOR, split="layers")).plan.workers == ()
    assert plan_model(LLAMA, WORK, there, TENSOR).plan.workers == ("a",)


def test_workers_that_exchange_nothing_any_more_have_whole_layers() -> None:
    three = machines([offer("a", 16), offer("b", 16), offer("c", 16)], {})
    found = planned(replace(three, apart={frozenset("bc"): IN_DOUBT}))
    assert not found.plan.by_tensors
    why = next(reason for reason in found.plan.reasons if isinstance(reason, NotByTensors))
    assert "`b` and `c` do not exchange data directly" in str(why)
    others = {frozenset("bc"): IN_DOUBT, frozenset("ad"): INDIRECT}
    assert planned(replace(TWO, apart=others)).plan.by_tensors, "of those that take part, none are apart"


def test_what_llama_cpp_would_end_with_is_refused_before() -> None:
    assert _why(indivisible="it has one head").endswith("llama.cpp cannot divide it: it has one head")
    with_images = replace(TENSOR, mmproj=Path("projector.gguf"))
    assert "`gemma3` gets an image" in _why(options=with_images, arch="gemma3")
    assert plan_model(LLAMA, WORK, TWO, with_images).plan.by_tensors


def test_a_worker_without_room_for_its_half_is_named() -> None:
    room = sum(LLAMA.layers) / GIB
    assert "b CPU has" in _why([offer("a", 16), offer("b", room / 2)])


# Two for whom `auto` gains: slow layers, a fast cable, and sums that go past the daemons.
SEALED = dict.fromkeys(BETWEEN, DevicePath(0.0002, 1e9, seals=True))


def by_speed(
    split: str, paths: Mapping[tuple[str, str], DevicePath], auto: AutoWay | None = AUTO
) -> SplitChoice:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 200.0, "a": 20.0, "b": 20.0}, paths=paths)
    return plan_model(LLAMA, WORK, there, replace(OPTIONS, split=split), auto)


@pytest.mark.parametrize("split", ["layers", "always"])
def test_whoever_asks_for_layers_has_them_where_auto_is_by_tensors(split: str) -> None:
    assert by_speed("auto", SEALED).plan.by_tensors
    found = by_speed(split, SEALED)
    assert not found.plan.by_tensors and "-sm" not in found.plan.arguments
    assert found.plan == by_speed(split, SEALED, None).plan


def test_auto_is_by_layers_where_nothing_is_to_decide_it() -> None:
    found = by_speed("auto", SEALED, None)
    assert not found.plan.by_tensors and found.plan == by_speed("layers", SEALED).plan


def test_auto_that_stays_by_layers_has_the_plan_of_layers_and_the_reason() -> None:
    auto, layers = (by_speed(split, BETWEEN).plan for split in ("auto", "layers"))
    *reasons, why_not = auto.reasons
    assert why_not == NotTogether(WhyByLayers.DAEMONS)
    assert replace(auto, reasons=tuple(reasons)) == layers
