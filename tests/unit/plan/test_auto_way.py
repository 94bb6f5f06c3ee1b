"""Test when `--split auto` is by tensors: where that is advised, and sums go past daemons."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations

import pytest
from meshd.head.speculation import Drafting, Speculation, forecast
from meshd.model.drafts import MOST_FREE
from meshd.model.output import DevicePath
from meshd.plan.auto_way import AutoWay, WhyByLayers
from meshd.plan.choose_split import SplitChoice, advise, both_ways, choose_split, choose_way, plan_model
from meshd.plan.machines import IN_DOUBT, Machines, NodeOffer
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.reasons import NotTogether, TogetherByChoice, brief
from meshd.plan.split import Plan
from meshd.plan.tensor_prediction import LOCAL_PATH
from meshd.plan.two_ways import TwoWays, WayAdvice
from meshd.plan.wishes import HeadOptions, MayDraft

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_ways import (
    FAST,
    G1,
    G10,
    INTERNET,
    MINI_PC,
    MODEL_8B,
    SCENES,
    WIFI,
    Kind,
    Scene,
    by_formula,
    speed,
)

AUTO = AutoWay()
SEALED = replace(FAST, seals=True)
SLOW_GPU = Kind(70e9, 15e-6, 40e-6, is_gpu=True)


def planned(scene: Scene, auto: AutoWay | None = AUTO, machines: Machines | None = None) -> SplitChoice:
    return plan_model(scene.layers, scene.work, machines or scene.machines, scene.options, auto)


def why_not(found: SplitChoice) -> str:
    """Return the reason; empty where nothing was to be said."""
    assert not found.plan.by_tensors
    return "".join(reason.why for reason in found.plan.reasons if isinstance(reason, NotTogether))


@pytest.mark.parametrize("seals", [False, True], ids=["through the daemons", "sealed"])
@pytest.mark.parametrize("name", SCENES)
def test_it_is_never_the_slower_way(name: str, seals: bool) -> None:
    scene, _ = SCENES[name]
    scene = replace(scene, seals=seals)
    layers_s, tensors_s = by_formula(scene.model, scene.kind, scene.path)
    found, advice = planned(scene), scene.ways().advice
    assert found.plan.by_tensors == (seals and advice is WayAdvice.WORTH)
    if found.plan.by_tensors:
        assert tensors_s < layers_s, f"by the formula {layers_s:.1f} and {tensors_s:.1f} s"


def test_some_are_by_tensors() -> None:
    """Else the test above says nothing."""
    worth = [
        name for name, (scene, _) in SCENES.items() if planned(replace(scene, seals=True)).plan.by_tensors
    ]
    assert {"mini PCs, 8B, 10 GbE", "mini PCs, 70B, 2.5 GbE"} <= set(worth)


@pytest.mark.parametrize("workers", [2, 3])
def test_where_it_is_by_tensors_text_that_repeats_is_faster_as_well(workers: int) -> None:
    """Else drafts of repeated tokens, which both ways have, would be a reason against it."""
    compared = 0
    for name, (scene, _) in SCENES.items():
        there = replace(scene, seals=True, slower=(1.0,) * workers)
        found, by_layers = planned(there), planned(there, None)
        if not found.plan.by_tensors:
            continue
        predictor = PlanPredictor(there.layers, there.work, there.machines, there.options)
        rates = []
        for plan in (found.plan, by_layers.plan):
            plan = replace(plan, shape=replace(plan.shape, drafted=MOST_FREE))
            drafting = Drafting(Speculation(MayDraft(free=True)))
            outcome = predictor.predict(plan)
            drafts = forecast(plan, predictor, outcome, drafting, there.layers.weight_bytes, 1.0)
            assert drafts.free > 0
            rates.append(drafts.repetitive_tok_s)
        assert rates[0] > rates[1], name
        compared += 1
    assert compared


def test_the_choice_says_why() -> None:
    found = planned(SEALED)
    reason = found.plan.reasons[0]
    assert isinstance(reason, TogetherByChoice) and reason.seconds <= 0.85 * reason.by_layers
    assert str(reason) == brief(found.plan.reasons)
    assert str(reason).startswith(
        "each layer on `a` and `b`: a prompt of 2000 tokens and an answer of 500 are predicted to take "
    )
    assert "-sm tensor" in " ".join(found.plan.arguments)


def test_who_does_not_help_is_left_out_and_said_so() -> None:
    slow = planned(replace(SEALED, slower=(1.0, 1.0, 30.0)))
    assert slow.plan.nodes == ("a", "b") == tuple(offer.node for offer in slow.offers)
    assert [(left.node, left.device) for left in slow.plan.left_out if left.node != "head"] == [("c", "CPU")]
    assert {offer.node for offer in slow.machines.offers} == {"a", "b", "c"}


def test_a_pair_that_would_go_through_daemons_is_passed_by_for_one_that_seals() -> None:
    there = replace(SEALED, slower=(1.0, 1.2, 1.0)).machines
    paths = {ends: replace(path, seals="c" not in ends) for ends, path in there.paths.items()}
    found = planned(replace(SEALED, slower=(1.0, 1.2, 1.0)), machines=replace(there, paths=paths))
    assert found.plan.nodes == ("a", "b")


def test_a_pair_with_one_worker_on_wifi_is_passed_by_for_one_on_a_cable() -> None:
    there = replace(SEALED, slower=(1.0, 1.2, 1.0)).machines
    paths = {ends: replace(path, is_wireless=ends[0] == "c") for ends, path in there.paths.items()}
    found = planned(replace(SEALED, slower=(1.0, 1.2, 1.0)), machines=replace(there, paths=paths))
    assert found.plan.nodes == ("a", "b")
    paths = {ends: replace(path, is_wireless=ends[0] != "a") for ends, path in there.paths.items()}
    assert why_not(planned(SEALED, machines=replace(there, paths=paths))) == WayAdvice.WIRELESS


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        (FAST, WhyByLayers.DAEMONS),
        (replace(SEALED, one_machine=True), WhyByLayers.ONE_MACHINE),
        (replace(SEALED, path=WIFI), WayAdvice.FAR),
        (replace(SEALED, unmeasured=("b",)), WayAdvice.UNMEASURED),
        (replace(SEALED, path=DevicePath(0.00005), between=DevicePath(0.00005)), WayAdvice.UNMEASURED),
        (replace(SEALED, slower=(1.0, 20.0)), WayAdvice.SLOWER),
        (replace(SEALED, architecture="mamba"), "models of the architecture `mamba` have not been tried"),
    ],
)
def test_it_stays_by_layers_and_says_why(scene: Scene, why: str) -> None:
    assert why_not(planned(scene)) == why


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"min_workers": 5}, WhyByLayers.MORE_WORKERS),
        ({"mmproj": "projector.gguf"}, WhyByLayers.IMAGES),
        ({"no_push": True}, "the workers have to reach each other, and `no_push` is set"),
        ({"llama_args": ("-fa", "off")}, "it needs flash attention, and `-fa off` is given"),
        ({"llama_args": ("--spec-type", "ngram")}, WayAdvice.DRAFTS),
        ({"split": "layers"}, ""),
        ({"split": "always"}, ""),
        ({"tensor_split": (1.0, 1.0)}, ""),
    ],
)
def test_what_the_user_wants_comes_first(changed: Mapping[str, object], why: str) -> None:
    options: HeadOptions = replace(SEALED.options, **changed)  # type: ignore[arg-type]
    workers = 5 if "min_workers" in changed else 2
    assert why_not(planned(replace(SEALED, slower=(1.0,) * workers, options=options))) == why


def test_a_draft_model_keeps_it_by_layers_and_is_asked_of_what_would_run() -> None:
    asked: list[tuple[bool, bool]] = []

    def drafts(plan: Plan, rounds: object) -> bool:
        asked.append((plan.by_tensors, rounds is None))
        return True

    found = planned(SEALED, AutoWay(drafts))
    assert why_not(found) == WayAdvice.DRAFTS and asked == [(False, False)]


def test_a_failure_keeps_it_by_layers() -> None:
    assert why_not(planned(SEALED, AutoWay(failed="it ended"))) == "it ended"


def test_nothing_is_decided_where_nobody_asks_or_there_is_nobody() -> None:
    assert why_not(planned(SEALED, None)) == ""
    assert why_not(planned(replace(SEALED, slower=(1.0,)))) == ""


def test_a_pair_that_is_kept_apart_is_passed_by() -> None:
    three = replace(SEALED, slower=(1.0,) * 3)
    apart = replace(three.machines, apart={frozenset(("a", "b")): IN_DOUBT})
    assert planned(three, machines=apart).plan.nodes == ("a", "c")
    two = replace(SEALED.machines, apart=apart.apart)
    assert "do not exchange data directly" in why_not(planned(SEALED, machines=two))


@pytest.mark.parametrize(
    ("machine", "why"), [("", WhyByLayers.UNKNOWN_MACHINE), ("m of a", WhyByLayers.ONE_MACHINE)]
)
def test_processors_have_to_be_those_of_machines_known_to_be_others(machine: str, why: str) -> None:
    first, second = SEALED.machines.offers
    other = replace(second, offer=replace(second.offer, machine=machine))
    found = planned(SEALED, machines=replace(SEALED.machines, offers=(first, other)))
    assert why_not(found) == why


# Workers that are fast, but of no use.


def among(others: int, path: DevicePath, lent: int = 80 * GIB) -> SplitChoice:
    """Plan with two that seal, and others, a bit faster, that have this path and lend so many bytes."""
    nodes = [f"n{number}" for number in range(others)]
    there = SEALED.machines
    first = there.offers[0]
    device = replace(first.devices[0], free_bytes=lent)
    offers = [
        NodeOffer(node, replace(first.offer, machine=f"m of {node}", devices=(device,)), path)
        for node in nodes
    ]
    speeds = {(node, "CPU"): speed(SEALED.model, SEALED.kind, 0.99) for node in nodes}
    paths = {**dict.fromkeys(permutations(["a", "b", *nodes], 2), path), **there.paths}
    machines = replace(there, offers=(*there.offers, *offers), speeds={**there.speeds, **speeds}, paths=paths)
    return planned(SEALED, machines=machines)


def test_fast_workers_that_are_far_crowd_nobody_out() -> None:
    found = among(6, INTERNET)
    assert found.plan.by_tensors and found.plan.nodes == ("a", "b")


@pytest.mark.parametrize("path", [G10, replace(G10, seals=True)], ids=["unsealed", "sealed"])
@pytest.mark.parametrize("lent", [1, 1 << 30])
def test_fast_workers_without_memory_crowd_nobody_out(path: DevicePath, lent: int) -> None:
    found = among(6, path, lent)
    assert found.plan.by_tensors and found.plan.nodes == ("a", "b")


def test_of_fast_workers_that_cannot_seal_none_takes_a_place() -> None:
    """By layers over all of them a prompt is as fast; that is the reason, then."""
    assert among(3, G10).plan.by_tensors and why_not(among(6, G10)) == WayAdvice.NO_GAIN


def test_without_memory_for_it_the_reason_says_so() -> None:
    there = SEALED.machines
    offers = tuple(
        replace(
            offer,
            offer=replace(offer.offer, devices=tuple(replace(d, free_bytes=GIB) for d in offer.devices)),
        )
        for offer in there.offers
    )
    own = (replace(there.own[0], free_bytes=80 * GIB),)
    scene = replace(SEALED, options=replace(SEALED.options, devices=()))
    why = why_not(planned(scene, machines=replace(there, offers=offers, own=own)))
    assert "MiB" in why


# A worker that lies of what is between it and another one, over the Internet.


def over_the_internet(kind: Kind, told: DevicePath | None, machine: str) -> SplitChoice:
    """Plan with a near worker, and a far one that tells this path to the other, and this machine."""
    scene = Scene(MODEL_8B, kind, G10)
    there = scene.machines
    offers = tuple(
        replace(
            offer,
            path=path,
            offer=replace(
                offer.offer,
                machine=name,
                devices=tuple(replace(device, card=f"card of {offer.node}") for device in offer.devices),
            ),
        )
        for offer, path, name in zip(there.offers, (G10, INTERNET), ("m of a", machine), strict=True)
    )
    paths = {("a", "b"): INTERNET} | ({("b", "a"): told} if told is not None else {})
    return planned(scene, machines=replace(there, offers=offers, paths=paths))


def test_a_worker_makes_no_path_local_by_its_figures() -> None:
    told = DevicePath(LOCAL_PATH.rtt, LOCAL_PATH.rate)
    assert why_not(over_the_internet(MINI_PC, told, "m of b")) == WayAdvice.FAR


@pytest.mark.parametrize("told", [INTERNET, DevicePath(0.0, 2.5e9), None])
def test_a_worker_makes_no_path_local_by_the_name_of_a_machine(told: DevicePath | None) -> None:
    assert why_not(over_the_internet(SLOW_GPU, told, "m of a")) == WayAdvice.FAR


def test_cards_of_one_machine_exchange_sums_there() -> None:
    scene = Scene(MODEL_8B, SLOW_GPU, G10)
    there = scene.machines
    offers = tuple(
        replace(
            offer,
            offer=replace(
                offer.offer,
                machine="one",
                devices=tuple(replace(device, card=f"card of {offer.node}") for device in offer.devices),
            ),
        )
        for offer in there.offers
    )
    found = planned(scene, machines=replace(there, offers=offers))
    assert found.plan.by_tensors, "nothing has to be sealed"
    # One to whom the way from the head is another one is elsewhere.
    elsewhere = replace(there, offers=(offers[0], replace(offers[1], path=INTERNET)))
    assert why_not(planned(scene, machines=elsewhere)) == WhyByLayers.DAEMONS


@pytest.mark.parametrize(
    ("at_once", "longer", "is_less"),
    [(1, 2, True), (2, 1, True), (1, 1, False)],
    ids=["shorter", "fewer", "as much"],
)
def test_it_gives_up_neither_context_nor_answers_at_once(at_once: int, longer: int, is_less: bool) -> None:
    """By layers there could be more than by tensors, as memory is enough for no more."""
    found = planned(SEALED)
    shape = found.plan.shape
    assert (shape.parallel, found.plan.by_tensors) == (1, True)
    by_layers = choose_split(SEALED.layers, SEALED.work, SEALED.machines, SEALED.options)[0]
    more = shape.of(at_once, longer * shape.cells)
    assert (more.parallel, more.cells) == (at_once, longer * shape.cells)
    by_layers = replace(by_layers, plan=replace(by_layers.plan, shape=more))
    chosen = choose_way(SEALED.layers, SEALED.work, SEALED.machines, SEALED.options, [by_layers], AUTO)
    assert (chosen == NotTogether(WhyByLayers.SHORTER)) == is_less
    assert isinstance(chosen, SplitChoice) != is_less


def test_another_split_by_layers_that_is_as_fast_counts_as_well() -> None:
    """What would run is chosen by a short answer, and by fewest machines."""
    slowest = max(SEALED.chosen, key=lambda choice: choice.seconds)
    chosen = choose_way(SEALED.layers, SEALED.work, SEALED.machines, SEALED.options, [slowest], AUTO)
    assert isinstance(chosen, SplitChoice) and isinstance(chosen.plan.reasons[0], TogetherByChoice)
    assert chosen.plan.reasons[0].by_layers == pytest.approx(SEALED.ways().layers.seconds)


def shown(scene: Scene, auto: AutoWay = AUTO) -> tuple[str, bool]:
    """Return what a plan says of both ways, and whether it has the split by tensors."""
    ways, chosen = both_ways(scene.layers, scene.work, scene.machines, scene.options, scene.chosen, auto)
    assert ways is not None and (chosen is None or chosen.plan.by_tensors)
    return str(ways), chosen is not None


def test_a_plan_says_what_auto_makes_of_both_ways() -> None:
    text, is_chosen = shown(SEALED)
    assert is_chosen and text.endswith("`--split tensor` is worth it; `auto` chooses it")
    text, is_chosen = shown(FAST)
    assert not is_chosen and text.endswith(
        "`--split tensor` is worth it; `auto` stays by layers: what the workers exchange would pass "
        "through both daemons: the workers cannot connect directly, or cannot encrypt that connection (then "
        "install OpenSSL on both machines, on a Mac with Homebrew, and restart the workers)"
    )
    assert shown(SEALED, AutoWay(failed="it ended"))[0].endswith("`auto` stays by layers: it ended")
    for scene in (replace(FAST, path=WIFI), replace(SEALED, options=replace(SEALED.options, split="layers"))):
        text, is_chosen = shown(scene)
        assert not is_chosen and "auto" not in text
    assert shown(replace(SEALED, architecture="mamba")) == (
        "not by tensors: models of the architecture `mamba` have not been tried",
        False,
    )


def test_a_plan_counts_drafts_of_llama_server() -> None:
    drafting = replace(SEALED, options=replace(SEALED.options, llama_args=("--spec-type", "ngram")))
    assert shown(drafting) == (shown(SEALED)[0].split("`--split tensor`")[0] + WayAdvice.DRAFTS, False)


def test_a_faster_cable_leaves_sums_sealed() -> None:
    through, sealed = (replace(scene, path=G1).ways().on_cable for scene in (FAST, SEALED))
    assert through is not None and sealed is not None and sealed > through


def test_a_plan_compares_what_auto_chooses_also_where_others_would_be_faster_by_tensors() -> None:
    there = replace(SEALED, slower=(1.0, 1.2, 1.0)).machines
    paths = {ends: replace(path, seals="c" not in ends) for ends, path in there.paths.items()}
    there = replace(there, paths=paths)
    chosen = choose_split(SEALED.layers, SEALED.work, there, SEALED.options)
    ways, found = both_ways(SEALED.layers, SEALED.work, there, SEALED.options, chosen, AUTO)
    assert isinstance(ways, TwoWays) and found is not None and ways.nodes == found.plan.nodes == ("a", "b")


def test_why_says_what_kept_auto_by_layers() -> None:
    plan = planned(FAST).plan
    found = advise(FAST.layers, FAST.work, FAST.machines, FAST.options, plan)
    assert str(found.ways).endswith(f"`auto` stays by layers: {WhyByLayers.DAEMONS}")


def test_why_does_not_say_that_what_was_measured_since_is_lacking() -> None:
    plan = planned(FAST).besides(NotTogether(WayAdvice.UNMEASURED)).plan
    plan = replace(
        plan, reasons=tuple(why for why in plan.reasons if why != NotTogether(WhyByLayers.DAEMONS))
    )
    found = advise(FAST.layers, FAST.work, FAST.machines, FAST.options, plan)
    assert str(found.ways).endswith(
        "`--split tensor` is worth it; too little had been measured when it was loaded: `auto` decides again "
        "at the next load"
    )
