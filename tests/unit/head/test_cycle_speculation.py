"""Drafts of a head: in llama-server's options, in status, and changed at a quiet moment."""

import asyncio
from pathlib import Path

import pytest
from meshd.gateway.interface import AnswerTimings, ReadyReport
from meshd.head import run as run_module
from meshd.head.load_again import UNASKED_SECONDS
from meshd.head.speculation import BETWEEN_LOADS_SECONDS, RoundEstimate
from meshd.model.layers import read_layers
from meshd.model.status import ModelState, SpeculationStatus
from meshd.plan.wishes import DraftModel

from tests.gguf_bytes import gguf, language_model, parse
from tests.sim.loop import run, until
from tests.unit.head.scene import Scene, scene
from tests.unit.head.test_leases import held
from tests.unit.model.test_device_sampling import SETTINGS

pytestmark = pytest.mark.virtual

DRAFT = DraftModel("/m/draft.gguf", read_layers([parse(gguf(*language_model(layers=1)))], name="draft"))


def status_of(it: Scene) -> SpeculationStatus | None:
    assert it.serve.status.model is not None
    return it.serve.status.model.speculation


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
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
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
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            assert it.llama.spec is not None
            assert "ngram-map-k" not in it.llama.spec.argv
            found = status_of(it)
            assert found is not None and (found.free, found.model) == (0, 0)
            assert found.why.startswith("left to" if options else "off")
            assert it.bench.rounds_timed == 0


async def test_drafts_that_lose_are_gone_after_a_load_at_a_quiet_moment(tmp_path: Path) -> None:
    async with scene(tmp_path, speculate="auto") as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
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
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
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
