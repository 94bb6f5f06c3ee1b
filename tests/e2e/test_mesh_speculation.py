"""A head that drafts tokens, over two workers: texts are those of none drafted, status says what it gains."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.fleet.fleet import Fleet as FarFleet
from meshd.fleet.fleet import FleetSpec, ready_or_raise

from tests.e2e.alone import alone
from tests.e2e.api_client import Api, generation
from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import SAME_BATCHES, SAME_THREADS, Fleet, api_of, child_pid, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

USERS = [{"id": number, "name": f"user-{number}", "active": True} for number in range(5)]
FILE = f"The same file again:\n```json\n{json.dumps(USERS, indent=1)}\n```\n"
# No two tokens of its answer are nearly as likely: drafted tokens are checked together, and how many depends
# on how busy this machine is, so near ties would fall otherwise from run to run.
COPY = FILE * 3 + "The same file again:\n```json\n["
TOKENS = 96
DRAFTS = ("--speculate", "auto", "--min-workers", "2", "--device", "none", "--set", "serve.output=worker")
FAR = 0.1  # seconds: a round takes far longer than to draft a token, unless others use the cores
FARTHER = 0.6  # the same, whatever uses the cores: a drafted token may take 0.4 s, and still pays
PROSE = "The keeper of the lighthouse woke before dawn, as he had for thirty years, and"
FEW_TOKENS = 16


async def text(api: Api, prompt: str, **more: object) -> str:
    answer = await api.ask("POST", "/completion", {**generation(prompt, TOKENS), **more})
    assert answer.status == 200, answer
    return str(answer.body["content"])


def far_fleet(folder: Path, *options: str, seconds: float = FAR) -> FarFleet:
    """Two workers at a distance where drafts of repeated tokens pay."""
    return FarFleet(
        FleetSpec(
            folder=folder,
            cache=cache_folder(),
            model=smollm2(),
            worker_model=smollm2(),
            round_trips=[seconds, seconds],
            head_options=(*DRAFTS, *options),
        )
    )


def _knows_the_gain(status: Status) -> bool:
    """A round was timed, since nobody has asked for a while."""
    found = model_of(status).speculation
    return found is not None and found.gain is not None


@pytest.mark.parametrize("by_model", [False, True], ids=["repeated", "draft model"])
def test_texts_are_those_without_drafts_and_status_says_what_was_accepted(
    tmp_path: Path, by_model: bool
) -> None:
    expected = alone(smollm2(), TOKENS, COPY)

    async def check() -> None:
        draft = ("--draft-model", str(smollm2())) if by_model else ()
        async with Owner() as owner:
            fleet = far_fleet(tmp_path, *draft, *SAME_THREADS)
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            api = Api(fleet.api_url(await head.until(ready_or_raise)))
            sampled = {"temperature": 0.9, "seed": 3}
            for more in ({}, sampled):
                # of all logits, and of candidates
                logits = await text(api, COPY, **more, backend_sampling=False)
                assert await text(api, COPY, **more) == logits
                assert logits == expected or more
            found = model_of(await head.until(_knows_the_gain)).speculation
            assert found is not None
            assert found.free > 0
            log = (tmp_path / "head" / "logs" / "meshd.log").read_text()
            # left out where others use the cores, by an estimate or once it is timed: the texts were made
            # without it then
            is_told = bool(found.why_no_model) or "drafts would cost more" in log
            assert (found.model > 0 or is_told) is by_model
            assert found.drafted >= found.accepted > 0
            assert found.gain is not None and found.gain > 0
            owner.cancel()

    play(check())


@pytest.mark.parametrize("by_model", [False, True], ids=["no draft model", "draft model"])
def test_the_draft_model_drafts_a_text_that_repeats_nothing(tmp_path: Path, by_model: bool) -> None:
    """By llama-server's own count. Repeated tokens are drafted behind twelve that were there before: the text
    has none, so that without a draft model nothing is drafted.
    """

    async def check() -> None:
        draft = ("--draft-model", str(smollm2())) if by_model else ()
        async with Owner() as owner:
            fleet = far_fleet(tmp_path, *draft, *SAME_THREADS, seconds=FARTHER)
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            api = Api(fleet.api_url(await head.until(ready_or_raise)))
            answer = await api.ask("POST", "/completion", generation(PROSE, FEW_TOKENS))
            assert answer.status == 200, answer
            timings = answer.body["timings"]
            assert isinstance(timings, dict)
            drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
            found = model_of(await head.status()).speculation
            assert found is not None and found.free > 0
            assert (found.model > 0) is by_model, found
            assert (drafted > 0) is by_model, timings
            assert (accepted > 0) is by_model, "the model as its own draft is right mostly"
            assert (found.drafted, found.accepted) == (drafted, accepted)
            owner.cancel()

    play(check())


def test_an_answer_that_drafts_goes_on_when_llama_server_is_lost(tmp_path: Path) -> None:
    """Its text is that of one machine, which drafts nothing. The prompt has no near ties: drafted tokens are
    checked together, which rounds otherwise than one by one, and the next life may draft more or fewer.
    """
    expected = alone(smollm2(), TOKENS, COPY)

    async def check() -> None:
        async with Owner() as owner:
            fleet = far_fleet(tmp_path, "--set", "serve.continue_answers=200", *SAME_THREADS, *SAME_BATCHES)
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            status = await head.until(ready_or_raise)
            api = Api(fleet.api_url(status))
            server, hit = child_pid(status, "llama-server"), asyncio.Event()
            loop = asyncio.get_running_loop()

            def on_piece(streamed: object) -> None:
                if getattr(streamed, "pieces", 0) == 10 and not hit.is_set():
                    os.kill(server, signal.SIGKILL)
                    loop.call_soon_threadsafe(hit.set)

            streamed = await api.stream(COPY, TOKENS, on_piece=on_piece)
            assert hit.is_set()
            assert (streamed.error, streamed.done, streamed.tokens) == ("", True, TOKENS)
            assert streamed.text == expected
            found = model_of(await head.status()).speculation
            assert found is not None and found.accepted > 0
            owner.cancel()

    play(check())


def test_a_head_that_is_told_not_to_drafts_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), "--speculate", "off", *SAME_THREADS, token=token)
            await text(api_of(await fleet.ready(head)), COPY)
            found = model_of(await head.status()).speculation
            assert found is not None
            assert (found.free, found.model, found.drafted) == (0, 0, 0)

    play(check())
