"""Where the embeddings lie: on the head, or with the first layers on a worker."""

from dataclasses import replace

import pytest
from meshd.model.cache import ContextShape
from meshd.plan.by_memory import plan_split
from meshd.plan.split import SplitOptions

from tests.unit.plan.split_scene import GIB, HEAD, cpu, split_model


@pytest.mark.parametrize(
    ("workers", "tied", "local_output", "overrides"),
    [
        (2, False, False, "-ot token_embd.weight=RPC0"),
        (2, False, True, r"-ot ^output\.weight=CPU,token_embd.weight=RPC0"),
        (1, True, False, "-ot token_embd.weight=RPC0"),
        (2, True, False, ""),  # the last one makes logits of them
        (1, True, True, "-ot token_embd.weight=CPU"),
    ],
)
def test_embeddings_lie_with_the_first_layers_unless_they_are_needed_elsewhere(
    workers: int, tied: bool, local_output: bool, overrides: str
) -> None:
    model = split_model(tied=tied)
    devices = [*(cpu(f"w{number}") for number in range(workers)), HEAD]
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=local_output)
    plain = plan_split(model, devices, options)
    plan = plan_split(model, devices, replace(options, input_on_worker=True))
    given = " ".join(plan.arguments)
    assert (overrides in given) if overrides else ("-ot" not in given)
    moved = model.embedding if plan.input_device else 0
    assert plain.shares[0].weights - plan.shares[0].weights == moved
    assert plan.shares[1].weights - plain.shares[1].weights == (0 if tied else moved)
    assert " ".join(plain.arguments).count("RPC0,") == given.count("RPC0,")


def test_embeddings_stay_with_a_head_that_has_the_first_layers_or_where_there_is_no_room() -> None:
    options = SplitOptions(ContextShape(8192), local_output=True, input_on_worker=True)
    assert plan_split(split_model(tied=False), [cpu("a"), HEAD], options).input_device == ""
    large = replace(split_model(tied=False), input=3 * GIB, embedding=3 * GIB)
    alone = replace(options, head_layers=False)
    assert plan_split(large, [cpu("a", 4.0), HEAD], alone).input_device == "RPC0"
    assert plan_split(large, [cpu("a", 2.0), HEAD], alone).input_device == ""


def test_embeddings_stay_with_a_head_whose_first_worker_is_a_plain_rpc_server() -> None:
    """It claims to have every operation, and not each device has rows of each quantized type."""
    options = SplitOptions(ContextShape(8192), head_layers=False, local_output=True, input_on_worker=True)
    plain, worker = replace(cpu("a"), is_plain=True), cpu("b")
    assert plan_split(split_model(tied=False), [plain, worker, HEAD], options).input_device == ""
    assert plan_split(split_model(tied=False), [worker, plain, HEAD], options).input_device == "RPC0"
