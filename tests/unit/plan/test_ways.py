"""Test when a split by tensors is advised: never where it is slower, and only where all was measured.

Machines and cables are those of the design's table, from public figures; the seconds of its formula are
computed here anew, by other code than meshd's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest
from meshd.model.cache import LayerCache, ModelCache
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers, Widths
from meshd.model.output import DevicePath
from meshd.plan.choose_split import SplitChoice, advise, choose_split, plan_model
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.reasons import ComputeTogether
from meshd.plan.two_ways import OneWay, TwoWays, WayAdvice, WayRates
from meshd.plan.ways import WaysFound, compare_ways
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice, WorkerOffer

from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.split_scene import GIB, split_model

OPTIONS = replace(PLAIN, split="auto", devices=("none",), is_local=True, machine="m of head")
G1, G2_5, G10 = DevicePath(0.0002, 117e6), DevicePath(0.0002, 292e6), DevicePath(0.00005, 1170e6)
WIFI, INTERNET = DevicePath(0.003, 40e6), DevicePath(0.02, 12e6)


@dataclass(frozen=True, slots=True)
class Kind:
    """`rate`: bytes of weights a second; `fixed`: seconds a layer, whatever is divided."""

    rate: float
    fixed: float
    software: float
    is_gpu: bool = False


MINI_PC, MAC, RTX = Kind(70e9, 15e-6, 70e-6), Kind(300e9, 60e-6, 50e-6, True), Kind(720e9, 50e-6, 40e-6, True)


@dataclass(frozen=True, slots=True)
class Model:
    """`active`: bytes that a token reads; `prompt`: tokens of a prompt a second, by the rate of a machine."""

    layers: int
    width: int
    active: float
    vocabulary: int
    prompt: Mapping[float, float]


MODEL_8B = Model(32, 4096, 4.7e9, 128_256, {70e9: 75, 300e9: 600, 720e9: 4000})
MODEL_32B = Model(64, 5120, 19.8e9, 151_936, {70e9: 18, 300e9: 140, 720e9: 1050})
MODEL_70B = Model(80, 8192, 42.0e9, 128_256, {70e9: 8, 300e9: 65, 720e9: 480})
SMALL = Model(28, 1024, 0.6e9, 151_936, {70e9: 600})
MOE = Model(48, 2048, 1.6e9, 151_936, {70e9: 110})


def by_formula(model: Model, kind: Kind, path: DevicePath) -> tuple[float, float]:
    """Return the seconds of 2000 + 500 tokens by layers and by tensors over two, as the design has it."""
    rate = path.rate or 0.0
    sums = 2 * model.layers
    fixed, weights = model.layers * kind.fixed, model.active / kind.rate
    layers = fixed + weights + path.rtt
    row = 4 * model.width / rate
    tensors = fixed + weights / 2 + sums * (path.rtt / 2 + row + kind.software) + path.rtt
    tensors += 2 * model.vocabulary / rate
    prompt = model.prompt[kind.rate]
    token = 1 / (1.8 * prompt) + sums * (row + (path.rtt / 2 + kind.software) / 512)
    return 2000 / (1.6 * prompt) + 500 * layers, 2000 * token + 500 * tensors


def speed(model: Model, kind: Kind, slower: float = 1.0) -> DeviceSpeed:
    output = 0.03  # of the weights
    token = slower * (kind.fixed + (1 - output) * model.active / kind.rate / model.layers)
    made = slower * output * model.active / kind.rate
    of_prompt = slower / model.prompt[kind.rate] / model.layers
    points = {tokens: max(token, tokens * of_prompt if tokens > 1 else 0.0) for tokens in (1, 128, 512)}
    return DeviceSpeed(
        [
            *(TimedLayer(0, tokens, int(1e9 * seconds)) for tokens, seconds in points.items()),
            TimedLayer(1, 1, int(1e9 * made)),
        ]
    )


def sizes(model: Model, architecture: str = "llama") -> ModelLayers:
    return replace(
        split_model(layers=model.layers, layer_bytes=int(0.97 * model.active / model.layers), tied=False),
        architecture=architecture,
        output=int(0.03 * model.active),
        cache=ModelCache((LayerCache(key=1024, value=1024),) * model.layers, exact=True),
        widths=Widths(
            model.width,
            4 * model.width,
            model.width // 128,
            4 * model.width,
            0,
            0,
            model.vocabulary,
            kv_heads=8,
        ),
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """Workers of one kind, on one network; `slower`: each as so many times slow."""

    model: Model
    kind: Kind
    path: DevicePath
    slower: tuple[float, ...] = (1.0, 1.0)
    options: HeadOptions = OPTIONS
    architecture: str = "llama"
    between: DevicePath | None = None
    seals: bool = False
    one_machine: bool = False
    unmeasured: Sequence[str] = ()
    own: float = 0.0  # how many times as slow the head is; 0: it computes nothing

    @property
    def layers(self) -> ModelLayers:
        return sizes(self.model, self.architecture)

    @property
    def work(self) -> LayerWork:
        count = self.model.layers
        return LayerWork((f"{count}=…", "1=…"), (0,) * count, (1.0,) * count, output=1)

    @property
    def machines(self) -> Machines:
        memory = 80 * GIB
        name, kind = ("GPU0", "gpu") if self.kind.is_gpu else ("CPU", "cpu")
        lent = OfferedDevice(name, "gpu" if kind == "gpu" else "cpu", "", memory, memory)
        nodes = "abcde"[: len(self.slower)]
        offers = [
            NodeOffer(
                node,
                WorkerOffer((lent,), False, "one" if self.one_machine else f"m of {node}", bytes(16)),
                self.path,
            )
            for node in nodes
        ]
        speeds = {
            (node, name): speed(self.model, self.kind, slower)
            for node, slower in zip(nodes, self.slower, strict=True)
            if node not in self.unmeasured
        }
        speeds["head", "CPU"] = speed(self.model, self.kind, self.own or 100.0)
        between = replace(self.between or self.path, seals=self.seals)
        paths = dict.fromkeys(permutations(nodes, 2), between)
        own = OfferedDevice("CPU", "cpu", "", memory, memory)
        return Machines(tuple(offers), (own,), speeds, paths)

    @property
    def chosen(self) -> list[SplitChoice]:
        options = replace(self.options, devices=()) if self.own else self.options
        return choose_split(self.layers, self.work, self.machines, options)

    def compared(self, *, drafts: bool = False) -> WaysFound | OneWay | None:
        plans = [choice.plan for choice in self.chosen]
        return compare_ways(self.layers, self.work, self.machines, self.options, plans, drafts=drafts)

    def ways(self) -> TwoWays:
        found = self.compared()
        assert isinstance(found, WaysFound)
        return found.ways


SCENES: Mapping[str, tuple[Scene, WayAdvice]] = {
    "mini PCs, 8B, Gigabit": (Scene(MODEL_8B, MINI_PC, G1), WayAdvice.SLOWER),
    "mini PCs, 8B, 2.5 GbE": (Scene(MODEL_8B, MINI_PC, G2_5), WayAdvice.SLOWER),
    "mini PCs, 8B, 10 GbE": (Scene(MODEL_8B, MINI_PC, G10), WayAdvice.WORTH),
    "mini PCs, 70B, Gigabit": (Scene(MODEL_70B, MINI_PC, G1), WayAdvice.NO_GAIN),
    "mini PCs, 70B, 2.5 GbE": (Scene(MODEL_70B, MINI_PC, G2_5), WayAdvice.WORTH),
    "mini PCs, 32B, Wi-Fi": (Scene(MODEL_32B, MINI_PC, WIFI), WayAdvice.FAR),
    "mini PCs, 70B, Internet": (Scene(MODEL_70B, MINI_PC, INTERNET), WayAdvice.FAR),
    "Macs, 70B, 10 GbE": (Scene(MODEL_70B, MAC, G10), WayAdvice.NO_GAIN),
    "Macs, 8B, Gigabit": (Scene(MODEL_8B, MAC, G1), WayAdvice.SLOWER),
    "GPUs, 32B, Gigabit": (Scene(MODEL_32B, RTX, G1), WayAdvice.SLOWER),
    "GPUs, 8B, 10 GbE": (Scene(MODEL_8B, RTX, G10), WayAdvice.SLOWER),
    "GPUs of one host, 8B": (
        Scene(MODEL_8B, RTX, DevicePath(0.00005, 2.5e9), one_machine=True),
        WayAdvice.SLOWER,
    ),
    "small model, Gigabit": (Scene(SMALL, MINI_PC, G1), WayAdvice.SLOWER),
    "small model, 10 GbE": (Scene(SMALL, MINI_PC, G10), WayAdvice.SLOWER),
    "MoE, Gigabit": (Scene(MOE, MINI_PC, G1), WayAdvice.SLOWER),
}
"""Two equal workers, of which the formula speaks. It leaves out daemons, so it promises somewhat more."""


@pytest.mark.parametrize("name", SCENES)
def test_it_is_advised_where_a_conversation_is_clearly_faster_and_never_where_it_is_slower(name: str) -> None:
    scene, advice = SCENES[name]
    layers_s, tensors_s = by_formula(scene.model, scene.kind, scene.path)
    found = scene.ways()
    assert found.advice is advice, f"{found}; {layers_s:.1f} and {tensors_s:.1f} s by the formula"
    if advice is WayAdvice.WORTH:
        assert tensors_s < layers_s, "by the formula as well"
    if tensors_s > layers_s:
        assert advice in (WayAdvice.SLOWER, WayAdvice.FAR)
    assert found.tensors.seconds > 0.85 * tensors_s, "it promises no more"


FAST = Scene(MODEL_70B, MINI_PC, G10)


def _demanded(scene: Scene, least: int) -> TwoWays:
    plans = [choice.plan for choice in scene.chosen]
    found = compare_ways(
        scene.layers, scene.work, scene.machines, scene.options, plans, drafts=False, least=least
    )
    assert isinstance(found, WaysFound)
    return found.ways


def test_a_third_worker_has_to_be_worth_more_than_predictions_of_three_were_wrong() -> None:
    """Prompts of three were once predicted 22 % too fast."""
    two = FAST.ways()
    third, slow, slower = (replace(FAST, slower=(1.0, 1.0, times)) for times in (1.0, 1.5, 3.0))
    assert third.ways().nodes == ("a", "b", "c")
    assert slow.ways().nodes == ("a", "b"), "both are enough"
    demanded = _demanded(slow, 3)
    assert demanded.nodes == ("a", "b", "c") and demanded.tensors.seconds < two.tensors.seconds
    assert demanded.advice is WayAdvice.WORTH
    unsure = _demanded(slower, 3)
    assert unsure.advice is WayAdvice.UNSURE and unsure.tensors.seconds < 0.85 * unsure.layers.seconds


def test_a_worker_that_holds_the_others_up_is_left_out() -> None:
    slow = replace(FAST, slower=(1.0, 1.0, 30.0))
    assert slow.ways().nodes == ("a", "b")
    found = slow.compared()
    assert isinstance(found, WaysFound) and not found.all_workers


def test_unequal_workers_are_worth_it_as_long_as_the_fast_one_alone_is_not_as_fast() -> None:
    half, slow = (replace(FAST, slower=(1.0, slower)).ways() for slower in (2.0, 20.0))
    assert half.advice is WayAdvice.WORTH and half.tensors.tok_s > 1.2 * half.layers.tok_s
    assert slow.advice in (WayAdvice.NO_GAIN, WayAdvice.SLOWER)


def test_a_head_that_is_faster_alone_is_not_split() -> None:
    found = replace(FAST, own=0.3).ways()
    assert found.advice is WayAdvice.SLOWER and found.layers.tok_s > found.tensors.tok_s


@pytest.mark.parametrize(
    "scene",
    [
        replace(FAST, unmeasured=("b",)),
        replace(FAST, path=DevicePath(0.00005), between=DevicePath(0.00005)),
        replace(FAST, path=DevicePath(0.002, 1170e6), between=DevicePath(0.00005)),
    ],
)
def test_what_was_not_measured_is_not_relied_on(scene: Scene) -> None:
    assert scene.ways().advice is WayAdvice.UNMEASURED


def test_a_short_round_trip_over_wifi_is_no_cable() -> None:
    assert G1.rtt < 0.001
    ways = replace(FAST, between=replace(G1, is_wireless=True)).ways()
    assert ways.advice is WayAdvice.WIRELESS and ways.on_cable is None
    assert replace(FAST, between=G1).ways().on_cable is not None


def test_of_three_those_on_a_cable_are_advised_though_one_on_wifi_is_faster() -> None:
    scene = replace(FAST, slower=(1.0, 1.2, 1.0))
    assert "c" in scene.ways().nodes
    there = scene.machines
    paths = {ends: replace(path, is_wireless=ends[0] == "c") for ends, path in there.paths.items()}
    plans = [choice.plan for choice in scene.chosen]
    found = compare_ways(
        scene.layers, scene.work, replace(there, paths=paths), scene.options, plans, drafts=False
    )
    assert isinstance(found, WaysFound)
    assert (found.ways.nodes, found.ways.advice) == (("a", "b"), WayAdvice.WORTH)


def test_drafts_may_gain_as_much() -> None:
    found = FAST.compared(drafts=True)
    assert isinstance(found, WaysFound) and found.ways.advice is WayAdvice.DRAFTS


def test_why_there_is_no_such_split() -> None:
    assert str(replace(FAST, architecture="mamba").compared()) == (
        "not by tensors: models of the architecture `mamba` have not been tried"
    )
    alone = str(replace(FAST, slower=(1.0,)).compared())
    assert alone == "not by tensors: it takes two to four workers, each with one device; there is 1 device"
    nobody = replace(FAST.machines, offers=())
    plans = [choice.plan for choice in FAST.chosen]
    assert compare_ways(FAST.layers, FAST.work, nobody, OPTIONS, plans, drafts=False) is None


def test_the_words() -> None:
    rates = WayRates(tok_s=9.1, seconds=51.2), WayRates(tok_s=14.8, seconds=40.0)
    ways = TwoWays(
        nodes=("a", "b"),
        layers=rates[0],
        tensors=rates[1],
        prompt=2000,
        answer=500,
        pair=(0.0002, 117e6),
        on_cable=17.0,
        advice=WayAdvice.WORTH,
    )
    assert str(ways) == (
        "by layers 9.1, by tensors over `a` and `b` 14.8 tok/s (0.20 ms, 117 MB/s between workers; on a 10 "
        "GbE cable 17.0); a prompt of 2000 tokens and an answer of 500 take 51.2 s by "
        "layers and 40.0 s by tensors: "
        "`--split tensor` is worth it"
    )
    local = replace(ways, pair=None, on_cable=None)
    assert "14.8 tok/s (on one machine); a prompt" in str(local)
    assert "(0.20 ms, unknown rate between workers;" in str(replace(ways, pair=(0.0002, None)))


def test_a_faster_cable_is_named_where_it_changes_something() -> None:
    slow, fast = replace(FAST, path=G1).ways(), FAST.ways()
    assert slow.on_cable is not None and slow.on_cable > slow.tensors.tok_s
    assert fast.on_cable is None and replace(FAST, path=WIFI).ways().on_cable is None


def test_why_advises_it_for_a_model_that_runs_by_layers() -> None:
    def found(scene: Scene) -> object:
        there, options = scene.machines, scene.options
        plan = plan_model(scene.layers, scene.work, there, options).plan
        return advise(scene.layers, scene.work, there, options, plan).change

    assert found(FAST) == ComputeTogether(("a", "b"), all_workers=True)
    assert not isinstance(found(replace(FAST, path=G1)), ComputeTogether)
