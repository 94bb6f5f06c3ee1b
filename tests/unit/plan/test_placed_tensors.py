"""Which node needs which tensors of a split model: each layer once, and what is beside the layers."""

from dataclasses import replace

import pytest
from meshd.model.cache import ContextShape
from meshd.plan.by_memory import plan_split
from meshd.plan.split import Device, SplitOptions, placed_tensors

from tests.unit.plan.split_scene import HEAD, cpu, split_model

EMBEDDING, NORM, ROPE = "token_embd.weight", "output_norm.weight", "rope_freqs.weight"
LAYERS = [f"blk.{number}.ffn_up.weight" for number in range(30)]
NAMES = [EMBEDDING, "position_embd.weight", *LAYERS, NORM, "output.weight", ROPE]


def parts(devices: list[Device], *, tied: bool, **more: object) -> dict[str, list[str]]:
    options = replace(SplitOptions(ContextShape(8192)), **more)  # type: ignore[arg-type]
    model = split_model(tied=tied)
    names = [name for name in NAMES if not (tied and name == "output.weight")]
    found = placed_tensors(plan_split(model, devices, options), model, names)
    return {node: [names[number] for number in numbers] for node, numbers in found.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_two_workers_have_all_layers_and_the_head_the_output(tied: bool) -> None:
    found = parts([cpu("a"), cpu("b"), HEAD], tied=tied, head_layers=False, local_output=True)
    assert found == {"a": [*LAYERS[:15], ROPE], "b": [*LAYERS[15:], NORM, ROPE]}


def test_the_head_has_the_first_layers() -> None:
    found = parts([cpu("a"), HEAD], tied=False)
    assert found["head"] == [*LAYERS[:15], ROPE], "its input and output are nobody else's"
    assert found["a"] == [*LAYERS[15:], NORM, ROPE]


@pytest.mark.parametrize("tied", [True, False])
def test_a_worker_that_makes_logits_needs_their_matrix(tied: bool) -> None:
    found = parts(
        [cpu("a"), cpu("b"), HEAD], tied=tied, head_layers=False, local_output=False, input_on_worker=True
    )
    matrix, other = (EMBEDDING, []) if tied else ("output.weight", [EMBEDDING])
    assert found["a"] == [*other, *LAYERS[:15], ROPE]
    assert sorted(found["b"]) == sorted([matrix, *LAYERS[15:], NORM, ROPE]), "a tied one is there once"


def test_two_devices_of_one_node_are_one_part() -> None:
    two = [replace(cpu("a"), name=name) for name in ("GPU0", "GPU1")]
    found = parts([*two, HEAD], tied=True, head_layers=False, local_output=True)
    assert found == {"a": [*LAYERS, NORM, ROPE]}


def test_layers_that_no_plan_has_are_nobodys() -> None:
    model = split_model()
    plan = plan_split(model, [cpu("a"), HEAD], SplitOptions(ContextShape(8192)))
    assert placed_tensors(replace(plan, shares=()), model, NAMES) == {}
    assert placed_tensors(plan, split_model(layers=31), ["blk.30.ffn_up.weight"]) == {"a": [], "head": []}
