"""The head with real workers between fakes: waits, asks, chooses workers, loads, and drafts."""

import asyncio
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base import log
from meshd.gateway.interface import AnswerTimings, ReadyReport
from meshd.head import run as run_module
from meshd.head.better_load import UNASKED_SECONDS
from meshd.head.leases import SILENT_SECONDS
from meshd.head.served_files import ServedFiles
from meshd.head.speculation import BETWEEN_LOADS_SECONDS, RoundEstimate
from meshd.model.device_sampling import FEW_TOKENS, DeviceSampling
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers, read_layers
from meshd.model.status import ModelState, SpeculationStatus
from meshd.peer.interface import PeerState
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import SplitChoice, plan_model
from meshd.plan.machines import Machines
from meshd.plan.wishes import DraftModel, HeadOptions
from meshd.rpc import mesh_protocol as wire

from tests.gguf_bytes import gguf, language_model, parse
from tests.sim.loop import run, until
from tests.unit.head.rig import COMPRESSED_VERSION, cpu_lines
from tests.unit.head.scene import LITTLE, Scene, scene, view
from tests.unit.head.stubs import FakeFile, StubChild
from tests.unit.head.test_leases import held
from tests.unit.model.test_device_sampling import SETTINGS
from tests.unit.rpc import mesh_talk as talk

pytestmark = pytest.mark.virtual


def test_no_line_tells_of_hashing_where_nothing_is_hashed(tmp_path: Path) -> None:
    lines = io.StringIO()
    log.set_up(form="text", stream=lines)

    async def main() -> None:
        async with scene(tmp_path, min_workers=0) as it:
            await it.ready()

    try:
        run(main())
    finally:
        log.set_up(level="warning")
    assert "state=ready" in lines.getvalue() and "hash" not in lines.getvalue()


async def test_it_waits_for_a_worker_then_loads_and_is_ready(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.file.hashed.clear()
        it.start()
        await it.until(ModelState.LOADING, "25 %")
        await asyncio.sleep(0.001)
        assert it.serve.readiness.progress == 0.25
        assert [one.name for one in it.serve.status.listed.devices] == ["CPU"], "asked meanwhile"
        it.file.hashed.set()
        await it.until(ModelState.WAITING, "0 of 1 ready")
        it.worker("anna")
        await it.until(ModelState.READY)
        assert it.bench.listings == 1
        status = it.serve.status
        assert [device.name for device in status.listed.devices] == ["CPU"] and status.listed.at > 0
        assert status.model is not None
        assert {part.node for part in status.model.split} == {"anna", "head"}
        assert sum(part.layers for part in status.model.split) == 4
        assert (it.argument("-dev"), it.bench.tunnels[0].endpoint) == ("MESH0", "0")
        assert it.bench.tunnels[0].asked.compressed == COMPRESSED_VERSION
        assert [child.state.value for child in status.children] == ["ready"]
        assert len(status.tunnels) == 1


async def test_two_workers_in_the_order_of_their_names(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.ready("zoe", "anna")
        assert [tunnel.endpoint for tunnel in it.bench.tunnels] == ["0", "1"]
        names = [it.net.meshes[tunnel.asked.peer].name for tunnel in it.bench.tunnels]
        assert names == ["anna", "zoe"]


def argv_of(child: StubChild) -> list[str]:
    assert child.spec is not None
    return list(child.spec.argv)


async def test_workers_in_the_order_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for what the plan gives it, in the places that the plan has."""

    def backwards(
        layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, auto: AutoWay
    ) -> SplitChoice:
        return plan_model(layers, work, replace(machines, offers=machines.offers[::-1]), options, auto)

    monkeypatch.setattr(run_module, "plan_model", backwards)

    async with scene(tmp_path, devices=("none",)) as it:
        it.worker("anna")
        it.worker("zoe")
        it.workers["anna"].device_lines = cpu_lines(free_mib=1000)
        await it.ready()
        names = [it.net.meshes[tunnel.asked.peer].name for tunnel in it.bench.tunnels]
        assert names == ["zoe", "anna"]
        assert [tunnel.endpoint for tunnel in it.bench.tunnels] == ["0", "1"]
        layers = {part.node: part.layers for part in it.model.split}
        assert [node for node in layers if node != "head"] == ["zoe", "anna"]
        assert layers["zoe"] > layers["anna"]
        lent = {name: argv_of(it.workers[name].children[-1]) for name in layers if name != "head"}
        given = {name: int(argv[argv.index("--memory") + 1]) for name, argv in lent.items()}
        assert given["zoe"] > given["anna"], "each by its own part"


async def test_workers_whose_names_are_made_to_look_alike_are_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        one, other, third = (it.worker(name) for name in ("one", "two", "three"))
        one.name = other.name = "w"
        third.name = f"w-{one.key.peer.short[:4]}"
        await it.ready()
        assert it.nodes == {
            f"w ({one.key.peer.short})",
            f"w ({other.key.peer.short})",
            third.name,
            "head",
        }


async def test_a_head_with_the_name_of_a_worker_is_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path, node_id="h" * 52) as it:
        worker = it.worker("one")
        worker.name = "head"
        await it.ready()
        nodes = it.nodes
        assert nodes == {f"head ({worker.key.peer.short})", "head (hhhhhhhhhh)"}


async def test_another_known_worker_gets_three_seconds(tmp_path: Path) -> None:
    for comes in (True, False):
        async with scene(tmp_path) as it:
            it.worker("anna")
            late = it.worker("bert", there=False)
            it.start()
            began = asyncio.get_running_loop().time()
            if comes:
                await asyncio.sleep(1)
                late.say(PeerState.CONNECTED)
            await it.until(ModelState.READY)
            took = asyncio.get_running_loop().time() - began
            assert (1 <= took < 2) if comes else (3 <= took < 4)
            assert len(it.bench.tunnels) == 1 + comes


async def test_when_all_refuse_the_reason_is_told_and_another_worker_helps(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna", pin="another")
        it.start()
        await it.until(ModelState.WAITING, "this worker another")
        it.worker("bert")
        await it.until(ModelState.READY)


async def test_too_little_memory_fails_with_numbers_until_the_peers_change(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        it.worker("anna")
        it.workers["anna"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.FAILED)
        assert "MiB" in it.serve.readiness.reason
        assert it.bench.children == []
        it.worker("bert")
        await it.until(ModelState.READY, seconds=10)


async def test_a_worker_that_comes_later_is_used_at_the_next_load(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.ready("anna")
        it.worker("bert")
        await asyncio.sleep(20)
        assert len(it.bench.tunnels) == 1
        it.llama.die("ended")
        await it.until(ModelState.LOADING)
        await it.until(ModelState.READY)
        assert len(it.bench.tunnels) == 3


async def test_a_head_alone_starts_at_once_where_the_model_fits(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.start()
        await it.until(ModelState.READY, seconds=1)
        assert it.nodes == {"head"}
        assert it.llama.spec is not None and it.llama.spec.env["GGML_MESH_FDS"] == ""


async def test_a_worker_that_is_known_has_three_seconds_before_the_head_starts_alone(tmp_path: Path) -> None:
    for least, seconds in ((None, 3.0), (0, 0.0)):
        async with scene(tmp_path, split="auto", min_workers=least) as it:
            it.worker("anna", there=False)
            it.start()
            began = asyncio.get_running_loop().time()
            await it.until(ModelState.READY)
            assert seconds <= asyncio.get_running_loop().time() - began < seconds + 1


async def test_a_model_that_does_not_fit_here_waits_for_a_worker_and_says_what_to_do(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.head(file=FakeFile(layers=400))
        it.bench.device_lines = cpu_lines(free_mib=60)  # enough for the output alone
        it.start()
        await it.until(ModelState.WAITING, "waiting for a worker (run `meshd worker --join INVITE`")
        assert "does not fit" in it.serve.readiness.reason and "MiB" in it.serve.readiness.reason
        assert not it.serve.model_status.too_few_workers
        assert it.bench.children == []
        it.worker("anna")
        await it.until(ModelState.READY, seconds=10)


async def test_what_does_not_fit_on_workers_either_has_failed(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.bench.device_lines = LITTLE
        it.worker("anna")
        it.workers["anna"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.FAILED, "does not fit")


async def test_a_number_of_workers_that_its_user_demands_is_waited_for(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto", min_workers=2) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.WAITING, "1 of 2 ready")
        it.worker("bert")
        await it.until(ModelState.READY, seconds=10)


async def test_a_name_that_no_worker_has_is_told_beside_a_model_that_is_ready(tmp_path: Path) -> None:
    async with scene(tmp_path, workers=("anna", "nobody")) as it:
        await it.ready("anna")
        assert it.serve.status.unknown == ("no worker is called `nobody` (known: `anna`)",)


DIGEST = bytes(range(32))  # of each entry in mesh_talk.py


def loaded(it: Scene, *, local: int, missed: int) -> None:
    """The first worker is asked for two tensors of so many bytes; it has the first one."""
    seen = view(it.bench, 0)
    seen.to_peer(talk.load(talk.load_entry(size=local), talk.load_entry(size=missed)))
    seen.from_peer(talk.message(wire.LOADED, rest=b"\0\1", identity=4))


async def test_what_came_over_the_network_is_in_the_status(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model")
        await asyncio.sleep(1)
        loaded(it, local=100, missed=7)
        it.bench.ready.set_result(ReadyReport(True, "", 0.1))
        await it.until(ModelState.READY)
        model = it.model
        assert (model.weights_local_bytes, model.weights_network_bytes) == (100, 7)
        (tensor,) = model.tensors_from_network
        assert (tensor.name, tensor.node, tensor.reason) == (DIGEST.hex(), "anna", "no such hash")
        assert model.bytes_per_token is None, "nobody has asked for anything yet"


def test_only_copies_that_a_worker_cannot_use_are_warnings(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model")
            await asyncio.sleep(1)
            seen = view(it.bench, 0)
            seen.to_peer(talk.load(talk.load_entry(size=100), talk.load_entry(size=7)))
            seen.from_peer(talk.message(wire.LOADED, rest=b"\1\3", identity=4))
            it.bench.ready.set_result(ReadyReport(True, "", 0.1))
            await it.until(ModelState.READY)

    told = io.StringIO()
    log.set_up(level="info", form="json", stream=told)
    try:
        run(main())
    finally:
        log.set_up(level="warning")
    lines = [json.loads(line) for line in told.getvalue().splitlines()]
    crossed = [
        {key: line[key] for key in ("event", "level", "node", "why", "bytes") if key in line}
        for line in lines
        if line["event"].startswith("weight")
    ]
    assert crossed == [
        {"event": "weight_from_network", "level": "warning", "node": "anna", "why": "unreadable"},
        {"event": "weights_from_network", "level": "info", "node": "anna", "bytes": 107},
    ]


async def test_how_far_each_worker_is_shows_while_the_model_is_loaded(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.worker("zoe")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model; anna 0 B of")
        anna, zoe = it.serve.readiness.workers
        assert (anna.node, anna.share, zoe.node, zoe.share) == ("anna", 0, "zoe", 0)
        assert it.serve.readiness.progress == 0
        total = anna.total_bytes
        assert total > 10 and zoe.total_bytes > 10
        first = it.bench.tunnels[0]
        loaded(it, local=total - 10, missed=10)
        first.sent = 4
        anna, zoe = it.serve.readiness.workers
        assert (anna.local_bytes, anna.missing_bytes, anna.sent_bytes) == (total - 10, 10, 4)
        assert zoe.share == 0
        progress = it.serve.readiness.progress
        assert progress is not None
        assert progress == pytest.approx((total - 6) / (total + zoe.total_bytes))
        assert "over the network" in it.serve.readiness.reason
        first.sent = 10_000_000
        assert it.serve.readiness.workers[0].share == 1, "what else goes through the tunnel is no weight"
        facts = it.serve.facts
        assert facts.context == 0 and facts.trained_context > 0 and facts.size > 0
        props = {"default_generation_settings": {"n_ctx": 777}, "chat_template": "<think>"}
        it.bench.ready.set_result(ReadyReport(True, "", 0.1, props=props))
        await it.until(ModelState.READY)
        assert (it.serve.facts.context, it.serve.facts.capabilities) == (777, ("completion", "thinking"))
        assert it.serve.facts.fingerprint == it.serve.model_status.fingerprint != ""
        ready = it.serve.readiness
        assert (ready.workers, ready.progress) == ((), None)
        model = it.model
        assert [load.node for load in model.workers] == ["anna", "zoe"]


async def test_a_model_was_created_when_its_file_was_written(tmp_path: Path) -> None:
    written = tmp_path / "model.gguf"
    written.touch()
    os.utime(written, (5, 1_700_000_000))
    async with scene(tmp_path) as it:
        it.file.paths = (written,)
        assert ServedFiles(it.file).facts(()).created == 1_700_000_000
        it.file.paths = (tmp_path / "gone.gguf",)
        assert ServedFiles(it.file).facts(()).created == 0


async def test_a_load_that_waits_for_a_silent_worker_says_so_beside_how_far_each_is(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model; anna 0 B of")
        anna.since = asyncio.get_running_loop().time() - SILENT_SECONDS
        anna.say(PeerState.SUSPENDED)
        now = it.serve.readiness
        assert now.state is ModelState.LOADING and now.workers[0].node == "anna"
        assert now.reason.startswith("loading the model; anna 0 B of")
        assert now.reason.endswith(f"; no connection to worker anna for {SILENT_SECONDS:.0f} s")


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (ReadyReport(False, "no token came"), "no token came"),
        (ReadyReport(True, ""), "was changed while it was loaded"),
    ],
)
async def test_a_load_that_does_not_hold_is_done_again(tmp_path: Path, report: ReadyReport, why: str) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model")
        it.file.unchanged = not report.ready
        it.bench.ready.set_result(report)
        await it.until(ModelState.LOADING, why)
        it.file.unchanged = True
        it.bench.ready = None
        await it.until(ModelState.READY)


def sampling_of(it: Scene) -> DeviceSampling | None:
    return it.serve.device_sampling


@pytest.mark.parametrize(
    ("output", "arguments", "expected"),
    [
        pytest.param("worker", (), True, id="worker"),
        pytest.param("worker", ("--spec-type", "ngram-mod"), False, id="the user's own drafts"),
        pytest.param("head", (), None, id="head"),
    ],
)
async def test_candidates_are_taken_where_a_worker_makes_the_logits(
    tmp_path: Path, output: str, arguments: tuple[str, ...], expected: bool | None
) -> None:
    async with scene(tmp_path, devices=("none",), output=output, llama_args=arguments) as it:
        it.worker("anna")
        ready = await held(it)
        assert sampling_of(it) is None
        ready.set_result(ReadyReport(True, "", 0.1, settings=SETTINGS))
        await it.until(ModelState.READY)
        sampling = sampling_of(it)
        assert (sampling.adds if sampling is not None else None) is expected
        if sampling is not None:
            assert sampling.is_refused({"backend_sampling": True})
            assert sampling.settings == SETTINGS
            assert sampling.vocabulary > 0
        it.llama.die("ended by SIGKILL")
        await until(lambda: sampling_of(it) is None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), True),
        (("-kvu",), False),
        (("-np", "1"), False),
        (("--cache_ram", "64"), False),
        (("-sps", "0.5"), False),
        (("--no-slots",), False),
    ],
)
async def test_slots_are_named_where_each_has_its_own_cache(
    tmp_path: Path, arguments: tuple[str, ...], expected: bool
) -> None:
    async with scene(tmp_path, devices=("none",), llama_args=arguments, slots=4) as it:
        it.worker("anna")
        ready = await held(it)
        assert not it.serve.may_name_slots
        ready.set_result(ReadyReport(True, "", 0.1, settings=SETTINGS))
        await it.until(ModelState.READY)
        assert it.serve.may_name_slots is expected


@pytest.mark.parametrize("is_direct", [True, False])
async def test_short_requests_take_all_logits_past_the_link_alone(tmp_path: Path, is_direct: bool) -> None:
    async with scene(tmp_path, devices=("none",), output="worker") as it:
        it.worker("anna")
        ready = await held(it)
        it.bench.tunnels[-1].is_direct = is_direct
        ready.set_result(ReadyReport(True, "", 0.1, settings=SETTINGS))
        await it.until(ModelState.READY)
        sampling = sampling_of(it)
        assert sampling is not None
        assert bool(sampling.added_to({"max_tokens": FEW_TOKENS - 1})) is not is_direct
        assert sampling.added_to({"max_tokens": FEW_TOKENS})


DRAFT = DraftModel("/m/draft.gguf", read_layers([parse(gguf(*language_model(layers=1)))], name="draft"))


def status_of(it: Scene) -> SpeculationStatus | None:
    return it.model.speculation


async def test_drafts_are_begun_with_the_load_and_their_gain_is_shown(tmp_path: Path) -> None:
    async with scene(tmp_path, speculate="auto", devices=("none",), output="worker") as it:
        it.worker("anna")
        ready = await held(it)
        assert status_of(it) is None
        ready.set_result(ReadyReport(True, "", 0.1, settings={**SETTINGS, "speculative.types": "x"}))
        await it.until(ModelState.READY)
        assert it.argument("--spec-type") == "ngram-map-k"
        sampling = it.serve.device_sampling
        assert sampling is not None and sampling.drafts
        await until(lambda: it.bench.rounds_timed > 0)
        it.serve.answered(AnswerTimings(9, 0.1, 301, 10.0, 250, 200), alone=True, seconds=1.0)
        found = status_of(it)
        assert found is not None
        assert (found.drafted, found.accepted, found.gain) == (250, 200, 3.0)


async def test_a_plan_for_its_file_is_told_what_answers_have_shown(tmp_path: Path) -> None:
    async with scene(tmp_path, speculate="auto", devices=("none",)) as it:
        await it.ready("anna")
        file, link = it.file.paths[0], tmp_path / "link.gguf"
        link.symlink_to(file)
        assert it.serve.drafting(tmp_path / "other.gguf") is None
        drafting = it.serve.drafting(link)
        assert drafting is not None and drafting.draft_model is None
        length = drafting.speculation.drafts.free
        before = drafting.snapshot.speculation
        answer = AnswerTimings(9, 0.1, 2001, 10.0, 200 * length, 1800)
        it.serve.answered(answer, alone=True, seconds=1.0)
        now = asyncio.get_running_loop().time()
        assert before.acceptances(now) == (None, None), "a snapshot stays as it is"
        assert drafting.speculation.acceptances(now)[0] is not None


async def test_nothing_is_drafted_unless_wanted_and_where_the_user_decides(tmp_path: Path) -> None:
    for options in ({}, {"speculate": True, "llama_args": ("--spec-type", "ngram-simple")}):
        async with scene(tmp_path, **options) as it:
            await it.ready("anna")
            assert it.llama.spec is not None
            assert "ngram-map-k" not in it.llama.spec.argv
            found = status_of(it)
            assert found is not None and (found.free, found.model) == (0, 0)
            assert found.why.startswith("left to" if options else "off")
            assert it.bench.rounds_timed == 0


async def test_drafts_that_lose_are_gone_after_a_load_at_a_quiet_moment(tmp_path: Path) -> None:
    async with scene(tmp_path, speculate="auto") as it:
        await it.ready("anna")
        first = it.llama
        it.serve.requested(1)
        await asyncio.sleep(60)
        assert it.bench.rounds_timed == 0, "an answer would share its batch"
        it.serve.requested(0)
        await until(lambda: it.bench.rounds_timed > 0)
        it.serve.requested(1)
        it.serve.answered(AnswerTimings(9, 0.1, 2001, 900.0, 9000, 100), alone=True, seconds=1.0)
        await asyncio.sleep(BETWEEN_LOADS_SECONDS + UNASKED_SECONDS)
        assert it.llama is first, "somebody asks"
        it.serve.requested(0)
        await it.until(ModelState.LOADING, "cost more than they gain", seconds=2 * UNASKED_SECONDS)
        await it.until(ModelState.READY)
        assert it.llama is not first and it.llama.spec is not None
        assert "--spec-type" not in it.llama.spec.argv
        assert it.serve.status.children[0].restarts == 0, "that was no failure"


def test_a_draft_model_is_given_to_llama_server_where_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(expected: int) -> None:
        async with scene(tmp_path, speculate="auto", draft=DRAFT) as it:
            await it.ready("anna")
            found = status_of(it)
            assert found is not None and found.model == expected
            assert it.llama.spec is not None
            assert ("/m/draft.gguf" in it.llama.spec.argv) is (expected > 0)
            if expected:
                assert it.argument("--spec-draft-model") == "/m/draft.gguf"
                assert it.argument("--spec-draft-n-max") == str(expected)

    for estimate, expected in ((RoundEstimate(0.145, 0.02, 0.02), 1), (RoundEstimate(0.01, 0.01, 0.01), 0)):
        monkeypatch.setattr(run_module, "round_estimate", lambda *_, told=estimate: told)
        run(main(expected))


async def test_a_draft_model_that_costs_too_much_is_gone_before_anybody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "round_estimate", lambda *_: RoundEstimate(0.145, 0.004, 0.01))
    async with scene(tmp_path, speculate="auto", draft=DRAFT) as it:
        it.bench.drafted = AnswerTimings(1, 0.1, 7, 4.0, 10, 0)
        it.worker("anna")
        it.start()
        await it.until(ModelState.LOADING, "would cost more than they gain")
        first = it.llama
        assert it.argument("--spec-draft-n-max") == str(it.bench.drafts_timed[0])
        await it.until(ModelState.READY)
        assert it.llama is not first and it.llama.spec is not None
        assert "--spec-draft-model" not in it.llama.spec.argv
        assert len(it.bench.drafts_timed) == 1
        assert it.serve.status.children[0].restarts == 0, "that was no failure"
