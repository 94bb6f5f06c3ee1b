"""Test what is predicted of workers that compute each layer together, against measurements of a prototype.

These (2026-11-25) are of llama-bench over mesh-servers without daemons, each worker one pinned thread of an
EPYC, or an H100; distances made in user space, which costs about what a pair of daemons does. Others are of
daemons, as their tests say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers, Widths
from meshd.model.output import DevicePath
from meshd.plan.plan_prediction import CONVERSATION_ANSWER, CONVERSATION_PROMPT
from meshd.plan.prediction import (
    HOP_SECONDS,
    PROMPT_SECONDS,
    STEP_SECONDS,
    PlannedStage,
    Prediction,
    Predictor,
    Split,
)
from meshd.plan.tensor_prediction import (
    CPU_SUM_SECONDS,
    LOCAL_PATH,
    SUM_RATE,
    SumMember,
    uneven_growth,
    ways_between,
)
from meshd.plan.ways import CLEARLY
from meshd.wire.capacity import TimedLayer

from tests.bench.random_model import HEAD_ELEMENTS, SHAPES, Shape
from tests.unit.plan.split_scene import split_model

GIGABIT = 117e6
CLOSE = 0.2  # what the planner promises


def model(shape: Shape, vocabulary: int = 0) -> ModelLayers:
    widths = Widths(
        embedding=shape.width,
        attention=2 * HEAD_ELEMENTS * (shape.heads + shape.kv_heads),
        heads=shape.heads,
        feed_forward=shape.inner * max(1, shape.experts_used),
        experts=0,
        state=0,
        vocabulary=vocabulary or shape.vocabulary,
        kv_heads=shape.kv_heads,
    )
    return replace(split_model(layers=shape.layers, tied=False), widths=widths)


def speed(layers: int, token_s: float, prompt_tok_s: float) -> DeviceSpeed:
    """One that takes so long for a token in all layers, and makes so many tokens of a prompt."""
    points = {
        tokens: max(token_s - STEP_SECONDS, tokens / prompt_tok_s if tokens > 1 else 0.0) / layers
        for tokens in (1, 128, 512)
    }
    times = [TimedLayer(0, tokens, int(1e9 * seconds)) for tokens, seconds in points.items()]
    return DeviceSpeed([*times, TimedLayer(1, 1, 1), TimedLayer(1, 512, 512)])


def work(layers: int) -> LayerWork:
    return LayerWork((f"{layers}=…", "1=…"), (0,) * layers, (1.0,) * layers, output=1)


def together(
    shares: Sequence[float],
    speeds: Sequence[DeviceSpeed],
    path: DevicePath,
    *,
    count: int,
    is_gpu: bool = False,
    known: bool = True,
) -> Split:
    names = "abcd"[: len(shares)]
    stages = tuple(
        PlannedStage(name, "GPU0" if is_gpu else "CPU", 0, count, 0, is_gpu, speed=speed, path=path)
        for name, speed in zip(names, speeds, strict=True)
    )
    paths: Mapping[tuple[str, str], DevicePath] = dict.fromkeys(permutations(names, 2), path) if known else {}
    return Split(
        stages=stages,
        output=stages[0],
        micro_batch=512,
        logits=True,
        paths=paths,
        shares=tuple(shares),
    )


BIG, SMALL, MOE = (model(SHAPES[name]) for name in ("1b", "medium", "moe"))


def rates(
    layers: ModelLayers,
    path: DevicePath,
    *,
    token_s: float,
    prompt_tok_s: float,
    is_gpu: bool = False,
    workers: int = 2,
) -> tuple[float, float]:
    speeds = [speed(layers.count, token_s, prompt_tok_s)] * workers
    split = together([1 / workers] * workers, speeds, path, count=layers.count, is_gpu=is_gpu)
    found = Predictor(layers, work(layers.count)).predict(split)
    assert found.is_measured
    return found.generate_tok_s, found.prompt_tok_s


def far(rtt_ms: float, rate: float = 1.4e9) -> DevicePath:
    return DevicePath(rtt_ms / 1000, rate) if rtt_ms else LOCAL_PATH


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "measured"),
    [
        (0, 0, 51.7),
        (0.2, 1.4e9, 39.6),
        (0.5, 1.4e9, 32.9),
        (1, 1.4e9, 26.1),
        (5, 1.4e9, 9.2),
        (20, 1.4e9, 2.7),
        (0.2, GIGABIT, 35.1),
    ],
)
def test_answers_of_1_1b_are_as_measured(rtt_ms: float, rate: float, measured: float) -> None:
    """One worker alone made 29.4 tokens a second."""
    generated, _ = rates(BIG, far(rtt_ms, rate), token_s=1 / 29.4, prompt_tok_s=63.8)
    assert generated == pytest.approx(measured, rel=CLOSE)


@pytest.mark.parametrize(("rtt_ms", "measured"), [(0, 88.3), (0.2, 49.5), (0.5, 36.2)])
def test_answers_of_24_layers_are_as_measured(rtt_ms: float, measured: float) -> None:
    generated, _ = rates(SMALL, far(rtt_ms), token_s=1 / 60.8, prompt_tok_s=200)
    assert generated == pytest.approx(measured, rel=CLOSE)


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "measured"), [(0, 0, 106.2), (20, 1.4e9, 101.3), (0.2, GIGABIT, 86.7)]
)
def test_prompts_of_1_1b_are_as_measured(rtt_ms: float, rate: float, measured: float) -> None:
    _, prompt = rates(BIG, far(rtt_ms, rate), token_s=1 / 29.4, prompt_tok_s=63.8)
    assert prompt == pytest.approx(measured, rel=CLOSE)


# Through daemons, with a core for each worker (2026-11-28, docs/decisions/0092): the round trip in ms of 8 KB
# on that wire, None for one machine; tokens a second of an answer and a prompt by one worker alone, and of so
# many by tensors.
DENSE = [
    (None, 8.8, 34.8, 2, 16.8, 55.8),
    (None, 8.8, 34.8, 3, 19.8, 71.1),
    (0.19, 8.1, 33.1, 2, 15.1, 51.3),
    (0.19, 8.1, 33.1, 3, 18.1, 47.2),
    (0.49, 8.6, 28.8, 2, 14.1, 46.3),
    (0.49, 8.6, 28.8, 3, 16.6, 49.4),
    (0.49, 8.5, 33.1, 2, 14.2, 46.9),
    (0.49, 8.5, 33.1, 3, 16.9, 47.0),
    (0.86, 8.3, 31.0, 2, 12.5, 45.0),
    (0.86, 8.3, 31.0, 3, 14.9, 46.6),
    (0.86, 8.3, 31.6, 2, 12.7, 46.8),
    (0.86, 8.3, 31.6, 3, 15.5, 46.5),
]
EXPERTS = [
    (None, 36.5, 76.4, 2, 56.6, 135.8),
    (None, 36.5, 76.4, 3, 55.3, 158.2),
    (0.49, 36.6, 91.7, 2, 38.4, 116.9),
    (0.86, 33.2, 90.7, 2, 30.0, 110.4),
]
BY_DAEMONS = [*((BIG, row) for row in DENSE), *((MOE, row) for row in EXPERTS)]
WIRE_RATE = 2.2e8  # of the program that carries all packets of the wire, as daemons measured it
Row = tuple[float | None, float, float, int, float, float]


def by_daemons(layers: ModelLayers, row: Row) -> tuple[float, float]:
    rtt_ms, alone, alone_prompt, workers, _, _ = row
    # the values of all workers go through that program one after another
    path = LOCAL_PATH if rtt_ms is None else DevicePath(rtt_ms / 1000, WIRE_RATE / workers, seals=True)
    return rates(layers, path, token_s=1 / alone, prompt_tok_s=alone_prompt, workers=workers)


@pytest.mark.parametrize(("layers", "row"), BY_DAEMONS)
def test_answers_by_daemons_are_as_measured(layers: ModelLayers, row: Row) -> None:
    assert by_daemons(layers, row)[0] == pytest.approx(row[4], rel=CLOSE)


@pytest.mark.parametrize(("layers", "row"), BY_DAEMONS)
def test_prompts_by_daemons_may_be_slower_than_predicted(layers: ModelLayers, row: Row) -> None:
    """Test that they take no more than 1.28 times as long, which is more than is promised.

    Three of them are not within 20 %: of three dense workers on one machine, 22 % too fast, and with experts
    on the wire, 21 and 27 %.
    """
    found = by_daemons(layers, row)[1]
    assert row[5] / 1.05 < found < 1.28 * row[5]
    is_close = found == pytest.approx(row[5], rel=CLOSE)
    assert is_close or row in (DENSE[1], *EXPERTS[2:])


def by_layers(
    layers: ModelLayers, path: DevicePath, alone: DeviceSpeed, workers: int, micro_batch: int
) -> Prediction:
    ends = [round(layers.count * number / workers) for number in range(workers + 1)]
    stages = tuple(
        PlannedStage(name, "CPU", begin, end, 0, speed=alone, path=path)
        for name, (begin, end) in zip("abc", pairwise(ends), strict=False)
    )
    paths = dict.fromkeys(permutations("abc", 2), path)
    split = Split(stages=stages, output=stages[-1], micro_batch=micro_batch, logits=True, paths=paths)
    return Predictor(layers, work(layers.count)).predict(split)


@pytest.mark.parametrize(("workers", "measured"), [(1, 9.0), (2, 9.1), (3, 8.3)])
def test_answers_of_1_1b_by_layers_are_as_measured_beside_them(workers: int, measured: float) -> None:
    found = by_layers(BIG, LOCAL_PATH, speed(16, 1 / 9.0, 31.2), workers, 512)
    assert found.generate_tok_s == pytest.approx(measured, rel=CLOSE)


@pytest.mark.parametrize(
    ("row", "prompt", "answer"), [(EXPERTS[2], 114.5, 35.5), (EXPERTS[3], 110.2, 35.4)], ids=["0.5", "0.9"]
)
def test_experts_at_a_distance_are_not_taken_for_clearly_faster(
    row: Row, prompt: float, answer: float
) -> None:
    """As a conversation took 0.95 and 1.08 of the time by layers, in their usual micro batches."""
    rtt_ms, alone, alone_prompt, workers, tensors_answer, tensors_prompt = row
    assert rtt_ms is not None
    path = DevicePath(rtt_ms / 1000, WIRE_RATE / workers, seals=True)
    layers = by_layers(MOE, path, speed(16, 1 / alone, alone_prompt), workers, 256)
    generated, read = by_daemons(MOE, row)

    def seconds(read: float, generated: float) -> float:
        return CONVERSATION_PROMPT / read + CONVERSATION_ANSWER / generated

    assert seconds(tensors_prompt, tensors_answer) > CLEARLY * seconds(prompt, answer)
    assert seconds(read, generated) > CLEARLY * seconds(layers.prompt_tok_s, layers.generate_tok_s)


@pytest.mark.parametrize(
    ("rtt_ms", "rate", "generated", "prompt"), [(0, 0, 214, 1315), (0.05, 1170e6, 72, 888)]
)
def test_two_gpus_with_8b_are_as_measured(
    rtt_ms: float, rate: float, generated: float, prompt: float
) -> None:
    """Launches do not shrink, and prompts are those of the processors between the cards."""
    eight = model(SHAPES["8b"], 128_256)
    token, of_prompt = rates(eight, far(rtt_ms, rate), token_s=1 / 331, prompt_tok_s=10_354, is_gpu=True)
    assert token == pytest.approx(generated, rel=CLOSE) and of_prompt == pytest.approx(prompt, rel=CLOSE)


def test_a_third_worker_computes_less_and_every_sum_has_one_more_copy() -> None:
    layer, rate = 0.001, 1e8
    speeds = [speed(16, 16 * layer + STEP_SECONDS, 1000)] * 3
    path = DevicePath(0.0002, rate)
    token = 1 / Predictor(BIG, work(16)).predict(together([1 / 3] * 3, speeds, path, count=16)).generate_tok_s
    row, logits = 4 * 2048, 4 * 32_000
    a_sum = 2 * CPU_SUM_SECONDS + HOP_SECONDS + 0.0001 + 2 * row / rate
    head = 0.0002 + 2 * HOP_SECONDS + logits / rate
    attention = 5120 / (5120 + 3 * 8192)  # of which one of them has 2 of 4 groups of heads
    layers = 16 * layer * ((1 - attention) / 3 + attention / 2)
    assert token == pytest.approx(layers + 32 * a_sum + head + STEP_SECONDS, rel=0.001)


def test_the_slowest_share_is_what_all_wait_for() -> None:
    fast, slow = speed(16, 0.016 + STEP_SECONDS, 1000), speed(16, 0.048 + STEP_SECONDS, 500)
    predictor = Predictor(BIG, work(16))

    def token(shares: Sequence[float]) -> float:
        return 1 / predictor.predict(together(shares, [fast, slow], LOCAL_PATH, count=16)).generate_tok_s

    assert token((0.5, 0.5)) - token((0.75, 0.25)) == pytest.approx(0.024 - 0.012, rel=0.001)
    assert predictor.device_seconds(together((0.5, 0.5), [fast, slow], LOCAL_PATH, count=16), 1) == {
        "a CPU": pytest.approx(0.008, rel=0.001),
        "b CPU": pytest.approx(0.024, rel=0.001),
    }


@pytest.mark.parametrize(
    ("groups", "shares", "largest"),
    [
        (4, (1, 1), 1.0),
        (8, (1, 1, 1, 1), 1.0),
        (4, (1, 1, 1), 1.5),  # 1, 1 and 2
        (8, (1, 1, 1), 9 / 8),  # 2, 3 and 3
        (2, (1, 1, 1), 1.5),  # 0, 1 and 1
        (4, (3, 1), 1.0),
        (4, (2, 1), (1.5 + 9 / 8) / 2),  # 2 and 2; in every other layer 1 and 3
        (0, (1, 1, 1), 1.0),  # not known
    ],
)
def test_attention_waits_for_the_largest_part_of_the_heads(
    groups: int, shares: tuple[float, ...], largest: float
) -> None:
    widths = replace(BIG.widths, attention=300, feed_forward=100, kv_heads=groups)  # half each
    assert uneven_growth(widths, shares) == pytest.approx((1 + largest) / 2)
    only = replace(widths, feed_forward=0)
    assert uneven_growth(only, shares) == pytest.approx(largest)
    assert uneven_growth(replace(only, attention=0), shares) == 1.0


def test_workers_on_one_processor_take_turns_as_on_any_other_device() -> None:
    split = together((0.5, 0.5), [speed(16, 0.016 + STEP_SECONDS, 1000)] * 2, LOCAL_PATH, count=16)
    shared = replace(split, stages=tuple(replace(stage, machine="m") for stage in split.stages))
    predictor = Predictor(BIG, work(16))
    apart, both = (1 / predictor.predict(one).generate_tok_s for one in (split, shared))
    assert both - apart == pytest.approx(0.008, rel=0.001)


def test_the_slowest_pair_is_what_all_wait_for() -> None:
    speeds = [speed(16, 0.016, 1000)] * 3
    near = together([1 / 3] * 3, speeds, DevicePath(0.0002, 1e9), count=16)
    one_far = replace(near, paths={**near.paths, ("b", "c"): DevicePath(0.001, 1e9)})
    predictor = Predictor(BIG, work(16))
    more = 1 / predictor.predict(one_far).generate_tok_s - 1 / predictor.predict(near).generate_tok_s
    assert more == pytest.approx(32 * 0.0004, rel=0.001)
    ends = {part.ends for part in predictor.token_parts(one_far) if part.ends}
    assert ("b", "c") in ends and ("a", "b") not in ends


def test_an_unknown_path_is_taken_for_the_one_to_the_head_and_not_for_measured() -> None:
    speeds = [speed(16, 0.016, 1000)] * 2
    predictor = Predictor(BIG, work(16))
    known, unknown = (
        predictor.predict(together((0.5, 0.5), speeds, DevicePath(0.0004, 1e9), count=16, known=known))
        for known in (True, False)
    )
    assert known.is_measured and not unknown.is_measured
    assert known.generate_tok_s == unknown.generate_tok_s


@pytest.mark.parametrize(
    ("to_head", "rate", "is_rated"),
    [
        ((DevicePath(0.0003, 1.1e8), DevicePath(0.0003, 1.2e7)), 1.2e7, True),
        ((DevicePath(0.004, 1.1e8), DevicePath(0.0003, 1.2e7)), 1.2e7, False),
        ((DevicePath(0.0003), DevicePath(0.0003, 1.2e7)), 1.2e7, False),
        ((DevicePath(0.0003), DevicePath(0.0003)), None, False),
    ],
)
def test_a_rate_follows_from_the_paths_to_the_head_where_all_are_near(
    to_head: tuple[DevicePath, DevicePath], rate: float | None, is_rated: bool
) -> None:
    members = [SumMember(name, path, is_gpu=False) for name, path in zip("ab", to_head, strict=True)]
    paths = {("b", "a"): DevicePath(0.0002), ("a", "b"): DevicePath(0.0004)}
    [found] = ways_between(members, paths, HOP_SECONDS)
    assert (found.path, found.is_known, found.is_rated) == (DevicePath(0.0004, rate), True, is_rated)
    [measured] = ways_between(members, {("b", "a"): DevicePath(0.0002, 5e7)}, HOP_SECONDS)
    assert (measured.path.rate, measured.is_rated) == (5e7, True)


@pytest.mark.parametrize(
    ("seal", "between"),
    [((True, True), 0.0), ((True, False), HOP_SECONDS), ((False, True), HOP_SECONDS), ((True,), HOP_SECONDS)],
)
def test_sums_cross_both_daemons_unless_both_workers_could_seal(
    seal: tuple[bool, ...], between: float
) -> None:
    members = [SumMember(name, None, is_gpu=False) for name in "ab"]
    ends = [("a", "b"), ("b", "a")]
    paths = {pair: DevicePath(0.0002, 1e8, seals=seals) for pair, seals in zip(ends, seal, strict=False)}
    [found] = ways_between(members, paths, HOP_SECONDS)
    assert found.between == between and found.path == DevicePath(0.0002, 1e8)


def test_a_tied_output_is_computed_whole_by_each() -> None:
    speeds = [DeviceSpeed([TimedLayer(0, 1, 1_000_000), TimedLayer(1, 1, 4_000_000)])] * 2
    split = together((0.5, 0.5), speeds, LOCAL_PATH, count=16)
    tied, untied = (
        1 / Predictor(replace(BIG, tied=tied), work(16)).predict(split).generate_tok_s
        for tied in (True, False)
    )
    assert tied - untied == pytest.approx(0.002, rel=0.001)


def test_a_prompt_passes_in_whole_micro_batches_one_after_the_other() -> None:
    split = together((0.5, 0.5), [speed(16, 0.016, 1000)] * 2, DevicePath(0.002, 1e9), count=16)
    predictor = Predictor(BIG, work(16))

    def seconds(micro_batch: int) -> float:
        return predictor.predict(replace(split, micro_batch=micro_batch)).first_token_s

    assert seconds(128) - seconds(512) == pytest.approx(
        3 * 32 * (CPU_SUM_SECONDS + HOP_SECONDS + 0.001), rel=0.01
    )
    assert seconds(512) > PROMPT_SECONDS + 32 * 512 * 4 * 2048 / SUM_RATE


def test_what_crosses_for_a_token_and_a_load() -> None:
    split = together((0.75, 0.25), [speed(16, 0.016, 1000)] * 2, LOCAL_PATH, count=16)
    stages = tuple(replace(stage, weights=1 << 30, lacking=0.0) for stage in split.stages)
    predictor = Predictor(BIG, work(16))
    found = predictor.predict(replace(split, stages=stages))
    assert found.bytes_per_token == 2 * 32 * 4 * 2048 + 4 * 32_000 and found.load_bytes == 0
    lacking = replace(split, stages=(stages[0], replace(stages[1], lacking=1.0)))
    assert predictor.predict(lacking).load_bytes == 1 << 28
