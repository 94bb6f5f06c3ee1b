"""A worker that hangs in a graph with its connection open: an error for the client, and a new start.

No signal and no closed connection tells of it, and its mesh-server goes on to say that it is there: only that
its device does not move on. Shown for each of two workers, since the first one owes no answer but a push; and
for one alone. A library that sleeps in a graph makes it stand still (frozen.py). One that the kernel freezes,
in other states: test_mesh_lost_workers.py; one that is only slow: test_mesh_server_hung.py.
"""

import time
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.api_client import Streamed
from tests.e2e.frozen import Frozen, skip_reason
from tests.e2e.losses import noted
from tests.e2e.mesh_losses import LONG_PROMPT, TOKENS, crashes
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, gone, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

FOUND_SECONDS = 30.0  # what is promised; a step like those before is missed sooner
TWO_THREADS = ("--threads", "2")  # OpenMP's entry is passed by more than one only
HUNG = "it has not moved on for 2"  # seconds, and a digit more


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    if why := skip_reason():
        pytest.skip(why)
    folder = tmp_path / "frozen"
    folder.mkdir()
    return Frozen(folder)


def _says_why(head: LocalNode, worker: str) -> bool:
    return f"worker {worker}: {HUNG}" in (head.spec.home / "node.log").read_text(errors="replace")


@pytest.mark.parametrize("which", [0, 1], ids=["first", "last"])
def test_one_of_two_workers_hangs_in_an_answer(tmp_path: Path, frozen: Frozen, which: int) -> None:
    """And the other one, which waits for it, is not accused."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            plain = await fleet.worker("plain", model=smollm2())
            token = await plain.token()
            name = "another" if which == 0 else "somebody"  # the split takes them by name
            hangs = await fleet.worker(name, *TWO_THREADS, model=smollm2(), cache=frozen.cache, token=token)
            options = ("--min-workers", "2", "--tensor-split", "1,1", *SAME_THREADS)
            head = await fleet.head(smollm2(), *options, token=token)
            api = api_of(await fleet.ready(head))
            server = child_pid(await hangs.status(), CHILD_NAME)

            def on_piece(streamed: Streamed) -> None:
                if streamed.pieces == 10:
                    frozen.stop()

            with noted("mesh", "decode", f"hangs {which}", told_within=FOUND_SECONDS) as loss:
                streamed = await api.stream(PROMPT, 400, on_piece=on_piece)
                loss.since(frozen.since())
                assert streamed.error, "the stream ended without an error event"
                assert not streamed.done
                frozen.go_on()
                await gone({server})
                text, _ = await api.complete_through_503(PROMPT, TOKENS, seconds=FOUND_SECONDS)
                loss.again = time.monotonic() - frozen.since()
                loss.wrong = text != reference
            assert _says_why(head, name)
            assert not _says_why(head, "plain")
            assert crashes(head) == 0

    play(check())


def test_the_only_worker_hangs_in_a_prompt(tmp_path: Path, frozen: Frozen) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", *TWO_THREADS, model=smollm2(), cache=frozen.cache)
            head = await fleet.head(smollm2(), *SAME_THREADS, token=await worker.token())
            api = api_of(await fleet.ready(head))
            server = child_pid(await worker.status(), CHILD_NAME)
            with noted("mesh", "prompt", "hangs", told_within=FOUND_SECONDS) as loss:
                frozen.stop()
                streamed = await api.stream(LONG_PROMPT, TOKENS)
                assert (streamed.text, streamed.done) == ("", False)
                assert streamed.error
                loss.since(frozen.since())
                frozen.go_on()
                await gone({server})
                text, _ = await api.complete_through_503(PROMPT, TOKENS, seconds=FOUND_SECONDS)
                loss.wrong = text != reference
                loss.again = time.monotonic() - frozen.since()
            assert _says_why(head, "worker")

    play(check())
