"""Which machines a model runs on: the fastest, as few as are worth it, and never more than fits."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

import pytest
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.output import DevicePath
from meshd.plan.choose_split import SplitChoice, choose_split
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.reasons import AsGiven, SplitComparison
from meshd.plan.split import NotEnoughMemory
from meshd.plan.wishes import DraftModel
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice, WorkerOffer

from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.split_scene import GIB, split_model

MODEL = split_model(layer_bytes=100_000_000)  # 3 GB
WORK = LayerWork(("30=…", "1=…"), (0,) * 30, (1.0,) * 30, output=1)
OPTIONS = replace(PLAIN, machine="m of head")
NEAR = 0.0005


def speed(layer_ms: float) -> DeviceSpeed:
    """A prompt's token takes a fifth of one that is alone."""
    return DeviceSpeed(
        TimedLayer(kind, tokens, int(1e6 * layer_ms * max(1, tokens / 5)))
        for kind in (0, 1)
        for tokens in (1, 128)
    )


def device(free: float, name: str = "CPU") -> OfferedDevice:
    return OfferedDevice(name, "cpu" if name == "CPU" else "gpu", "", int(free * GIB), int(free * GIB))


def offer(node: str, free: float, rtt: float = NEAR) -> NodeOffer:
    given = WorkerOffer((device(free),), False, f"m of {node}", bytes(16))
    return NodeOffer(node, given, DevicePath(rtt, 1e9))


def machines(
    workers: Sequence[NodeOffer],
    layer_ms: Mapping[str, float],
    *,
    own: float = 64.0,
    paths: Mapping[tuple[str, str], DevicePath] | None = None,
) -> Machines:
    speeds = {(node, "CPU"): speed(ms) for node, ms in layer_ms.items()}
    return Machines(tuple(workers), (device(own),), speeds, paths or {})


def layers_of(choice: SplitChoice) -> dict[str, int]:
    return {share.device.node: share.layers for share in choice.plan.shares if share.layers}


def test_a_model_that_fits_on_the_fastest_machine_is_not_split() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 2.0, "a": 1.0, "b": 2.0})
    choices = choose_split(MODEL, WORK, there, OPTIONS)
    assert layers_of(choices[0]) == {"a": 30}
    given = {one for choice in choices for one in choice.plan.reasons if isinstance(one, AsGiven)}
    assert given == {AsGiven(by_user=False)}, "nobody gave a tensor split"
    comparison = choices[0].comparison
    assert comparison is not None and comparison.chosen.nodes == ("a",) and comparison.faster is None
    assert comparison.other is not None and comparison.other.nodes == ("b", "a")
    assert comparison.times(comparison.other) == pytest.approx(1.04, abs=0.005)
    assert any(len(layers_of(one)) > 1 for one in choices[1:]), "what a split would do is there to see"


def test_the_head_alone_where_it_is_as_fast_and_nobody_must_take_part() -> None:
    there = machines([offer("a", 16, rtt=0.05)], {"head": 1.0, "a": 1.0})
    assert layers_of(choose_split(MODEL, WORK, there, OPTIONS)[0]) == {"head": 30}
    assert "a" in layers_of(choose_split(MODEL, WORK, there, OPTIONS, least=1)[0])


def test_a_faster_set_that_the_user_has_ruled_out_is_named() -> None:
    def compared(layer_ms: float, least: int) -> SplitComparison:
        there = machines([offer(x, 16, layer_ms / 100) for x in "ab"], {"head": 1.0, "a": layer_ms, "b": 9.0})
        found = choose_split(MODEL, WORK, there, OPTIONS, least=least)[0].comparison
        assert found is not None
        return found

    one, two = compared(2.0, 1), compared(2.0, 2)
    assert one.faster is not None and one.faster.nodes == ("head",) and one.least == 1
    assert one.chosen.nodes == ("head", "a") and one.times(one.faster) == pytest.approx(0.66, abs=0.005)
    assert two.faster is not None and two.least == 2
    assert two.faster.nodes == ("head",), "the fastest, not the next"
    assert compared(2.0, 0).faster is None, "nothing is ruled out"
    assert compared(0.5, 1).faster is None, "it is not faster"


def test_what_fits_on_no_machine_is_split_with_most_on_the_fastest() -> None:
    there = machines([offer("a", 2.5), offer("b", 2.5)], {"head": 9.0, "a": 1.0, "b": 2.0}, own=1.0)
    choice = choose_split(MODEL, WORK, there, OPTIONS)[0]
    found = layers_of(choice)
    assert set(found) == {"a", "b"} and sum(found.values()) == 30 and found["a"] > found["b"]
    compared = choice.comparison
    assert compared is not None and len(compared.chosen.nodes) > 1
    assert compared.other is None, "it fits on no single machine"


def test_workers_that_are_near_each_other_follow_each_other() -> None:
    """The path between workers counts, and not only theirs to the head."""
    far, near = DevicePath(0.08, 1e9), DevicePath(0.001, 1e9)
    paths = {
        (x, y): near if {x, y} in ({"a", "c"}, {"c", "b"}) else far for x in "abc" for y in "abc" if x != y
    }
    there = machines(
        [offer(node, 1.9, rtt=0.02) for node in "abc"],
        {"head": 9.0, "a": 1.0, "b": 1.0, "c": 1.0},
        own=1.0,
        paths=paths,
    )
    order = [node for node in choose_split(MODEL, WORK, there, OPTIONS)[0].plan.nodes if node != "head"]
    assert order[1] == "c"


def test_one_that_is_near_is_looked_at_however_many_faster_ones_are_far() -> None:
    far = [offer(node, 4, rtt=0.15) for node in "abcdef"]
    speeds = {"head": 9.0, **dict.fromkeys("abcdef", 1.0), "near": 1.1}
    choice = choose_split(MODEL, WORK, machines([*far, offer("near", 4)], speeds, own=1.0), OPTIONS)[0]
    assert layers_of(choice) == {"near": 30} and choice.seconds < 13


def on_a_plane(names: str, free: float, seed: int) -> Machines:
    """With round trips of up to 140 ms."""
    chance = Random(seed)
    at = {node: (chance.random(), chance.random()) for node in ["head", *names]}

    def rtt(a: str, b: str) -> float:
        return float(0.001 + 0.1 * ((at[a][0] - at[b][0]) ** 2 + (at[a][1] - at[b][1]) ** 2) ** 0.5)

    paths = {(a, b): DevicePath(rtt(a, b), 1e9) for a in names for b in names if a != b}
    workers = [offer(node, free, rtt=rtt("head", node)) for node in names]
    return machines(workers, {"head": 9.0, **dict.fromkeys(names, 1.0)}, own=0.5, paths=paths)


@pytest.mark.parametrize(("names", "free", "seeds"), [("abcd", 0.95, 12), ("abcde", 0.8, 3)])
def test_no_order_of_all_that_are_needed_is_clearly_faster(names: str, free: float, seeds: int) -> None:
    """Test many places: by their nearest next alone 16 of 60 were more than 5 % slower than the best."""
    for seed in range(seeds):
        there = on_a_plane(names, free, seed)
        choice = choose_split(MODEL, WORK, there, OPTIONS)[0]
        counts = layers_of(choice)
        best = choice.seconds
        for order in permutations([one for one in there.offers if one.node in counts]):
            given = [float(counts[one.node]) for one in order] + [float(counts.get("head", 0))]
            fixed = replace(OPTIONS, tensor_split=tuple(given), counts_chosen=True)
            with suppress(NotEnoughMemory):
                found = choose_split(MODEL, WORK, replace(there, offers=tuple(order)), fixed)[0]
                best = min(best, found.seconds)
        assert len(counts) >= len(names) and choice.seconds <= 1.05 * best


def test_more_than_six_follow_each_other_site_by_site() -> None:
    """Eight at two sites 100 ms apart, seven of them needed; by their names a token would go to and fro."""
    names, here = "abcdefgh", "aceg"
    far, near = DevicePath(0.1, 1e9), DevicePath(NEAR, 1e9)
    paths = {(a, b): near if (a in here) == (b in here) else far for a in names for b in names if a != b}
    workers = [offer(node, 0.56, rtt=NEAR if node in here else 0.1) for node in names]
    there = machines(workers, {"head": 9.0, **dict.fromkeys(names, 1.0)}, own=0.5, paths=paths)
    choice = choose_split(MODEL, WORK, there, OPTIONS)[0]
    sites = [node in here for node in choice.plan.nodes if node != "head"]
    assert len(sites) >= 7 and sum(a != b for a, b in pairwise(sites)) == 1
    assert choice.seconds < 40, "by their names it is 122 s"


def test_of_many_workers_those_are_used_that_are_worth_it() -> None:
    """Sixteen of which ten are needed: all of them by memory take more than three times as long."""
    there = on_a_plane("abcdefghijklmnop", 0.45, 1)
    choices = choose_split(MODEL, WORK, there, OPTIONS)
    assert choices[0].seconds < 55 and len(choices[0].plan.nodes) < 14
    assert max(len(one.plan.nodes) for one in choices) > 6


def of_three_speeds(there: Machines, seed: int, rooms: Sequence[float] = ()) -> Machines:
    chance = Random(seed)
    speeds = {(one.node, "CPU"): speed(chance.choice([0.3, 1.0, 3.0])) for one in there.offers}
    offers = there.offers
    if rooms:
        free = {one.node: device(chance.choice(rooms)) for one in offers}
        offers = tuple(
            replace(one, offer=replace(one.offer, devices=(free[one.node],))) for one in there.offers
        )
    return replace(there, offers=offers, speeds={**there.speeds, **speeds})


@pytest.mark.parametrize(
    ("count", "free", "seed", "rooms", "seconds"),
    [
        (10, 0.7, 10, (), 30.0),  # a search around several places finds 26.1
        (10, 0.7, 13, (), 42.6),  # 35.3
        (10, 1.0, 10, (), 23.5),  # 20.2
        (24, 0.5, 5, (0.3, 0.6, 1.2), 34.8),  # 31.9
    ],
)
def test_a_good_set_of_many_is_found_wherever_they_are(
    count: int, free: float, seed: int, rooms: Sequence[float], seconds: float
) -> None:
    """The plan over all of them, by memory, takes 58 s for the first."""
    names = "abcdefghijklmnopqrstuvwx"[:count]
    there = of_three_speeds(on_a_plane(names, free, seed), seed, rooms)
    assert choose_split(MODEL, WORK, there, OPTIONS)[0].seconds < seconds


def test_a_device_that_holds_no_layer_keeps_its_worker_from_nothing() -> None:
    full = WorkerOffer((device(0.01), device(16, "CUDA0")), False, "m of a", bytes(16))
    workers = [NodeOffer("a", full, DevicePath(NEAR, 1e9)), offer("b", 16)]
    there = machines(workers, {"head": 9.0, "a": 1.0, "b": 5.0}, own=0.5)
    there = replace(there, speeds={**there.speeds, ("a", "CUDA0"): speed(0.1)})
    choice = choose_split(MODEL, WORK, there, OPTIONS)[0]
    held = {share.device.label: share.layers for share in choice.plan.shares if share.layers}
    assert held == {"a CUDA0": 30}


def test_what_the_user_says_of_the_split_stays() -> None:
    there = machines([offer("a", 16)], {"head": 9.0, "a": 1.0})
    options = replace(PLAIN, tensor_split=(10.0, 20.0))
    (only,) = choose_split(MODEL, WORK, there, options)
    assert layers_of(only) == {"head": 20, "a": 10}
    assert only.plan.reasons[0] == AsGiven(by_user=True)


def test_layers_stay_off_the_head_where_its_user_says_so() -> None:
    there = machines([offer("a", 16, rtt=0.1)], {"head": 0.1, "a": 5.0})
    options = replace(PLAIN, devices=("none",))
    assert all("head" not in layers_of(one) for one in choose_split(MODEL, WORK, there, options))


def test_a_draft_model_on_the_head_leaves_the_model_less_memory() -> None:
    there = machines([offer("a", 16, rtt=0.05)], {"head": 1.0, "a": 1.0}, own=5.0)
    assert layers_of(choose_split(MODEL, WORK, there, OPTIONS)[0]) == {"head": 30}
    draft = DraftModel("/d.gguf", MODEL)
    drafting = replace(OPTIONS, speculate="auto", draft=draft)
    assert layers_of(choose_split(MODEL, WORK, there, drafting)[0])["a"] > 0


def test_many_workers_are_ranked_and_few_are_planned() -> None:
    names = "abcdefgh"
    there = machines([offer(node, 2) for node in names], {"head": 1.0, **dict.fromkeys(names, 1.0)}, own=1.0)
    choices = choose_split(MODEL, WORK, there, OPTIONS)
    assert 1 <= len(choices) <= 13
    assert sum(layers_of(choices[0]).values()) == 30


def test_the_prediction_is_that_of_the_plan() -> None:
    there = machines([offer("a", 16)], {"head": 9.0, "a": 1.0})
    choice = choose_split(MODEL, WORK, there, replace(OPTIONS, slots=4))[0]
    token = 1 / choice.prediction.generate_tok_s
    assert token == pytest.approx(30 * 0.001 + 0.001 + NEAR, abs=0.002)
    assert (
        choice.prediction.is_measured and choice.prediction.streams_tok_s > choice.prediction.generate_tok_s
    )


def test_a_prompt_is_shared_by_two_machines_and_not_by_two_nodes_of_one() -> None:
    def best(machine: str) -> SplitChoice:
        near = NodeOffer("a", WorkerOffer((device(16),), False, machine, bytes(16)), DevicePath(0.00005, 1e9))
        there = machines([near], {"head": 1.0, "a": 1.0})
        return choose_split(MODEL, WORK, there, OPTIONS)[0]

    apart = best("m of a")
    assert layers_of(apart) == {"head": 15, "a": 15}
    compared = apart.comparison
    assert compared is not None and compared.other is not None and compared.other.nodes == ("head",)
    assert compared.times(compared.other) == pytest.approx(1.10, abs=0.005)
    assert len(layers_of(best("m of head"))) == 1


def test_nodes_of_one_machine_exchange_bytes_past_their_link() -> None:
    """So whatever their links carry, a prompt costs what memory does, unless links are all that is used."""

    def prompts(*, is_loopback: bool, is_local: bool) -> float:
        path = DevicePath(NEAR, 1e6, is_loopback)
        workers = [replace(one, path=path) for one in (offer("a", 16), offer("b", 16))]
        between = {("a", "b"): DevicePath(NEAR, 1e6)}
        there = machines(workers, {"head": 1.0, "a": 1.0, "b": 1.0}, paths=between)
        options = replace(OPTIONS, devices=("none",), is_local=is_local)
        (best, *_) = choose_split(MODEL, WORK, there, options, least=2)
        assert set(layers_of(best)) == {"a", "b"}
        return best.outcome.prediction.prompt_tok_s

    over_links = prompts(is_loopback=False, is_local=True)
    assert prompts(is_loopback=True, is_local=False) == pytest.approx(over_links)
    assert prompts(is_loopback=True, is_local=True) > 1.3 * over_links
