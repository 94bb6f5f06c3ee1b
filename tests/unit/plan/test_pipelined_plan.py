"""Plans for prompts that are pipelined: the micro batch and windows, their memory, and what is told."""

from dataclasses import replace

import pytest
from meshd.model.layers import ModelLayers, read_layers
from meshd.plan.machines import PlainRpc
from meshd.plan.over_offers import reservations
from meshd.plan.reasons import FullWindows, MicroBatch
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.plan.offers_scene import make_plan
from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.test_over_offers import cpu, gpu, model, node_offer

TWO = (node_offer("a", cpu()), node_offer("b", cpu()))
OPTIONS = replace(PLAIN, devices=("none",))


def plan(options: HeadOptions = OPTIONS, *, workers: int = 2, of: ModelLayers | None = None) -> Plan:
    return make_plan(of or model(), offers=TWO[:workers], plain_rpc=[], own=[cpu()], options=options)


def windowed() -> ModelLayers:
    """Of eight layers six look back 64 tokens."""
    extra = {"gemma3.attention.sliding_window": 64, "gemma3.attention.sliding_window_pattern": 4}
    return read_layers([parse(gguf(*language_model(architecture="gemma3", layers=8, extra=extra)))], name="w")


def recurrent() -> ModelLayers:
    extra = {f"mamba.ssm.{key}": 4 for key in ("conv_kernel", "inner_size", "state_size")}
    return read_layers([parse(gguf(*language_model(architecture="mamba", layers=8, extra=extra)))], name="r")


def given(made: Plan) -> str:
    return " ".join(made.arguments)


def test_llama_server_gets_it_and_the_plan_says_why() -> None:
    made = plan()
    assert "-ub 128" in given(made)
    assert MicroBatch(128, gpus=0, cpus=2) in made.reasons


def test_one_worker_has_llama_cpps_own() -> None:
    made = plan(workers=1)
    assert "-ub" not in given(made)
    assert MicroBatch(512, gpus=0, cpus=1) in made.reasons


def test_the_memory_is_that_of_the_micro_batch() -> None:
    """Buffers for the largest step are smaller, and so is what is asked of workers."""
    small, large = plan(), plan(replace(OPTIONS, llama_args=("-ub", "512")))
    assert [share.layers for share in small.shares] == [share.layers for share in large.shares]
    for less, more in zip(small.shares[1:], large.shares[1:], strict=True):
        assert less.compute < more.compute
    assert sum(map(sum, reservations(small, TWO))) < sum(map(sum, reservations(large, TWO)))


@pytest.mark.parametrize(
    ("words", "kept"),
    [(("-ub", "256"), "-ub 256"), (("-b", "64"), "-b 64"), (("--ubatch-size", "1024"), "-ub 1024")],
)
def test_what_the_user_gives_stays(words: tuple[str, ...], kept: str) -> None:
    made = plan(replace(OPTIONS, llama_args=words))
    assert given(made).endswith(f" {kept}")
    assert {"-ub", "-b"} & set(made.arguments) == {kept.split()[0]}
    assert not any(isinstance(one, MicroBatch) for one in made.reasons)


@pytest.mark.parametrize(("slots", "tokens"), [(8, 128), (200, 200), (600, 600)])
def test_all_slots_fit_into_one(slots: int, tokens: int) -> None:
    made = plan(replace(OPTIONS, llama_args=("-np", str(slots))))
    assert f"-ub {tokens}" in given(made)


def test_gpus_and_pushes_are_seen() -> None:
    offers = [node_offer("a", gpu()), node_offer("b", gpu())]
    made = make_plan(model(), offers=offers, plain_rpc=[], own=[cpu()], options=OPTIONS)
    assert MicroBatch(512, gpus=2, cpus=0) in made.reasons
    assert "-ub" not in given(plan(replace(OPTIONS, no_push=True)))


def test_gpus_of_the_head_behind_workers_are_seen() -> None:
    """The head copies to them itself, so the two workers before do not compute at the same time."""
    options = replace(OPTIONS, devices=(), tensor_split=(4, 4, 1))
    layers = model(layers=9)
    own = [cpu(), gpu(name="CUDA7")]
    made = make_plan(layers, offers=TWO, plain_rpc=[], own=own, options=options)
    assert [share.layers for share in made.shares] == [0, 4, 4, 1]
    assert MicroBatch(512, gpus=1, cpus=2) in made.reasons
    workers = make_plan(
        layers, offers=TWO, plain_rpc=[], own=own, options=replace(options, tensor_split=(5, 4, 0))
    )
    assert MicroBatch(128, gpus=0, cpus=2) in workers.reasons


def test_a_plain_rpc_server_behind_workers_is_seen() -> None:
    options = replace(OPTIONS, tensor_split=(4, 4, 1))
    plain = [PlainRpc("lan:1", (gpu(name="RPC0"),))]
    made = make_plan(model(layers=9), offers=TWO, plain_rpc=plain, own=[cpu()], options=options)
    assert MicroBatch(512, gpus=1, cpus=2) in made.reasons


def test_devices_without_layers_are_no_stages() -> None:
    made = plan(replace(OPTIONS, tensor_split=(1, 0)))
    assert "-ub" not in given(made)


def test_windows_keep_the_whole_context_where_it_fits() -> None:
    """llama-server needs no checkpoints then, for which it would wait twice in each prompt."""
    assert any(layer.window for layer in windowed().cache.layers)
    made, usual = plan(of=windowed()), plan(replace(OPTIONS, llama_args=("-ctxcp", "4")), of=windowed())
    assert "--swa-full" in given(made)
    assert FullWindows() in made.reasons and FullWindows() not in usual.reasons
    assert "--swa-full" not in given(usual)
    assert sum(share.cache for share in made.shares) > sum(share.cache for share in usual.shares)


def test_windows_stay_short_where_the_whole_context_does_not_fit() -> None:
    """Each worker needs 0.1 GiB for 1.6 million tokens in one layer, 0.4 in all four, and 0.8 to compute."""
    stretched = ("--override-kv", "gemma3.context_length=int:2000000")
    long = replace(OPTIONS, ctx_size=1_600_000, llama_args=("-ub", "128", *stretched))
    offers = [node_offer("a", cpu(0.95)), node_offer("b", cpu(0.95))]
    made = make_plan(windowed(), offers=offers, plain_rpc=[], own=[cpu(1)], options=long)
    assert "--swa-full" not in given(made)
    wide = [node_offer("a", cpu(8)), node_offer("b", cpu(8))]
    assert "--swa-full" in given(make_plan(windowed(), offers=wide, plain_rpc=[], own=[cpu(1)], options=long))


@pytest.mark.parametrize("words", [("-ctxcp", "4"), ("--swa-checkpoints", "0")])
def test_who_says_how_many_checkpoints_wants_short_windows(words: tuple[str, ...]) -> None:
    assert "--swa-full" not in given(plan(replace(OPTIONS, llama_args=words), of=windowed()))


def test_recurrent_models_have_no_windows_to_widen() -> None:
    assert any(layer.state for layer in recurrent().cache.layers)
    made = plan(of=recurrent())
    assert "--swa-full" not in given(made)
    assert any(isinstance(one, MicroBatch) for one in made.reasons)
