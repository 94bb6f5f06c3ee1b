"""The plan's micro batch: in llama-server's options, in the memory that is reserved, and in what is told."""

from dataclasses import replace

import pytest
from meshd.model.split_values import Plan
from meshd.role.head.split_plan import HeadOptions, make_plan, reservations

from tests.unit.role.head.test_split_plan import cpu, gpu, model, node_offer

TWO = (node_offer("a", cpu()), node_offer("b", cpu()))
OPTIONS = HeadOptions(devices=("none",), pipelined=True)


def plan(options: HeadOptions = OPTIONS, *, workers: int = 2) -> Plan:
    return make_plan(model(), offers=TWO[:workers], plain_rpc=[], own=[cpu()], options=options)


def given(made: Plan) -> str:
    return " ".join(made.arguments)


def test_llama_server_gets_it_and_the_plan_says_why() -> None:
    made = plan()
    assert "-ub 128" in given(made)
    assert made.why.endswith("micro batches of 128 tokens: fastest for 2 CPUs in turn, estimated")


def test_one_worker_has_llama_cpps_own() -> None:
    made = plan(workers=1)
    assert "-ub" not in given(made)
    assert made.why.endswith("micro batches of 512 tokens: one device computes")


def test_the_memory_is_that_of_the_micro_batch() -> None:
    """Buffers for the largest step are smaller, and so is what is asked of workers."""
    small, large = plan(), plan(replace(OPTIONS, pipelined=False))
    assert [share.layers for share in small.shares] == [share.layers for share in large.shares]
    for less, more in zip(small.shares[1:], large.shares[1:], strict=True):
        assert less.compute < more.compute
    assert sum(map(sum, reservations(small, TWO))) < sum(map(sum, reservations(large, TWO)))


@pytest.mark.parametrize("words", [("-ub", "256"), ("-b", "64"), ("--ubatch-size", "1024")])
def test_what_the_user_gives_stays(words: tuple[str, ...]) -> None:
    made = plan(replace(OPTIONS, llama_args=words))
    assert made.arguments == plan(replace(OPTIONS, llama_args=words, pipelined=False)).arguments
    assert "micro batch" not in made.why


def test_other_protocols_keep_llama_cpps_own() -> None:
    made = plan(replace(OPTIONS, pipelined=False))
    assert "-ub" not in given(made)
    assert "micro batch" not in made.why


@pytest.mark.parametrize(("slots", "tokens"), [(8, 128), (200, 200), (600, 600)])
def test_all_slots_fit_into_one(slots: int, tokens: int) -> None:
    made = plan(replace(OPTIONS, llama_args=("-np", str(slots))))
    assert f"-ub {tokens}" in given(made)


def test_gpus_and_pushes_are_seen() -> None:
    offers = [node_offer("a", gpu()), node_offer("b", gpu())]
    made = make_plan(model(), offers=offers, plain_rpc=[], own=[cpu()], options=OPTIONS)
    assert "512 tokens: fastest for 2 GPUs" in made.why
    assert "-ub" not in given(plan(replace(OPTIONS, push=False)))


def test_devices_without_layers_are_no_stages() -> None:
    made = plan(replace(OPTIONS, tensor_split=(1, 0)))
    assert "-ub" not in given(made)
