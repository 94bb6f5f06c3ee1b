"""How much of a prompt is computed at once: by the stages, what computes, and what lies between."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.output import DevicePath
from meshd.plan.over_offers import LEAST, MOST, PromptStage, choose_micro_batch
from meshd.plan.reasons import MicroBatch

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
