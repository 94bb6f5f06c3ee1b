"""Test how much of a prompt is computed at once, and what a plan makes of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.layers import ModelLayers, read_layers
from meshd.model.output import DevicePath
from meshd.plan.machines import PlainRpc
from meshd.plan.over_offers import LEAST, MOST, PromptStage, choose_micro_batch, reservations
from meshd.plan.reasons import FullWindows, MicroBatch
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.plan.offers_scene import cpu, gpu, make_plan, model, node_offer
from tests.unit.plan.plain_options import PLAIN

SMOL, LARGE = 66_000_000, 4_000_000_000  # bytes of all layers
SMOL_WIDTH, LARGE_WIDTH = 576, 4096
WIRED = DevicePath(0.0003, 110e6)  # Gigabit Ethernet
DSL = DevicePath(0.02, 2.5e6)


def even(count: int, weights: int, *, gpu: bool = False, path: DevicePath | None = None) -> list[PromptStage]:
    return [PromptStage(weights // count, gpu, path)] * count


@pytest.mark.parametrize(
    ("stages", "width", "tokens"),
    [
        (even(1, SMOL), SMOL_WIDTH, 512),
        (even(2, SMOL), SMOL_WIDTH, 128),
        (even(4, SMOL, path=DSL), SMOL_WIDTH, 128),
        (even(2, LARGE), LARGE_WIDTH, 128),
        (even(1, LARGE, gpu=True), LARGE_WIDTH, 512),
        (even(2, LARGE, gpu=True), LARGE_WIDTH, 512),  # measured on two H200
        (even(2, LARGE, gpu=True, path=DevicePath(0.0005)), LARGE_WIDTH, 512),
        (even(4, LARGE, gpu=True), LARGE_WIDTH, 256),
        # the wire is the slowest stage, so what the GPUs lose by small ones is hidden behind it
        (even(2, LARGE, gpu=True, path=DSL), LARGE_WIDTH, 128),
        (even(2, LARGE, gpu=True, path=WIRED), LARGE_WIDTH, 256),
        # a CPU computes nearly all the time, and a GPU before it hardly fills anything
        ([PromptStage(LARGE // 2, is_gpu=True), PromptStage(LARGE // 2)], LARGE_WIDTH, 512),
    ],
)
def test_it_is_decided_by_the_stages_the_devices_and_the_paths(
    stages: list[PromptStage], width: int, tokens: int
) -> None:
    chosen = choose_micro_batch(stages, embedding=width, slots=1, pushed=True, rewound=False)
    assert chosen.tokens == tokens


def test_without_pushes_the_head_waits_at_each_border_as_seldom_as_possible() -> None:
    """Measured with four CPU workers at 50 ms: 6.6 s in micro batches of 128 tokens, 5.0 s with 512."""
    stages = even(4, SMOL, path=DevicePath(0.05))
    chosen = choose_micro_batch(stages, embedding=SMOL_WIDTH, slots=1, pushed=False, rewound=False)
    assert chosen.tokens == 512


@pytest.mark.parametrize(
    ("workers", "own", "overlapped", "tokens"),
    [
        (
            even(2, SMOL),
            1,
            128,
            512,
        ),  # while one of the workers computes, nobody gives the other one anything
        (even(3, LARGE, gpu=True), 1, 256, 512),
        (even(1, LARGE, gpu=True), 3, 256, 256),  # the head's own GPUs copy from each to the next
    ],
)
def test_stages_before_a_gpu_of_the_head_do_not_overlap(
    workers: list[PromptStage], own: int, overlapped: int, tokens: int
) -> None:
    size = workers[0].weights
    gpus = [PromptStage(size, is_gpu=True)] * own
    waiting = [replace(gpus[0], waits=True), *gpus[1:]]
    width = SMOL_WIDTH if size < SMOL else LARGE_WIDTH
    for behind, expected in ((gpus, overlapped), (waiting, tokens)):
        stages = [*workers, *behind]
        chosen = choose_micro_batch(stages, embedding=width, slots=1, pushed=True, rewound=False)
        assert chosen.tokens == expected


def test_the_head_waits_for_a_round_trip_before_its_gpu() -> None:
    """With many GPUs behind, smaller micro batches pay; not where each of them costs a round trip."""

    def tokens(path: DevicePath) -> int:
        gpu = PromptStage(LARGE // 4, is_gpu=True)
        stages = [replace(gpu, path=path), replace(gpu, waits=True), gpu, gpu]
        return choose_micro_batch(stages, embedding=LARGE_WIDTH, slots=1, pushed=True, rewound=False).tokens

    assert (tokens(DevicePath(0.0, 1e12)), tokens(DevicePath(0.05, 1e12))) == (256, 512)


def test_the_end_of_a_prompt_with_a_checkpoint_counts_twice() -> None:
    """On two GPUs 256 gain nothing, unless the last micro batch goes through both of them alone."""
    stages = even(2, LARGE, gpu=True)
    usual, rewound = (
        choose_micro_batch(stages, embedding=LARGE_WIDTH, slots=1, pushed=True, rewound=it)
        for it in (False, True)
    )
    assert (usual.tokens, rewound.tokens) == (512, 256)


def test_it_tells_for_which_devices_it_was_chosen() -> None:
    def chosen(stages: list[PromptStage], slots: int) -> MicroBatch:
        return choose_micro_batch(stages, embedding=576, slots=slots, pushed=True, rewound=False)

    assert chosen(even(1, SMOL), 1) == MicroBatch(512, gpus=0, cpus=1)
    assert chosen(even(2, SMOL), 1) == MicroBatch(128, gpus=0, cpus=2)
    assert chosen(even(2, LARGE, gpu=True), 1) == MicroBatch(512, gpus=2, cpus=0)
    mixed = chosen([PromptStage(SMOL, is_gpu=True), PromptStage(SMOL)], 1)
    assert (mixed.gpus, mixed.cpus, mixed.for_slots) == (1, 1, False)
    assert chosen(even(2, SMOL), 200) == MicroBatch(200, gpus=0, cpus=2, for_slots=True)


paths = st.none() | st.builds(
    DevicePath, st.floats(0, 5), st.none() | st.floats(0, 1e12, allow_subnormal=False)
)
some_stages = st.lists(
    st.builds(PromptStage, st.integers(0, 1 << 45), st.booleans(), paths, st.booleans()), max_size=16
)


@given(some_stages, st.integers(0, 1 << 20), st.integers(1, 4096), st.booleans(), st.booleans())
def test_it_is_within_its_bounds_and_never_below_the_slots(
    stages: list[PromptStage], embedding: int, slots: int, pushed: bool, rewound: bool
) -> None:
    tokens = choose_micro_batch(
        stages, embedding=embedding, slots=slots, pushed=pushed, rewound=rewound
    ).tokens
    assert slots <= tokens
    assert LEAST <= tokens <= max(MOST, slots)
    if len(stages) < 2:
        assert tokens == max(MOST, slots)


@given(some_stages.filter(lambda found: len(found) > 1), st.integers(1, 1 << 14), st.booleans())
def test_a_pipeline_that_does_not_overlap_is_never_cut_smaller(
    stages: list[PromptStage], embedding: int, rewound: bool
) -> None:
    chosen = choose_micro_batch(stages, embedding=embedding, slots=1, pushed=False, rewound=rewound)
    assert chosen.tokens == MOST


TWO = (node_offer("a", cpu()), node_offer("b", cpu()))
OPTIONS = replace(PLAIN, devices=("none",))


def plan(options: HeadOptions = OPTIONS, *, workers: int = 2, of: ModelLayers | None = None) -> Plan:
    return make_plan(of or model(), offers=TWO[:workers], options=options)


def windowed() -> ModelLayers:
    """Return a model of eight layers, of which six look back 64 tokens."""
    extra = {"gemma3.attention.sliding_window": 64, "gemma3.attention.sliding_window_pattern": 4}
    return read_layers([parse(gguf(*language_model(architecture="gemma3", layers=8, extra=extra)))], name="w")


def recurrent() -> ModelLayers:
    extra = {f"mamba.ssm.{key}": 4 for key in ("conv_kernel", "inner_size", "state_size")}
    return read_layers([parse(gguf(*language_model(architecture="mamba", layers=8, extra=extra)))], name="r")


def options_of(made: Plan) -> str:
    return " ".join(made.arguments)


def test_llama_server_gets_it_and_the_plan_says_why() -> None:
    made = plan()
    assert "-ub 128" in options_of(made)
    assert MicroBatch(128, gpus=0, cpus=2) in made.reasons


def test_one_worker_has_llama_cpps_own() -> None:
    made = plan(workers=1)
    assert "-ub" not in options_of(made)
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
    assert options_of(made).endswith(f" {kept}")
    assert {"-ub", "-b"} & set(made.arguments) == {kept.split()[0]}
    assert not any(isinstance(one, MicroBatch) for one in made.reasons)


@pytest.mark.parametrize(("slots", "tokens"), [(8, 128), (200, 200), (600, 600)])
def test_all_slots_fit_into_one(slots: int, tokens: int) -> None:
    made = plan(replace(OPTIONS, llama_args=("-np", str(slots))))
    assert f"-ub {tokens}" in options_of(made)


def test_gpus_and_pushes_are_seen() -> None:
    offers = [node_offer("a", gpu()), node_offer("b", gpu())]
    made = make_plan(model(), offers=offers, options=OPTIONS)
    assert MicroBatch(512, gpus=2, cpus=0) in made.reasons
    assert "-ub" not in options_of(plan(replace(OPTIONS, no_push=True)))


def test_gpus_of_the_head_behind_workers_are_seen() -> None:
    """The head copies to them itself, so the two workers before do not compute at the same time."""
    options = replace(OPTIONS, devices=(), tensor_split=(4, 4, 1))
    layers = model(layers=9)
    own = [cpu(), gpu(name="CUDA7")]
    made = make_plan(layers, offers=TWO, own=own, options=options)
    assert [share.layers for share in made.shares] == [0, 4, 4, 1]
    assert MicroBatch(512, gpus=1, cpus=2) in made.reasons
    workers = make_plan(layers, offers=TWO, own=own, options=replace(options, tensor_split=(5, 4, 0)))
    assert MicroBatch(128, gpus=0, cpus=2) in workers.reasons


def test_a_plain_rpc_server_behind_workers_is_seen() -> None:
    options = replace(OPTIONS, tensor_split=(4, 4, 1))
    plain = [PlainRpc("lan:1", (gpu(name="RPC0"),))]
    made = make_plan(model(layers=9), offers=TWO, plain_rpc=plain, options=options)
    assert MicroBatch(512, gpus=1, cpus=2) in made.reasons


def test_devices_without_layers_are_no_stages() -> None:
    made = plan(replace(OPTIONS, tensor_split=(1, 0)))
    assert "-ub" not in options_of(made)


def test_windows_keep_the_whole_context_where_it_fits() -> None:
    """llama-server needs no checkpoints then, for which it would wait twice in each prompt."""
    assert any(layer.window for layer in windowed().cache.layers)
    made, usual = plan(of=windowed()), plan(replace(OPTIONS, llama_args=("-ctxcp", "4")), of=windowed())
    assert "--swa-full" in options_of(made)
    assert FullWindows() in made.reasons and FullWindows() not in usual.reasons
    assert "--swa-full" not in options_of(usual)
    assert sum(share.cache for share in made.shares) > sum(share.cache for share in usual.shares)


def test_windows_stay_short_where_the_whole_context_does_not_fit() -> None:
    """Each worker needs 0.1 GiB for 1.6 million tokens in one layer, 0.4 in all four, and 0.8 to compute."""
    stretched = ("--override-kv", "gemma3.context_length=int:2000000")
    long = replace(OPTIONS, ctx_size=1_600_000, llama_args=("-ub", "128", *stretched))
    offers = [node_offer("a", cpu(0.95)), node_offer("b", cpu(0.95))]
    made = make_plan(windowed(), offers=offers, own=[cpu(1)], options=long)
    assert "--swa-full" not in options_of(made)
    wide = [node_offer("a", cpu(8)), node_offer("b", cpu(8))]
    assert "--swa-full" in options_of(make_plan(windowed(), offers=wide, own=[cpu(1)], options=long))


@pytest.mark.parametrize("words", [("-ctxcp", "4"), ("--swa-checkpoints", "0")])
def test_who_says_how_many_checkpoints_wants_short_windows(words: tuple[str, ...]) -> None:
    assert "--swa-full" not in options_of(plan(replace(OPTIONS, llama_args=words), of=windowed()))


def test_recurrent_models_have_no_windows_to_widen() -> None:
    assert any(layer.state for layer in recurrent().cache.layers)
    made = plan(of=recurrent())
    assert "--swa-full" not in options_of(made)
    assert any(isinstance(one, MicroBatch) for one in made.reasons)
