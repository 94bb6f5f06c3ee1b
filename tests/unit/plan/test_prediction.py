"""Test what a split will do: each part of the law of prediction.py, by itself."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.output import DevicePath
from meshd.model.status import Speeds
from meshd.plan.prediction import (
    HOP_SECONDS,
    STEP_SECONDS,
    PartSeconds,
    PlannedStage,
    PlanOutcome,
    PredictedPart,
    Predictor,
    Split,
)
from meshd.plan.reasons import ChangedPart
from meshd.wire.capacity import TimedLayer

from tests.unit.plan.split_scene import split_model

MODEL = split_model()
WORK = LayerWork(("30=…", "1=…", "4=…", "4=…"), (0,) * 30, (1.0,) * 30, output=1, near=2, far=3)
MS = 1_000_000


def speed(
    layer_ms: float, *, output_ms: float = 2.0, cell_us: float = 0.0, share: float = 1.0, cores: str = ""
) -> DeviceSpeed:
    """Times that grow with the tokens."""
    far = int((0.1 + cell_us * (4096 - 256) / 1000) * MS)
    times = [
        TimedLayer(kind, tokens, int(one * tokens * MS) or 1)
        for kind, one in ((0, layer_ms), (1, output_ms), (2, 0.1), (3, far / MS))
        for tokens in (1, 128)
    ]
    return DeviceSpeed(times, share=share, cores=cores)


HEAD = PlannedStage("head", "CPU", 0, 30, 0, speed=speed(0.2), is_head=True)
PREDICTOR = Predictor(MODEL, WORK)


def worker(name: str, begin: int, end: int, *, rtt: float, layer_ms: float = 0.2) -> PlannedStage:
    return PlannedStage(name, "CPU", begin, end, 0, speed=speed(layer_ms), path=DevicePath(rtt, 1e12))


def split(*stages: PlannedStage, output: PlannedStage = HEAD, pushed: bool = True, slots: int = 1) -> Split:
    return Split(stages=stages, output=output, micro_batch=128, pushed=pushed, slots=slots)


def token(one: Split) -> float:
    return 1 / PREDICTOR.predict(one).generate_tok_s


def test_one_machine_has_no_ways() -> None:
    alone = PREDICTOR.predict(split(HEAD))
    assert 1 / alone.generate_tok_s == pytest.approx(30 * 0.0002 + 0.002 + STEP_SECONDS)
    assert alone.bytes_per_token == 0 and alone.ways_s == 0 and alone.is_measured
    assert PREDICTOR.device_seconds(split(HEAD), 1) == {"head CPU": pytest.approx(0.008)}
    assert PREDICTOR.device_seconds(split(HEAD), 2.5) == {"head CPU": pytest.approx(2.5 * 0.008)}


def test_n_workers_in_a_row_are_n_plus_one_ways() -> None:
    near = [worker(name, 10 * i, 10 * i + 10, rtt=0.0) for i, name in enumerate("abc")]
    far = [replace(one, path=DevicePath(0.02, 1e12)) for one in near]
    assert token(split(*near)) == pytest.approx(0.006 + 0.002 + STEP_SECONDS + 4 * HOP_SECONDS, abs=1e-5)
    assert token(split(*far)) - token(split(*near)) == pytest.approx(4 * 0.01, abs=1e-5)


def test_without_pushes_each_border_is_two() -> None:
    far = [worker(name, 10 * i, 10 * i + 10, rtt=0.02) for i, name in enumerate("abc")]
    more = token(split(*far, pushed=False)) - token(split(*far))
    assert more == pytest.approx(2 * (0.01 + HOP_SECONDS), abs=1e-5)


def test_the_path_between_two_workers_is_theirs_where_it_is_known() -> None:
    pair = split(worker("a", 0, 15, rtt=0.04), worker("b", 15, 30, rtt=0.04))
    known = replace(pair, paths={("a", "b"): DevicePath(0.001, 1e12)})
    assert token(pair) - token(known) == pytest.approx((0.04 - 0.001) / 2, abs=1e-6)


def test_a_far_device_behind_a_near_one_waits_for_its_order() -> None:
    near = worker("a", 0, 15, rtt=0.0)
    far = split(near, worker("b", 15, 30, rtt=0.04))
    known = replace(far, paths={("a", "b"): DevicePath(0.02, 1e12)})
    # hidden states would be there after 3 ms of computing and a way of 10; the order takes 20
    assert token(known) - token(far) == pytest.approx(-(0.003 + HOP_SECONDS), abs=1e-5)
    served = replace(known, pushed=False)
    assert token(served) > token(known)


def test_two_devices_of_one_node_have_no_way_between_them() -> None:
    one = worker("a", 0, 15, rtt=0.04)
    both = split(one, replace(one, device="GPU1", begin=15, end=30))
    assert token(both) == pytest.approx(token(split(replace(one, end=30))), abs=1e-6)


def test_the_output_takes_its_time_where_it_is() -> None:
    last = replace(worker("a", 0, 30, rtt=0.0), speed=speed(0.2, output_ms=7.0))
    assert token(split(last, output=last)) - token(split(last)) == pytest.approx(0.005, abs=1e-5)


def test_logits_that_cross_cost_their_bytes() -> None:
    last = replace(worker("a", 0, 30, rtt=0.0), path=DevicePath(0.0, 1e6))
    sampled = split(last, output=last)
    logits = replace(sampled, logits=True)
    assert token(logits) - token(sampled) == pytest.approx((4 * 49152 - 400) / 1e6, rel=0.01)
    assert PREDICTOR.predict(logits).bytes_per_token == 4 * 576 + 4 * 49152


def test_numbers_of_tokens_cross_to_a_worker_that_has_the_embeddings() -> None:
    first = replace(worker("a", 0, 15, rtt=0.0), path=DevicePath(0.0, 1e6))
    states = split(first, worker("b", 15, 30, rtt=0.0))
    numbers = replace(states, numbers=True)
    assert token(states) - token(numbers) == pytest.approx((4 * 576 - 4) / 1e6, rel=0.01)
    assert PREDICTOR.predict(states).bytes_per_token - PREDICTOR.predict(numbers).bytes_per_token == 4 * 575
    slow, fast = (PREDICTOR.predict(one).first_token_s for one in (states, numbers))
    assert slow - fast == pytest.approx(128 * 4 * 575 / 1e6, rel=0.01)  # for the first micro batch


def test_streams_share_a_round() -> None:
    far = worker("a", 0, 30, rtt=0.1)
    one, four = (PREDICTOR.predict(split(far, slots=slots)) for slots in (1, 4))
    assert one.streams_tok_s == pytest.approx(one.generate_tok_s)
    assert 2 < four.streams_tok_s / one.streams_tok_s < 4


def test_a_longer_cache_takes_longer() -> None:
    reader = split(replace(HEAD, speed=speed(0.2, cell_us=0.01)))

    def token_over(cells: int) -> float:
        layers = tuple(replace(layer, window=cells) for layer in MODEL.cache.layers)
        windowed = replace(MODEL, cache=replace(MODEL.cache, layers=layers))
        return 1 / Predictor(windowed, WORK).predict(reader).generate_tok_s

    shortest, short, long = token_over(101), token_over(256), token(reader)
    assert shortest == pytest.approx(token(split(HEAD)))
    assert short - shortest == pytest.approx(30 * 155 * 0.01e-6, rel=0.01), (
        "so many it does not see when timed"
    )
    assert long - short == pytest.approx(30 * (512 - 256) * 0.01e-6, rel=0.01)


def test_a_prompt_is_a_pipeline_of_what_is_pushed() -> None:
    """T = (k + N - 1) C / kN for N devices that are alike."""
    whole = split(worker("a", 0, 30, rtt=0.0))
    half = split(worker("a", 0, 15, rtt=0.0), worker("b", 15, 30, rtt=0.0))
    alone, two = (PREDICTOR.predict(one).first_token_s for one in (whole, half))
    assert two / alone == pytest.approx((4 + 1) / 8, rel=0.02)
    serial = PREDICTOR.predict(replace(half, pushed=False)).first_token_s
    assert serial == pytest.approx(alone, rel=0.02)


def test_a_device_that_nobody_measured_is_estimated_by_its_bytes() -> None:
    unknown = replace(HEAD, speed=None, weights=10_000_000_000)
    found = PREDICTOR.predict(split(unknown))
    assert 0.5 < found.generate_tok_s < 2 and not found.is_measured
    without_times = replace(unknown, speed=DeviceSpeed(()))
    assert not PREDICTOR.predict(split(without_times, output=HEAD)).is_measured, "it had none when asked"
    half_known = replace(HEAD, speed=DeviceSpeed([TimedLayer(1, 1, 5)]), weights=10_000_000_000)
    assert PREDICTOR.predict(split(half_known)).generate_tok_s == pytest.approx(
        found.generate_tok_s, rel=0.01
    )


def test_layers_of_several_kinds_take_what_each_takes() -> None:
    kinds = tuple(number % 2 for number in range(30))
    times = DeviceSpeed(TimedLayer(kind, 1, (1 + 2 * kind) * MS) for kind in (0, 1, 2))
    mixed = Predictor(MODEL, LayerWork(("15=…", "15=…", "1=…"), kinds, (1.0,) * 29 + (0.5,), output=2))
    some = [replace(HEAD, speed=times, begin=begin, end=end) for begin, end in ((0, 1), (1, 4), (28, 30))]
    assert [mixed.layer_seconds(one) * (one.end - one.begin) for one in some] == pytest.approx(
        [0.001, 0.003 + 0.001 + 0.003, 0.001 + 0.5 * 0.003]
    )


def test_a_load_takes_what_its_largest_part_and_its_farthest_path_take() -> None:
    near, far = worker("a", 0, 15, rtt=0.0), worker("b", 15, 30, rtt=0.1)
    quick = PREDICTOR.predict(split(near)).load_s
    slow = PREDICTOR.predict(split(replace(near, weights=3_000_000_000), far)).load_s
    assert slow - quick == pytest.approx(2.0 + 0.6, rel=0.01)


def test_weights_that_a_node_lacks_cross_its_path_before_the_load() -> None:
    """1.5 GB of 3 are read from a file, and 1.5 GB cross at 100 MB a second."""
    path = DevicePath(0.0, 1e8)
    own = replace(worker("a", 0, 15, rtt=0.0), weights=3_000_000_000, path=path, lacking=0.0)
    half = replace(own, lacking=0.5)
    other = replace(worker("b", 15, 30, rtt=0.0), weights=1_000_000_000, path=path, lacking=1.0)
    here, sent = PREDICTOR.predict(split(own)), PREDICTOR.predict(split(half))
    assert here.load_bytes == 0 and sent.load_bytes == 1_500_000_000
    assert sent.load_s - here.load_s == pytest.approx(15.0 - 1.0, rel=0.01)
    both = PREDICTOR.predict(split(half, other))
    assert both.load_s - sent.load_s == pytest.approx(10.0, rel=0.01), "one after the other"
    assert PREDICTOR.predict(split(replace(own, lacking=None))).load_bytes is None, "nobody knows"
    assert PREDICTOR.predict(split(replace(own, lacking=None))).load_s == here.load_s


def test_cpus_of_one_machine_share_a_prompt_and_gain_nothing() -> None:
    near = [worker(name, 15 * i, 15 * i + 15, rtt=0.0) for i, name in enumerate("ab")]
    together = [replace(one, machine="m") for one in near]

    def prompt(*stages: PlannedStage) -> float:
        return PREDICTOR.predict(split(*stages)).first_token_s

    whole = prompt(replace(near[0], end=30))
    assert prompt(*near) < 0.7 * whole
    assert whole <= prompt(*together) < 1.1 * whole
    apart = [replace(one, speed=speed(0.2, cores=cores)) for one, cores in zip(together, "ab", strict=True)]
    assert prompt(*apart) == pytest.approx(prompt(*near)), "they are confined to other processors"
    assert token(split(*together)) == token(split(*near)), "one token is on one machine at a time anyway"


def test_cpus_that_leave_processors_to_each_other_compute_beside_each_other() -> None:
    near = [worker(name, 15 * i, 15 * i + 15, rtt=0.0) for i, name in enumerate("ab")]

    def prompt(share: float, *stages: PlannedStage) -> float:
        here = [replace(one, machine="m", speed=speed(0.2, share=share)) for one in stages]
        return PREDICTOR.predict(split(*here)).first_token_s

    apart = PREDICTOR.predict(split(*near)).first_token_s
    assert prompt(0.25, *near) == prompt(0.5, *near) == apart
    assert apart < prompt(0.75, *near) < prompt(1.0, *near)


def test_cards_of_one_machine_compute_beside_each_other() -> None:
    near = [replace(worker(name, 15 * i, 15 * i + 15, rtt=0.0), is_gpu=True) for i, name in enumerate("ab")]
    together = [replace(one, machine="m") for one in near]
    assert PREDICTOR.predict(split(*together)) == PREDICTOR.predict(split(*near))
    mixed = [replace(together[0], is_gpu=False), together[1]]
    assert PREDICTOR.predict(split(*mixed)) == PREDICTOR.predict(split(*near))


def seconds_of(parts: Sequence[PredictedPart]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        name = part.device or "-".join(part.ends or ("rest",))
        found[name] = found.get(name, 0.0) + part.seconds
    return found


def test_a_token_is_the_sum_of_devices_paths_and_a_rest() -> None:
    pair = split(worker("b", 0, 15, rtt=0.02), worker("a", 15, 30, rtt=0.04))
    pair = replace(pair, paths={("b", "a"): DevicePath(0.01, 1e12)})
    found = seconds_of(PREDICTOR.token_parts(pair))
    assert found == {
        "b CPU": pytest.approx(0.003),
        "a CPU": pytest.approx(0.003),
        "head CPU": pytest.approx(0.002),
        "-b": pytest.approx(0.01 + HOP_SECONDS),
        "a-b": pytest.approx(0.005 + HOP_SECONDS),
        # back, and the wait for its order: 20 ms, less those of the way to it
        "-a": pytest.approx(0.02 + HOP_SECONDS + 0.02 - 0.01 - 0.003 - 0.005 - HOP_SECONDS),
        "rest": STEP_SECONDS,
    }
    assert sum(found.values()) == pytest.approx(token(pair))
    served = seconds_of(PREDICTOR.token_parts(replace(pair, pushed=False)))
    assert served["-a"] == pytest.approx(0.04 + 2 * HOP_SECONDS) and "a-b" not in served


@pytest.mark.parametrize("pushed", [True, False])
def test_a_prompt_repeats_what_takes_longest(pushed: bool) -> None:
    slow = worker("b", 15, 30, rtt=0.02, layer_ms=0.3)
    pair = split(worker("a", 0, 15, rtt=0.02), slow, pushed=pushed)
    found = seconds_of(PREDICTOR.prompt_parts(pair))
    assert sum(found.values()) == pytest.approx(PREDICTOR.predict(pair).first_token_s)
    once = 128 * 15 * 0.0001
    assert found["b CPU"] == pytest.approx(4 * 3 * once)
    assert found["a CPU"] == pytest.approx((1 if pushed else 4) * 2 * once)


def outcome(tok_s: float, **seconds: float) -> PlanOutcome:
    prediction = replace(PREDICTOR.predict(split(HEAD)), generate_tok_s=tok_s, prompt_tok_s=123.456)
    return PlanOutcome(
        prediction, 1.0, tuple(PartSeconds(name, token, 0.0) for name, token in seconds.items())
    )


def test_what_changed_since_is_what_takes_a_hundredth_of_a_token_more_or_less() -> None:
    before = outcome(10.0, a=0.050, b=0.030, gone=0.020)
    now = outcome(8.0, a=0.0509, b=0.0311, new=0.0011, slight=0.0009)
    assert now.changes_since(before) == (ChangedPart("b", 0.0311, 0.030), ChangedPart("new", 0.0011, 0.0))
    less = outcome(8.0, a=0.0491, b=0.0289)
    assert less.changes_since(before) == (ChangedPart("b", 0.0289, 0.030),)
    assert before.changes_since(before) == ()
    assert outcome(10.004, a=0.1).speeds == Speeds(123.46, 10.0)
