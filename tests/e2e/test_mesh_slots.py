"""Answers at once, each with a context of its own: none of them ends another."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode
from meshd.model.status import AnswersAtOnce

from tests.e2e.api_client import Answer, Api, Streamed, generation
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

CONTEXT = 256
SLOTS = 4
LONG = 200  # tokens: four of these answers need three contexts
SHORT = 8


async def completion(api: Api, tokens: int, prompt: str = PROMPT) -> Answer:
    return await api.ask("POST", "/completion", generation(prompt, tokens))


async def until(api: Api, state: str, expected: int) -> None:
    """So many requests are in this state, by llama-server's own count."""

    def count() -> str:
        connection = api.open()
        try:
            connection.request("GET", "/metrics?model=any")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return next(line.split()[1] for line in lines if line.startswith(f"llamacpp:requests_{state} "))

    while await asyncio.to_thread(count) != str(expected):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def chat(api: Api, text: str) -> Answer:
    said = [{"role": "user", "content": text}]
    return await api.ask("POST", "/v1/chat/completions", {"messages": said, "temperature": 0})


async def _slots_are_taken_side_by_side(_head: LocalNode, api: Api) -> None:
    """The gateway names them; llama-server itself would begin with the last one."""
    answers = [await completion(api, SHORT, f"{word} are") for word in ("Kings", "Boats")]
    assert [answer.body["id_slot"] for answer in answers] == [0, 1]


async def _long_answers_come_to_their_own_end(head: LocalNode, api: Api) -> None:
    answers = await asyncio.gather(*(completion(api, LONG) for _ in range(SLOTS)))
    assert [answer.status for answer in answers] == [200] * SLOTS, answers
    assert [answer.body["tokens_predicted"] for answer in answers] == [LONG] * SLOTS
    model = model_of(await head.status())
    assert model.answers == AnswersAtOnce(SLOTS, CONTEXT)
    assert f"4 requests at once, {CONTEXT} tokens each" in model.split_why


async def _a_follow_up_finds_the_slot_of_its_conversation(_head: LocalNode, api: Api) -> None:
    spoken: list[tuple[str, int]] = []
    for word in ("Apples", "Whales", "Trains", "Clouds")[:SLOTS]:
        prompt = f"{word} are many things to many people." * 4
        answer = await api.ask("POST", "/completion", generation(prompt, SHORT) | {"cache_prompt": True})
        before = answer.body["tokens_evaluated"]
        assert isinstance(before, int)
        spoken.append((prompt + str(answer.body["content"]), before))
    for text, before in spoken:
        asked = generation(f"{text}. And they", SHORT) | {"cache_prompt": True}
        answer = await api.ask("POST", "/completion", asked)
        assert isinstance(timings := answer.body["timings"], dict)
        assert timings["cache_n"] >= before


async def _sent(head: LocalNode) -> int:
    """Bytes to its worker's mesh-server so far."""
    return sum(one.sent_bytes for one in (await head.status()).tunnels)


async def _finished_conversations_cost_a_later_answer_nothing(head: LocalNode, api: Api) -> None:
    """Each has a cache of its own: the mask of a prompt, which crosses, is only as wide as that."""
    costs = []
    for number in range(SLOTS + 2):
        before = await _sent(head)
        answer = await completion(api, SHORT, f"{number} " + "and so on " * (CONTEXT // 4))
        assert answer.status == 200, answer
        costs.append(await _sent(head) - before)
    assert max(costs[SLOTS:]) < 1.1 * costs[0], costs


async def _what_is_too_long_ends_alone(_head: LocalNode, api: Api) -> None:
    """An answer at the end of its context is cut off there, a prompt beyond it refused with the limit."""
    begun = threading.Event()
    other = asyncio.create_task(api.stream(PROMPT, LONG, on_piece=lambda _text: begun.set()))
    endless = asyncio.create_task(completion(api, 4 * CONTEXT))
    await asyncio.to_thread(begun.wait)
    refused = await chat(api, "word " * CONTEXT)
    assert refused.status == 400, refused
    error = refused.body["error"]
    assert isinstance(error, dict)
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    cut = await endless
    assert (cut.status, cut.body["stop_type"], cut.body["truncated"]) == (200, "limit", True), cut
    streamed = await other
    assert (streamed.error, streamed.done) == ("", True)
    assert (await completion(api, SHORT)).status == 200


def _waits(count: int, status: Status) -> bool:
    """So many requests do, in the gateway."""
    return status.api is not None and status.api.waiting == count


async def _who_comes_fifth_waits_and_is_served_in_turn(head: LocalNode, api: Api) -> None:
    # the usual one has too few threads for all that wait here
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3 * SLOTS))
    # one ends well before the others, so the two that wait get its slot one after the other
    lengths = (LONG * 5 // 8, *[LONG] * (SLOTS - 1))
    first = [asyncio.create_task(completion(api, tokens)) for tokens in lengths]
    await until(api, "processing", SLOTS)
    begun: list[str] = []

    def note(name: str) -> Callable[[Streamed], None]:
        return lambda so_far: begun.append(name) if so_far.pieces == 1 else None

    later = []
    for number, name in enumerate(("fifth", "sixth"), start=1):
        later.append(asyncio.create_task(api.stream(PROMPT, SHORT, on_piece=note(name))))
        await head.until(partial(_waits, number))
    assert all(answer.status == 200 for answer in await asyncio.gather(*first))
    assert all(streamed.done for streamed in await asyncio.gather(*later))
    assert begun == ["fifth", "sixth"]


def test_each_answer_has_its_own_context_and_turn(tmp_path: Path) -> None:
    """Test a head with one worker, whose answers have this context each."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(smollm2())
            given = ("--device", "none", "--ctx-size", str(CONTEXT), "--", "--metrics")
            head = await fleet.head(smollm2(), *given, token=token)
            api = api_of(await fleet.ready(head))
            for scene in (
                _slots_are_taken_side_by_side,
                _finished_conversations_cost_a_later_answer_nothing,
                _a_follow_up_finds_the_slot_of_its_conversation,
                _long_answers_come_to_their_own_end,
                _what_is_too_long_ends_alone,
                _who_comes_fifth_waits_and_is_served_in_turn,
            ):
                print(scene.__name__)  # noqa: T201
                await scene(head, api)

    play(check(), seconds=600.0)  # scenes of three tests, one after another
