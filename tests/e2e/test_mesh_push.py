"""Activations go straight from one worker to the next: the text stays, the head's link does without them."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.api_client import Streamed
from tests.e2e.mesh_losses import again_within, hit_in_mid_answer
from tests.e2e.models import smollm2
from tests.e2e.nodes import LOCALLY, PROMPT, SAME_THREADS, Fleet, api_of, child_pid, model_of, peer_of, play
from tests.e2e.trio import Trio, trio
from tests.soak import SEED, SOAK, counts, drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 48
WIDTH = 576 * 4  # bytes of an activation of SmolLM2-135M
TIMES = counts(1, 20)
CUT_TOKENS = counts(150, 1000)
OUTAGE_SECONDS = counts(6, 30)
OTHER_PROMPT = "Once upon a time there was"
HEADLESS = ("--device", "none")  # of the head: the workers have all layers
SMALL_CONTEXT = ("--ctx-size", "1024")


def pushes(status: Status) -> dict[str, tuple[bool | None, str]]:
    return {part.node: (part.push, part.why_no_push) for part in model_of(status).split if part.layers}


async def sent_on_link(node: LocalNode, peer: str) -> int:
    link = peer_of(await node.status(), peer).link
    assert link is not None
    return link.sent_bytes


async def sent_locally(node: LocalNode) -> int:
    """Sum up what its mesh-server has sent to others on this machine, past the daemons."""
    return sum(one.sent_bytes for one in (await node.status()).tunnels if one.listen == "local")


async def sent_to(node: LocalNode, peer: str) -> int:
    """Sum up both; `node` has no other neighbour on this machine."""
    return await sent_on_link(node, peer) + await sent_locally(node)


def others(count: int) -> tuple[str, ...]:
    return tuple(f"worker-{number}" for number in range(count))


@pytest.mark.parametrize("count", drawn("workers that push", [2, 3], 1, always=()))
def test_the_text_is_that_of_one_machine(tmp_path: Path, count: int) -> None:
    """With pushes, and on the same workers by a head that will have none."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(*[smollm2()] * count, options=LOCALLY)
            for how in ("push", "no-push"):
                given = ("--set", "serve.no_push=true") if how == "no-push" else ()
                options = ("--min-workers", str(count), *HEADLESS, *given)
                head = await fleet.head(smollm2(), *options, *SAME_THREADS, token=token, name=how)
                status = await fleet.ready(head)
                expected = (True, "") if how == "push" else (False, "disabled (`no_push`)")
                assert pushes(status) == {
                    name: expected if number else (None, "") for number, name in enumerate(others(count))
                }
                ways = [
                    (one.service, one.listen, one.peer_name) for one in (await workers[0].status()).tunnels
                ]
                assert ways == ([("push", "local", "worker-1")] if how == "push" else [])
                before = await sent_on_link(workers[0], "worker-1"), await sent_locally(workers[0])
                assert await api_of(status).complete(PROMPT, TOKENS) == reference
                crossed = await sent_on_link(workers[0], "worker-1") - before[0]
                pushed = await sent_locally(workers[0]) - before[1]
                print(f"{how}: {crossed} bytes through the daemons, {pushed} past them, for {TOKENS} tokens")  # noqa: T201
                assert crossed < TOKENS * WIDTH / 2
                assert pushed >= TOKENS * WIDTH if how == "push" else pushed == 0
                await said(head, count - 1 if how == "push" else 0)
                await head.stop()
                fleet.forget(head)

    play(check())


async def said(head: LocalNode, ways: int) -> None:
    """Return how often its log says that a way is used; it never says that one is not: none was asked for."""
    log = await asyncio.to_thread((head.spec.home / "logs" / "meshd.log").read_text)
    assert log.count("push_direct") == ways
    assert "push_through_head" not in log


def test_two_heads_on_the_same_workers_do_not_mix(tmp_path: Path) -> None:
    references = [alone(smollm2(), TOKENS, PROMPT), alone(smollm2(), TOKENS, OTHER_PROMPT)]

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2())
            options = ("--min-workers", "2", *HEADLESS, *SMALL_CONTEXT, *SAME_THREADS)
            heads = [await fleet.head(smollm2(), *options, token=token, name=name) for name in ("one", "two")]
            statuses = [await fleet.ready(head) for head in heads]
            for status in statuses:
                assert pushes(status)["worker-1"] == (True, "")
            for worker in workers:
                assert len((await worker.status()).children) == 2
            for _ in range(TIMES):
                texts = await asyncio.gather(
                    api_of(statuses[0]).complete(PROMPT, TOKENS),
                    api_of(statuses[1]).complete(OTHER_PROMPT, TOKENS),
                )
                assert list(texts) == references
            await heads[1].stop()
            fleet.forget(heads[1])
            assert await api_of(statuses[0]).complete(PROMPT, TOKENS) == references[0]

    play(check())


# only Linux tells that a process stands still
SIGNALS = [signal.SIGKILL, *([signal.SIGSTOP] if sys.platform == "linux" else [])]
LOSSES = list(product((0, 1), SIGNALS))


# in a short run the same mesh has all of them one after the other
TOGETHER = (
    {f"{victim}-{number.name}": [(victim, number)] for victim, number in LOSSES}
    if SOAK
    else {"all": drawn("losses", LOSSES, len(LOSSES), always=())}
)


@pytest.mark.parametrize("losses", TOGETHER.values(), ids=TOGETHER)
def test_a_workers_server_is_killed_or_stopped_in_mid_answer(
    tmp_path: Path, losses: Sequence[tuple[int, signal.Signals]]
) -> None:
    """The one that sends, and the one that waits: the other one of the two does not wait for it."""
    reference = alone(smollm2(), 16)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2())
            began = time.monotonic()
            head = await fleet.head(smollm2(), "--min-workers", "2", *HEADLESS, *SAME_THREADS, token=token)
            api = api_of(await fleet.ready(head))
            assert await api.complete(PROMPT, 16) == reference
            within = again_within(began)
            for (victim, number), again in product(losses, range(TIMES)):
                blamed = await _blamed(head, victim)
                pid = child_pid(await workers[victim].status(), CHILD_NAME)
                streamed, left = await hit_in_mid_answer(api, pid, number, within=within)
                assert streamed.error and not streamed.done
                text, took = await api.complete_through_503(PROMPT, 16, seconds=left)
                assert text == reference
                took += within - left
                assert took <= within
                print(f"worker-{victim}, {number.name}, time {again}: answered again after {took:.1f} s")  # noqa: T201
                assert pushes(await fleet.ready(head))["worker-1"] == (True, "")
                assert await _blamed(head, victim) > blamed, "the one that was killed is blamed"

    play(check())


async def _blamed(head: LocalNode, victim: int) -> int:
    """Return how often its log names this worker as the one by which the model was lost.

    llama-server alone tells, if the worker's daemon does not know yet that its child is gone.
    """
    log = await asyncio.to_thread((head.spec.home / "logs" / "meshd.log").read_text)
    said = (f"worker worker-{victim} is lost", f"lost worker worker-{victim}:")
    return sum("model_lost" in line and any(one in line for one in said) for line in log.splitlines())


netspaces = pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-")


async def _after(streamed: Streamed, pieces: int) -> None:
    while streamed.pieces < pieces:  # noqa: ASYNC110 - counted in a thread, which tells nobody
        await asyncio.sleep(0.02)


async def _outage(place: Trio, so_far: Streamed) -> tuple[int, int]:
    """Once a third has come; returns how many pieces had come a moment after it began, and at its end."""
    await _after(so_far, CUT_TOKENS // 3)
    place.between.part()
    await asyncio.sleep(OUTAGE_SECONDS / 2)
    begun = so_far.pieces
    await asyncio.sleep(OUTAGE_SECONDS / 2)
    ended = so_far.pieces
    place.between.join()
    return begun, ended


@netspaces
def test_an_answer_survives_an_outage_between_the_workers(tmp_path: Path) -> None:
    """Streams are durable there, too: the answer waits, and goes on as if nothing had been."""
    reference = alone(smollm2(), CUT_TOKENS)

    async def check() -> None:
        options = (*HEADLESS, *SAME_THREADS)
        async with trio(tmp_path, smollm2(), head_options=options, seed=SEED) as place:
            status = await place.fleet.ready(place.head)
            assert pushes(status)["worker-1"] == (True, "")
            (way,) = (await place.workers[0].status()).tunnels
            assert way.listen == "socketpair", "there is nothing local between network namespaces"
            server = child_pid(status, "llama-server")
            so_far = Streamed()

            def on_piece(streamed: Streamed) -> None:
                so_far.pieces = streamed.pieces

            async with asyncio.TaskGroup() as group:
                answer = group.create_task(place.api.stream(PROMPT, CUT_TOKENS, on_piece=on_piece))
                outage = group.create_task(_outage(place, so_far))
            streamed, (begun, ended) = answer.result(), outage.result()
            print(f"{place.between.crossed}, pieces {begun} to {ended}")  # noqa: T201
            assert begun == ended < CUT_TOKENS, "nothing could come without the way between the workers"
            assert (streamed.error, streamed.done, streamed.text) == ("", True, reference)
            assert place.between.crossed.cuts > 0
            assert child_pid(await place.head.status(), "llama-server") == server

    play(check())


@netspaces
def test_workers_that_do_not_reach_each_other_go_through_the_head(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        options = (*HEADLESS, *SAME_THREADS)
        async with trio(tmp_path, smollm2(), head_options=options, seed=SEED, parted=True) as place:
            status = await place.fleet.ready(place.head)
            pushed, why = pushes(status)["worker-1"]
            assert pushed is False
            assert why.startswith("unreachable for 8 s: "), why
            assert await place.api.complete(PROMPT, TOKENS) == reference
            log = await asyncio.to_thread((place.head.spec.home / "logs" / "meshd.log").read_text)
            assert log.count("push_through_head") == 1

    play(check())
