"""The answers to `meshd plan`, `capacity` and `why`."""

import asyncio
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.plan_api import FitsRequest, MemoryLimit, PlanRequest, WaysView
from meshd.admin.request import to_fields
from meshd.admin.status import StoredFile
from meshd.base.errors import Refused, UserError
from meshd.config.tree import Config
from meshd.daemon.plan_view import asked_memory, asked_options, plan_reply, why_reply
from meshd.daemon.planning import Choices, PlannedModel, Planning, fits_alone, planned_model, with_fewest
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import NativeBuild
from meshd.head.explain import Explained
from meshd.head.measures import RunFacts
from meshd.head.speculation import DraftForecast
from meshd.head.worker_choice import Roster, ServedAs
from meshd.model.layer_range import LayerRange
from meshd.model.output import DevicePath
from meshd.model.status import SplitPart
from meshd.model.time_account import TimeAccount
from meshd.plan.choose_split import SplitChoice, advise, choose_split, plan_model
from meshd.plan.machines import Machines
from meshd.plan.two_ways import OneWay
from meshd.plan.wishes import HeadOptions
from meshd.store.hash_cache import HashCache
from meshd.wire.lease import OfferedDevice

from tests.gguf_bytes import parse
from tests.unit.devices.capacity_scene import Scene, scene
from tests.unit.head.fake_mesh import NATIVE
from tests.unit.head.rig import Bench
from tests.unit.head.test_survey import OPTIONS, surveyor
from tests.unit.library.models import put, tiny, tiny_shards
from tests.unit.plan.plain_options import PLAIN
from tests.unit.plan.test_split_choice import MODEL, WORK, machines, offer
from tests.unit.plan.test_split_choice import OPTIONS as SPLIT_OPTIONS
from tests.unit.store.header_files import with_holes

SERVED = replace(
    PLAIN,
    node_name="desk",
    workers=("garage",),
    devices=("CUDA0",),
    tensor_split=(1.0, 2.0),
    slots=3,
    ctx_size=9000,
)
SPARED = (("attic", "it is for losses"),)
AUTO: HeadOptions = replace(SPLIT_OPTIONS, split="auto", devices=("none",))
THERE = machines([offer("a", 16, rtt=0.01)], {"head": 1.0, "a": 1.0})
MEASURED = TimeAccount(seconds=0.5, tokens=100, parts=(), unexplained=0.0)


def test_what_the_question_leaves_open_is_as_this_node_serves() -> None:
    assert asked_options(PlanRequest(model="/m"), SERVED) == SERVED


def test_what_it_says_goes_first() -> None:
    asked = PlanRequest(model="/m", workers=("attic",), devices=("none",), streams=1, largest_context=True)
    options = asked_options(asked, SERVED)
    assert (options.workers, options.devices, options.slots) == (("attic",), ("none",), 1)
    assert (options.ctx_size, options.tensor_split) == (0, (1.0, 2.0))
    shares = asked_options(PlanRequest(model="/m", tensor_split=(3.0,)), SERVED)
    assert shares.tensor_split == (3.0,) and shares.workers == ("garage",)


def test_nodes_that_are_to_hold_layers_are_the_workers() -> None:
    options = asked_options(PlanRequest(model="/m", layers=("desk=0-3", "attic=4-9")), SERVED)
    assert options.layers == (LayerRange("desk", 0, 3), LayerRange("attic", 4, 9))
    assert options.workers == ("attic",) and options.tensor_split == ()


SPLIT = replace(
    SERVED,
    tensor_split=(),
    layers=(LayerRange("anna", 0, 4), LayerRange("bert", 5, 9)),
    workers=("anna", "bert"),
    min_workers=2,
)


"""Served with `--layers`, which names the workers."""


def test_other_workers_go_before_the_layers_with_which_it_is_served() -> None:
    options = asked_options(PlanRequest(model="/m", workers=("anna",)), SPLIT)
    assert (options.workers, options.layers, options.min_workers) == (("anna",), (), None)


def test_another_split_goes_before_the_workers_that_hold_those_layers() -> None:
    options = asked_options(PlanRequest(model="/m", tensor_split=(1.0, 1.0)), SPLIT)
    assert (options.tensor_split, options.layers) == ((1.0, 1.0), ())
    assert (options.workers, options.min_workers) == ((), None), "all that are there"
    named = replace(SPLIT, workers=("anna", "bert", "carl"), min_workers=3)
    options = asked_options(PlanRequest(model="/m", tensor_split=(1.0, 1.0)), named)
    assert (options.workers, options.min_workers) == (("anna", "bert", "carl"), 3), "named by `--workers`"


def test_other_layers_go_before_those_with_which_it_is_served() -> None:
    options = asked_options(PlanRequest(model="/m", layers=("carl=0-9",)), SPLIT)
    assert (options.workers, options.layers) == (("carl",), (LayerRange("carl", 0, 9),))
    assert options.min_workers is None


def test_workers_may_be_named_beside_their_layers() -> None:
    asked = PlanRequest(model="/m", layers=("anna=0-3", "desk=4-9"), workers=("anna", "carl"))
    options = asked_options(asked, SERVED)
    assert options.workers == ("anna", "carl") and [one.node for one in options.layers] == ["anna", "desk"]


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (
            PlanRequest(model="/m", layers=("anna=0-4", "bert=5-9"), workers=("anna",)),
            "layers to `bert`, which `--workers` does not name",
        ),
        (PlanRequest(model="/m", layers=("a",)), "`--layers`"),
    ],
)
def test_what_contradicts_itself_is_an_error(asked: PlanRequest, what: str) -> None:
    with pytest.raises(UserError, match=what):
        asked_options(asked, SERVED)


def test_the_memory_of_a_node_is_said_once() -> None:
    limits = MemoryLimit(node="a", bytes=1), MemoryLimit(node="", bytes=2)
    assert asked_memory(PlanRequest(model="/m", memory=limits)) == {"a": 1, "": 2}
    with pytest.raises(UserError, match="of `a` twice"):
        asked_memory(PlanRequest(model="/m", memory=(limits[0], limits[0])))


def test_a_worker_for_losses_is_planned_with_where_the_model_does_not_fit_without_it() -> None:
    asked: list[Collection[str]] = []

    def fits(spared: Collection[str]) -> Choices:
        asked.append(spared)
        return []

    def fits_with_all(spared: Collection[str]) -> Choices:
        if spared:
            raise UserError("it does not fit")
        return fits(spared)

    def fits_nowhere(spared: Collection[str]) -> Choices:
        raise UserError(f"it does not fit without {len(spared)}")

    assert with_fewest(fits, SPARED) == ([], SPARED) and asked == [["attic"]]
    assert with_fewest(fits_with_all, SPARED) == ([], ()) and asked[1:] == [()]
    with pytest.raises(UserError, match="without 1"):
        with_fewest(fits_nowhere, SPARED)
    with pytest.raises(UserError, match="without 0"):
        with_fewest(fits_nowhere, ())


def planner(it: Scene, folder: Path, options: HeadOptions) -> tuple[Planning, Bench]:
    """Return the planner of the head."""
    looks, bench = surveyor(it, folder, options)
    native, end = bench.runtime.native, bench.runtime.processes.run_to_end
    speeds = DeviceSpeeds(native, end, bench.runtime.paths, machine="", threads=1)
    served = ServedAs(options, Roster(it.head, options))
    cache = HashCache(folder / "weights")
    return Planning(looks, speeds, options, cache, dict, lambda _: served, lambda _: None), bench


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.virtual
async def test_a_node_that_computes_no_layers_is_not_measured_and_contributes_nothing(
    tmp_path: Path, *, computes: bool
) -> None:
    async with scene(tmp_path) as it:
        it.teller("a")
        options = OPTIONS if computes else replace(OPTIONS, devices=("none",))
        planning, bench = planner(it, tmp_path, options)
        reply = await planning.capacity(again=False)
        assert [one.node for one in reply.devices] == (["head", "a"] if computes else ["a"])
        assert [one.node for one in reply.left_out] == ([] if computes else ["head"])
        assert len(bench.timings) == int(computes)


@pytest.mark.virtual
async def test_what_fits_is_planned_and_nothing_is_measured(tmp_path: Path) -> None:
    """The devices of this scene have a few GiB: the smallest models fit there, the largest nowhere."""
    async with scene(tmp_path) as it:
        it.teller("a")
        planning, bench = planner(it, tmp_path, OPTIONS)
        reply = await planning.fits(FitsRequest())
        found = {one.name: (one.here, one.mesh) for one in reply.models}
        assert found["smollm2"] == ("cpu", "cpu") and found["glm-4.5-air"] == ("no", "no")
        assert (reply.workers, reply.left_out, bench.timings) == (("a",), (), [])
        size = StoredFile(name="glm-4.5-air", bytes=100_000_000, fingerprint=None)
        reply = await planning.fits(FitsRequest(known=(size,)))
        assert reply.models[-1].here == "cpu", "the real size counts"


def test_without_a_node_the_devices_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a head would use them: the CPU, and the GPUs that `[serve]` names."""
    native = NativeBuild(tmp_path, tmp_path / "mesh-server", tmp_path, NATIVE, "")
    gpus = [OfferedDevice(f"CUDA{n}", "gpu", "", 40 << 30, 40 << 30, "") for n in range(2)]
    listed: list[Path] = []

    async def list_devices(program: Path, **_others: object) -> tuple[OfferedDevice, ...]:
        listed.append(program)
        return OfferedDevice("CPU", "cpu", "", 2 << 30, 2 << 30, ""), *gpus

    monkeypatch.setattr("meshd.daemon.planning.find_native", lambda _paths: native)
    monkeypatch.setattr("meshd.daemon.planning.list_devices", list_devices)
    config, expected = Config(), {"llama-3.3-70b": "gpu", "glm": "gpu"}
    for serve in (config.serve, replace(config.serve, devices=("CUDA0",))):
        reply = asyncio.run(fits_alone(replace(config, serve=serve), FitsRequest()))
        found = {one.name: one.here for one in reply.models}
        assert {name: found[name] for name in expected} == expected and reply.workers == ()
        expected["llama-3.3-70b"] = "no"
    assert listed == [native.mesh_server] * 2


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.virtual
async def test_a_plan_measures_here_what_this_node_may_compute(tmp_path: Path, *, computes: bool) -> None:
    """As before a load: without layers that is the output."""
    async with scene(tmp_path) as it:
        it.teller("a")
        options = OPTIONS if computes else replace(OPTIONS, devices=("none",))
        planning, bench = planner(it, tmp_path, options)
        model = put(tmp_path / "a.gguf", tiny())
        with suppress(UserError, Refused):
            await planning.plan(PlanRequest(model=str(model)))
        [timing] = bench.timings
        assert timing[-1] == ("32=flash_attn:f16:f16:8:8:4:2:4096" if computes else "1=mul_mat:f32:32:64")
        assert timing.count("--time") == (4 if computes else 1)


@pytest.mark.virtual
async def test_a_pair_that_is_kept_apart_is_planned_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Machines] = []

    def ranked(_layers: object, _work: object, there: Machines, _options: object) -> list[SplitChoice]:
        planned.append(there)
        raise UserError("it does not fit")

    monkeypatch.setattr("meshd.daemon.planning.ranked_splits", ranked)
    async with scene(tmp_path) as it:
        for name in "ab":
            it.teller(name)
        planning, _ = planner(it, tmp_path, OPTIONS)
        model = put(tmp_path / "a.gguf", tiny())
        first, second = (peer.peer for peer in it.head.peers())
        now = asyncio.get_running_loop().time()
        planning._serving(model).roster.backoff.part(first, second, now)
        with pytest.raises(UserError, match="does not fit"):
            await planning.plan(PlanRequest(model=str(model)))
    assert [list(there.apart) for there in planned] == [[frozenset(("a", "b"))]]


@pytest.mark.virtual
async def test_workers_that_hold_the_asked_layers_are_named_by_them(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for name in "abc":
            it.teller(name)
        served = replace(OPTIONS, workers=("a", "b"), standby=("c",))
        planning, _ = planner(it, tmp_path, served)
        for layers, others in ((("a=0-3", "c=4-9"), "b"), (("a=0-3", "b=4-9"), "")):
            _, roster = planning._asked(PlanRequest(model="/m", layers=layers))
            told = {one.peer.name: one.excluded for one in roster.candidates() if one.excluded}
            assert told == {name: f"{name} is not named by `--layers`" for name in others}


def read(path: Path) -> PlannedModel:
    return asyncio.run(planned_model(path, HashCache(path.parent / "hashes")))


def test_of_a_whole_model(tmp_path: Path) -> None:
    found = read(put(tmp_path / "a.gguf", tiny()))
    assert (found.name, list(found.headers), found.index) == ("a.gguf", [parse(tiny())], None)


def test_of_a_model_that_is_served_without_its_layers_all_hashes_are_known(tmp_path: Path) -> None:
    found = read(with_holes(tmp_path, tiny(), stem="far-Q4_0"))
    assert found.name == "far-Q4_0.gguf" and list(found.headers) == [parse(tiny())]
    assert found.index is not None and len(found.index.tensors) == len(parse(tiny()).tensors)


def test_of_headers_that_came_for_a_plan_whatever_lies_behind_them(tmp_path: Path) -> None:
    shards = tiny_shards(3)
    paths = []
    for name, data in shards.items():
        header = data[: parse(data).data_offset]
        paths.append(put(tmp_path / name.replace(".gguf", ".header"), header))
        os.truncate(paths[-1], len(data))
    found = read(paths[0])
    assert list(found.headers) == [parse(data) for data in shards.values()] and found.index is None
    assert found.name == next(iter(shards))
    paths[1].unlink()
    with pytest.raises(UserError, match="missing"):
        read(paths[0])


"""Far slower than predicted."""


def explained(now: Machines, token: TimeAccount | None = None) -> Explained:
    """Loaded with THERE, asked when the machines are `now`."""
    split = plan_model(MODEL, WORK, THERE, AUTO)
    return Explained(
        facts=RunFacts(split.plan, now, AUTO, MODEL, WORK, split.outcome),
        split=(),
        answers=(),
        active=0,
        now=0.0,
        token=token,
        prompt=None,
        round=None,
        why_no_round="",
        running=None,
        advice=advise(MODEL, WORK, now, AUTO, split.plan),
    )


def test_as_long_as_nothing_changes_load_plan_and_why_give_one_figure() -> None:
    reply = why_reply("model", explained(THERE, MEASURED))
    planned = choose_split(MODEL, WORK, THERE, AUTO)[0].prediction.generate_tok_s
    assert reply.advice.generate_tok_s == reply.generate_tok_s_at_load == planned
    assert to_fields(reply.advice)["generate_tok_s"] == round(planned, 2)
    assert reply.since_load == ()
    assert reply.ways is not None and reply.ways.tensors_tok_s is None
    assert reply.ways.text.startswith("not by tensors: it takes two to four workers")


def test_a_plan_shows_both_ways_or_why_there_is_one() -> None:
    ways = WaysView(layers_tok_s=None, tensors_tok_s=None, text="not by tensors: no cable")
    assert plan_reply("m", "head", [], [], OneWay("no cable")).ways == ways
    assert plan_reply("m", "head", [], []).ways is None


def test_a_plan_by_tensors_has_its_output_on_all_workers() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 1.0, "a": 1.0, "b": 1.0})
    model, options = replace(MODEL, architecture="llama"), replace(AUTO, devices=("none",), output="head")
    drafts = DraftForecast(
        free=0,
        model=0,
        free_acceptance=0.0,
        model_acceptance=0.0,
        measured=False,
        repetitive_tok_s=1.0,
        prose_tok_s=1.0,
    )
    shown = [
        plan_reply("m", "head", [(plan_model(model, WORK, there, asked), drafts)], []).plans[0]
        for asked in (replace(options, split="tensor"), replace(options, split="always"))
    ]
    assert [(plan.by_tensors, plan.output_on) for plan in shown] == [(True, "all workers"), (False, "head")]
    assert "output on all workers" in shown[0].why and "in proportion" not in shown[0].why


def test_why_shows_how_much_of_each_layer_a_worker_has() -> None:
    found = explained(THERE)
    split = (SplitPart("head", "CPU", 0, 0), SplitPart("a", "CPU", 20, 0), SplitPart("b", "CPU", 10, 0))
    assert why_reply("m", replace(found, split=split)).split == "a CPU: 20 → b CPU: 10"
    together = replace(found.facts, plan=replace(found.facts.plan, by_tensors=True))
    found = replace(found, split=split, facts=together)
    reply = why_reply("m", found)
    assert reply.by_tensors and reply.split == "each layer: a CPU 67%, b CPU 33%"


def test_a_reply_shows_both_ways_where_there_are_two_workers() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 1.0, "a": 1.0, "b": 1.0})
    model, split = replace(MODEL, architecture="llama"), plan_model(MODEL, WORK, there, AUTO)
    advice = advise(model, WORK, there, AUTO, split.plan)
    reply = why_reply("model", replace(explained(THERE), advice=advice))
    assert reply.ways is not None and reply.ways.layers_tok_s and reply.ways.tensors_tok_s
    assert reply.ways.text == str(advice.ways) and "by tensors over `a` and `b`" in reply.ways.text


def test_a_figure_that_differs_names_the_input_that_does() -> None:
    [one] = THERE.offers
    now = replace(THERE, offers=(replace(one, path=DevicePath(0.1, 1e9)),))
    reply = why_reply("model", explained(now))
    planned = choose_split(MODEL, WORK, now, AUTO)[0].prediction.generate_tok_s
    assert reply.advice.generate_tok_s == planned
    assert reply.generate_tok_s_at_load is not None and reply.generate_tok_s_at_load > 1.5 * planned
    [changed] = reply.since_load
    assert changed == "`head ↔ a` takes 100.2 ms of a token (10.2 ms then)"


def test_nothing_was_predicted_at_load_where_a_device_was_not_measured() -> None:
    found = explained(THERE)
    at_load = found.facts.at_load
    unknown = replace(at_load, prediction=replace(at_load.prediction, is_measured=False))
    found = replace(found, facts=replace(found.facts, at_load=unknown))
    assert why_reply("model", found).generate_tok_s_at_load is None
