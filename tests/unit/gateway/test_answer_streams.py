"""What the client of one answer gets: the whole, or a stream with comments and an end; and its figures."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable

import pytest
from aiohttp import web
from meshd.gateway import answer as module
from meshd.gateway.events import EVENT_BYTES
from meshd.gateway.interface import AnswerTimings, ApiKey, GatewayConfig, MemberCaller, Readiness

from tests.process.gateway_fake import (
    DONE,
    Answer,
    FakeServer,
    OneByOne,
    World,
    begin_stream,
    chunk,
    event,
    many_world,
    raw_post,
    says,
    streams,
    world,
)
from tests.unit.gateway.virtual_gateway import (
    DEGRADED,
    HOLDS,
    LOADING,
    LONG,
    READY,
    TIMINGS,
    WHOLE,
    ask,
    dies,
    in_turn,
    measured,
    now,
    statuses,
    timed,
)

pytestmark = pytest.mark.virtual

# Answers in one piece.


async def test_a_whole_answer_is_counted() -> None:
    async with world(says(200, WHOLE)) as here:
        reply = await ask(here)
        assert (reply.status, json.loads(reply.body)) == (200, WHOLE)
        assert here.gateway.status.tokens == 5
        assert here.upstream.answers == [(AnswerTimings(3, 0.2, 5, 0.4), True)]
        assert here.upstream.told == [], "it is told of streams"
        assert measured(here, "meshd_generated_tokens_total") == 5
        assert measured(here, "meshd_prompt_tokens_total") == 7
        await ask(here, "/tokenize", content="a")
        assert here.gateway.status.tokens == 5 and len(here.upstream.answers) == 1, "it generates nothing"


async def test_answers_that_run_together_are_not_alone() -> None:
    """Nor if the other one ended before, or began after it."""

    def held(*pieces: bytes) -> Answer:
        async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
            await asyncio.sleep(10)
            return await (streams(*pieces) if pieces else says(200, WHOLE))(server, request)

        return answer

    last = event({"choices": [{"delta": {}}], "timings": TIMINGS})
    async with world(in_turn(held(), held(chunk("a"), last, DONE), says(200, WHOLE))) as here:
        whole = asyncio.ensure_future(ask(here))
        await asyncio.sleep(5)
        stream = asyncio.ensure_future(ask(here, stream=True))
        assert (await whole).seconds == 10
        assert (await stream).seconds == 10
        assert [alone for _, alone in here.upstream.answers] == [False, True]
        assert here.upstream.told == [(5, True)], "the first had ended before a token came"
        assert (await ask(here)).status == 200
        assert here.upstream.answers[-1][1]


async def test_a_whole_answer_is_alone_from_its_beginning_to_its_end() -> None:
    def slowly(seconds: float) -> Answer:
        async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await asyncio.sleep(seconds)
            await response.write(json.dumps(WHOLE).encode())
            return response

        return answer

    async with world(in_turn(slowly(10), slowly(10), slowly(10))) as here:
        first = asyncio.ensure_future(ask(here))
        await asyncio.sleep(5)
        assert [(await reply).seconds for reply in (asyncio.ensure_future(ask(here)), first)] == [10, 10]
    assert [alone for _, alone in here.upstream.answers] == [False, False]


async def test_headers_of_a_stream_come_before_its_first_event() -> None:
    async with world(timed((5, chunk("a")), (0, DONE))) as here:
        began = now()
        async with await here.chat(stream=True) as reply:
            assert now() == began and await reply.read() == chunk("a") + DONE


async def test_a_stream_beside_another_tells_so() -> None:
    last = event({"choices": [{"delta": {}}], "timings": TIMINGS})
    slow = timed((0, chunk("a")), (10, chunk("b")), (10, last), (0, DONE))
    async with world(slow, seconds=LONG) as here:
        first = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.sleep(5)
        second = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.gather(first, second)
        # both begin alone or not, count each piece, and the last one brings the exact number
        totals = [total for total, _ in here.upstream.told]
        assert totals == [1, 1, 2, 2, 5, 5]
        alone = [alone for _, alone in here.upstream.told]
        assert alone == [True, False, False, False, False, True]
        assert [alone for _, alone in here.upstream.answers] == [False, False]
        assert here.gateway.status.tokens == 10


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_refusal_is_worded_here(status: int) -> None:
    refusal = {"error": {"code": status, "message": "no messages", "type": "x"}}
    async with world(says(status, refusal)) as here:
        for stream in (False, True):
            reply = await ask(here, stream=stream)
            assert reply.status == status and reply.error["message"] == "no messages"
        assert here.upstream.broke == [] and here.gateway.status.tokens == 0


@pytest.mark.parametrize("status", [399, 400])
async def test_what_is_no_failure_is_passed_on(status: int) -> None:
    async with world(says(status, {"a": 1})) as here:
        reply = await ask(here)
        assert reply.status == status
        assert (json.loads(reply.body) == {"a": 1}) is (status < 400)


@pytest.mark.parametrize("answer", [[], "text", None])
async def test_what_cannot_be_translated_is_unreadable(answer: object) -> None:
    async with world(says(200, answer)) as here:
        reply = await ask(here, "/v1/messages", max_tokens=5)
        assert reply.status == 502 and b"cannot be read" in reply.body
        assert (await ask(here)).body == json.dumps(answer).encode(), "a chat is passed on as it is"


@pytest.mark.parametrize(("size", "is_held"), [(1000, True), (1001, False)])
async def test_a_long_answer_is_held_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, size: int, is_held: bool
) -> None:
    monkeypatch.setattr(module, "HELD_ANSWER_BYTES", 1000)
    figures = b'{"usage": {"completion_tokens": 5}}'
    text = b" " * (size - len(figures)) + figures

    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=text, content_type="application/json")

    async with world(answer) as here:
        reply = await ask(here)
        assert (reply.status, reply.body) == (200, text)
        assert ("Content-Length" in reply.headers) is is_held
        assert reply.headers["Content-Type"] == "application/json"
        assert here.gateway.status.tokens == 5
        messages = await ask(here, "/v1/messages", max_tokens=5)
        assert messages.status == (200 if is_held else 502), "what is translated is held"


async def test_figures_of_a_long_answer_are_seen_across_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_ANSWER_BYTES", 1000)

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in (
            b" " * 5000,
            b'{"usage": {"completion_',
            b'tokens": 5}, "te',
            b'xt": "' + b"x" * 3000 + b'"}',
        ):
            await response.write(piece)
            await asyncio.sleep(1)
        return response

    async with world(answer) as here:
        reply = await ask(here)
        assert len(json.loads(reply.body)["text"]) == 3000
        assert here.gateway.status.tokens == 5, "once"


async def test_a_loss_in_a_long_answer_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_ANSWER_BYTES", 1000)
    async with world(dies(b"x" * 5000, whole=True), config=HOLDS, seconds=LONG) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(raw_post(here.port, {}))
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(9000):
                said += data
        assert b"x" * 1000 in said and not said.endswith(b"0\r\n\r\n")
        assert len(here.upstream.broke) == len(here.server.seen) == 1
        writer.close()


# Streams.


async def test_a_stream_is_timed_from_its_arrival() -> None:
    last = event({"choices": [{"delta": {}}], "timings": TIMINGS})
    slow = timed((3, chunk("a")), (4, chunk("b")), (5, last), (0, DONE))
    async with world(slow) as here:
        assert (await ask(here, stream=True)).seconds == 12
        assert here.upstream.told == [(1, True), (2, True), (5, True)]
        assert here.upstream.answers == [(AnswerTimings(3, 0.2, 5, 0.4), True)]
        assert here.gateway.status.tokens == 5
        assert measured(here, "meshd_time_to_first_token_seconds_sum") == 3
        assert measured(here, "meshd_request_queue_seconds_sum") == 0


async def test_the_time_of_an_answer_begins_when_its_request_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: list[float] = []

    def answered(_timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        took.append(seconds)

    server = OneByOne(WHOLE)
    async with world(server) as here:
        here.upstream.slots = 1
        monkeypatch.setattr(here.upstream, "answered", answered)
        asked = [asyncio.ensure_future(ask(here, user=user)) for user in "ab"]
        for _ in asked:
            await asyncio.sleep(5)
            server.answer_one()
        assert [(await one).status for one in asked] == [200, 200]
        assert took == [5, 10], "the wait for its turn counts"
        assert measured(here, "meshd_request_queue_seconds_sum") == 5


@pytest.mark.parametrize("cut", [b"data: [DONE]", b"data: [DONE]\n"])
async def test_a_last_event_without_its_end_is_passed_on(cut: bytes) -> None:
    async with world(streams(chunk("a"), cut)) as here:
        assert (await ask(here, stream=True)).body == chunk("a") + cut


async def test_a_stream_that_nobody_asked_for_is_one() -> None:
    async with world(timed((0, chunk("a")), (25, DONE)), seconds=LONG) as here:
        reply = await ask(here)
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert reply.body == chunk("a") + b": keep-alive\n\n" * 2 + DONE


HUGE = b"data: " + b"x" * (EVENT_BYTES + (128 << 10))


async def test_an_event_that_is_too_long_passes_in_pieces_and_is_ended_after_a_loss() -> None:
    async with world(dies(HUGE), config=GatewayConfig(port=0)) as here:
        reply = await ask(here, stream=True)
        before, _, after = reply.body.partition(b"\n\n")
        assert HUGE.startswith(before) and len(before) > EVENT_BYTES
        assert json.loads(after.removeprefix(b"data: "))["error"]["code"] == "upstream_lost"


async def test_no_comment_falls_into_it() -> None:
    async with world(timed((0, HUGE), (25, b"\n\n"), (25, DONE)), seconds=LONG) as here:
        reply = await ask(here, stream=True)
        assert reply.body == HUGE + b"\n\n" + b": keep-alive\n\n" * 2 + DONE


async def test_where_events_are_translated_it_is_unreadable() -> None:
    async with world(streams(HUGE)) as here:
        reply = await ask(here, "/v1/messages", max_tokens=5, stream=True)
        assert b"cannot be read" in reply.body and b"xxx" not in reply.body


async def test_after_one_in_pieces_nothing_is_continued() -> None:
    pieces = (chunk("a"), HUGE, b"\n\n", chunk("b"))
    async with world(dies(*pieces), config=HOLDS, seconds=LONG) as here:
        reply = await ask(here, stream=True)
        assert reply.events.startswith(b"".join(pieces)) and reply.error["code"] == "upstream_lost"
        assert len(here.server.seen) == 1


@pytest.mark.parametrize("keys", [1, 2])
async def test_what_was_cached_is_not_told_to_one_of_several(keys: int) -> None:
    config = GatewayConfig(port=0, api_keys=tuple(ApiKey(f"key-{at:020}", f"k{at}") for at in range(keys)))
    last = event({"choices": [], "usage": {"cached_tokens": 7}})
    whole = {"choices": [], "usage": {"cached_tokens": 7}}
    async with world(in_turn(streams(last, DONE), says(200, whole)), config=config) as here:
        for stream in (True, False):
            reply = await ask(here, key=config.api_keys[0].secret, stream=stream)
            assert (b'"cached_tokens": 7' in reply.body) is (keys == 1)
            assert (b'"cached_tokens": 0' in reply.body) is (keys == 2)


@pytest.mark.parametrize(
    ("state", "config", "silence", "said"),
    [
        (READY, HOLDS, 25, [(10, b"keep-alive"), (20, b"keep-alive")]),
        (LOADING, HOLDS, 15, [(1, b"hashing"), (11, b"hashing")]),
        (LOADING, GatewayConfig(port=0), 15, [(10, b"keep-alive")]),
        (DEGRADED, HOLDS, 5, [(1, b"no word from anna")]),
        (DEGRADED, GatewayConfig(port=0), 5, [(1, b"no word from anna")]),
    ],
)
async def test_comments_say_what_is_waited_for(
    state: Readiness, config: GatewayConfig, silence: float, said: list[tuple[float, bytes]]
) -> None:
    """The model changes while the answer is silent for so long."""
    async with world(timed((0, chunk("a")), (silence, DONE)), config=config, seconds=LONG) as here:
        async with await here.chat(stream=True) as reply:
            assert await reply.content.readuntil(b"\n\n") == chunk("a")
            here.upstream.readiness, began = state, now()
            found = []
            while (part := await reply.content.readuntil(b"\n\n")) != DONE:
                found.append((round(now() - began), part[2:-2]))
        assert found == said


async def test_a_place_in_the_queue_is_told_after_some_silence() -> None:
    server = OneByOne(WHOLE)
    async with world(server, config=HOLDS, seconds=LONG) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, user="first"))
        await here.server.until(lambda: server.came == ["first"])
        began = now()
        async with await here.chat(user="second", stream=True) as reply:
            assert now() - began == 10
            assert await reply.content.readuntil(b"\n\n") == b": waiting for a turn: next\n\n"
            server.answer_one(2)
            assert (await first).status == 200
            rest = await reply.read()
            assert rest.startswith(b"data: ") and json.loads(rest[6:])["error"], "its status comes too late"


async def test_on_demand_the_load_is_told_rather_than_the_state() -> None:
    async with many_world({"tiny": streams(chunk("a"), DONE)}, config=HOLDS) as here:
        model = here.models["tiny"]
        model.notice, model.upstream.readiness = "loading `tiny`", LOADING
        async with await here.chat("tiny", stream=True) as reply:
            assert await reply.content.readuntil(b"\n\n") == b": loading `tiny`\n\n"
            model.notice = ""
            assert await reply.content.readuntil(b"\n\n") == b": hashing\n\n"
            model.granted.set()
            assert await reply.read() == chunk("a") + DONE


# The end of a stream that has begun.


async def raw(here: World, *, member: bool, head: Callable[[bytes], bytes] = bytes) -> bytes:
    """All that a connection gets for a chat that is streamed."""
    if member:
        ours, theirs = socket.socketpair()
        await here.gateway.take(theirs, MemberCaller(b"m" * 32))
        reader, writer = await asyncio.open_unix_connection(sock=ours)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    body = raw_post(here.port, {"stream": True})
    writer.write(body.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost", 1))
    said = await reader.read(-1)
    writer.close()
    return said


@pytest.mark.parametrize("member", [False, True])
@pytest.mark.parametrize(("after", "is_cut"), [(dies(chunk("a")), True), (says(499, {}), False)])
async def test_a_members_gateway_asks_again_where_a_client_gets_an_error(
    member: bool, after: Answer, is_cut: bool
) -> None:
    """Its connection ends without the end of the answer, unless the request is at fault."""
    if not is_cut:
        after = streams(chunk("a"), HUGE)
    async with world(after) as here:
        said = await raw(here, member=member)
        whole = said.endswith(b"0\r\n\r\n")
        if is_cut:
            assert whole is not member and (b'data: {"error"' in said) is not member
            assert (b": llama-server exited during the answer\n\n" in said) is member
        else:
            assert whole


@pytest.mark.parametrize(("status", "is_cut"), [(500, True), (499, False)])
async def test_a_member_is_cut_off_by_failures_of_the_server_alone(status: int, is_cut: bool) -> None:
    """They come after comments, when a status comes too late."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(15)
        error = {"message": "Compute error.", "code": status, "type": "server_error"}
        return await says(status, {"error": error})(server, request)

    async with world(answer, seconds=LONG) as here:
        received = await raw(here, member=True)
        assert received.endswith(b"0\r\n\r\n") is not is_cut
        assert (b": Compute error.\n\n" in received) is is_cut


async def test_the_status_of_a_failed_stream_is_that_of_its_failure() -> None:
    async with world(dies(chunk("a"))) as here:
        reply = await ask(here, stream=True)
        assert reply.status == 200 and reply.error["code"] == "upstream_lost"
        await asyncio.sleep(1)
        assert statuses(here) == {"502": 1}


async def test_who_hangs_up_is_counted_as_gone() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a"))
        await server.let_go.wait()
        return response

    async with world(answer) as here:
        reply = await here.chat(stream=True)
        await reply.content.readuntil(b"\n\n")
        reply.close()
        await here.server.until(lambda: here.server.cancelled == 1)
        await here.until_idle()
        assert statuses(here) == {"499": 1}


async def test_a_gateway_that_stops_ends_all_requests_with_the_reason() -> None:
    async with world(OneByOne(WHOLE)) as here:
        here.upstream.slots = 1
        pairs = []
        for user in "ab":
            pairs.append(await asyncio.open_connection("127.0.0.1", here.port))
            pairs[-1][1].write(raw_post(here.port, {"user": user}))
        await here.server.until(lambda: here.server.active == 1)
        await asyncio.sleep(1)
    for reader, writer in pairs:
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5\r\n" in said
        assert b"meshd is stopping" in said
        writer.close()


@pytest.mark.parametrize(
    ("temperature", "comment"),
    [(0, b"computing the answer again up to where it stopped"), (1, b"keep-alive")],
)
async def test_silence_after_a_loss_says_whether_the_same_is_computed_again(
    temperature: float, comment: bytes
) -> None:
    """A greedy answer is, and of another one the rest is asked for."""
    again = [(0, chunk("a"))] * (temperature == 0)
    second = timed((25, b""), *again, (0, chunk("b")), (15, DONE))
    async with world(in_turn(dies(chunk("a")), second), config=HOLDS, seconds=LONG) as here:
        reply = await ask(here, stream=True, temperature=temperature)
        assert reply.events == chunk("a") + chunk("b") + DONE
        comments = [part[2:] for part in reply.body.split(b"\n\n") if part.startswith(b":")]
        assert set(comments[:-1]) == {comment} and comments[-1] == b"keep-alive", "that is over"
