"""What is seen of a gateway's answers while they are under way."""

import asyncio

import pytest
from meshd.gateway.events import BUCKETS
from meshd.gateway.interface import ApiKey, GatewayConfig, RequestPhase, RequestStatus

from tests.process.gateway_fake import DONE, World, chunk, last_chunk, says, world
from tests.unit.gateway.virtual_gateway import LOADING, LONG, READY, WHOLE, ask, dies, in_turn, timed

pytestmark = pytest.mark.virtual

SECRET = "s" * 32
SLOW = timed((10, chunk("a")), (2, chunk("b")), (2, chunk("c")), (6, last_chunk(3) + DONE))


def only(here: World) -> RequestStatus:
    [found] = here.gateway.work.requests
    return found


async def test_a_stream_reads_its_prompt_and_answers() -> None:
    async with world(SLOW, seconds=LONG) as here:
        reply = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.sleep(5)
        found = only(here)
        assert found == RequestStatus(1, "tiny", RequestPhase.PROMPT, found.seconds, 0, None, "")
        assert found.seconds == pytest.approx(5)
        await asyncio.sleep(6)
        assert (only(here).phase, only(here).tokens, only(here).tok_s) == (RequestPhase.ANSWERING, 1, None)
        await asyncio.sleep(5)
        found = only(here)
        assert found.tokens == 3 and found.seconds == pytest.approx(16)
        assert found.tok_s == pytest.approx(2 / 6), "the first token came with the prompt"
        await reply
        assert list(here.gateway.work.requests) == []


async def test_one_that_waits_says_for_what() -> None:
    config = GatewayConfig(port=0, api_keys=(ApiKey(SECRET, "alice"), ApiKey("t" * 32, "bob")))
    async with world(SLOW, config=config, seconds=LONG) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, key=SECRET, stream=True))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(ask(here, key="t" * 32, stream=True))
        await asyncio.sleep(11)
        found = here.gateway.work.requests
        assert [(each.id, each.key, each.phase) for each in found] == [
            (1, "alice", RequestPhase.ANSWERING),
            (2, "bob", RequestPhase.WAITING),
        ]
        assert [each.note for each in found] == ["", "waiting for a turn: next"]
        assert SECRET not in repr(found)
        await asyncio.gather(first, second)


async def test_a_whole_answer_is_under_way_until_it_is_there() -> None:
    async with world(timed((10, chunk("a") + DONE)), seconds=LONG) as here:
        reply = asyncio.ensure_future(ask(here))
        await asyncio.sleep(5)
        assert only(here).phase is RequestPhase.ANSWERING, "nobody tells when its prompt is done"
        await reply


async def test_after_a_loss_it_waits_for_the_model() -> None:
    """It has no rate then."""
    config = GatewayConfig(port=0, continue_seconds=100.0)
    async with world(in_turn(dies(chunk("a"), chunk("b")), SLOW), config=config, seconds=LONG) as here:

        async def broke() -> None:
            here.upstream.readiness = LOADING

        here.upstream.on_broke = broke
        reply = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.sleep(5)
        found = only(here)
        assert (found.phase, found.note) == (RequestPhase.WAITING, "hashing")
        assert (found.tokens, found.tok_s) == (2, None)
        here.upstream.readiness = READY
        await reply


async def test_one_that_hangs_up_is_under_way_no_more() -> None:
    async with world(SLOW, seconds=LONG) as here:
        reply = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.sleep(5)
        reply.cancel()
        await here.until_idle()
        assert list(here.gateway.work.requests) == []


async def test_what_computes_nothing_is_not_shown() -> None:
    async with world(timed((10, b"{}")), seconds=LONG) as here:
        reply = asyncio.ensure_future(ask(here, "/tokenize", content="a"))
        await asyncio.sleep(5)
        assert list(here.gateway.work.requests) == []
        await reply
        assert sum(here.gateway.work.history.requests) == 0


async def test_tokens_and_requests_are_counted_when_they_come() -> None:
    async with world(SLOW, seconds=LONG) as here:
        await asyncio.gather(ask(here, stream=True), ask(here, stream=True))
        history = here.gateway.work.history
        assert (sum(history.tokens), sum(history.requests)) == (6, 2)
        assert len(history.tokens) == len(history.requests) == BUCKETS


async def test_a_request_with_several_answers_is_one() -> None:
    async with world(says(200, WHOLE), seconds=LONG) as here:
        await ask(here, n=3)
        history = here.gateway.work.history
        assert (sum(history.tokens), sum(history.requests)) == (15, 1)
