"""One answer on a virtual clock: its wait for the model, its body, and its retries after losses."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from meshd.base.peer_limits import API_CULPRITS
from meshd.gateway.answer import BEGIN_SECONDS, AnswerContext
from meshd.gateway.events import EVENT_BYTES
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.upstream import CULPRIT_SECONDS
from meshd.model.device_sampling import DeviceSampling
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DONE,
    HI,
    FakeServer,
    FakeUpstream,
    OneByOne,
    begin_stream,
    chunk,
    die,
    many_world,
    says,
    streams,
    world,
)
from tests.unit.gateway.virtual_gateway import (
    CHAT,
    DEGRADED,
    FAILED,
    HOLDS,
    LOADING,
    LONG,
    NO_ROOM,
    READY,
    UNLOADED,
    WAITING,
    WHOLE,
    ask,
    dies,
    in_turn,
    measured,
    now,
    timed,
)
from tests.unit.model.test_device_sampling import SETTINGS

pytestmark = pytest.mark.virtual

# Shared state.


async def test_all_answers_end_with_the_reason_and_later_ones_do_not_begin() -> None:
    context = AnswerContext(GatewayConfig(), on_demand=False)
    async with context.until_stopped():
        await asyncio.sleep(1000)
    refusals = []

    async def wait() -> None:
        try:
            async with context.until_stopped():
                await asyncio.sleep(1000)
        except HttpRefusal as refusal:
            refusals.append(refusal.failure)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(wait())
        await asyncio.sleep(1)
        began = now()
        context.end_all("meshd is stopping")
    await wait()
    assert now() == pytest.approx(began)
    assert [(one.status, one.message, one.code, one.retry_after) for one in refusals] == [
        (503, "meshd is stopping", "stopping", 5)
    ] * 3


@pytest.mark.parametrize(
    ("config", "retries"),
    [
        (GatewayConfig(), False),
        (GatewayConfig(continue_seconds=0.5), True),
        (GatewayConfig(fails_over=True), True),
        (GatewayConfig(continue_seconds=0.5, fails_over=True), True),
    ],
)
async def test_requests_are_retried_where_they_wait_or_fail_over(
    config: GatewayConfig, retries: bool
) -> None:
    context = AnswerContext(config, on_demand=True)
    assert context.retries is retries and context.on_demand


@pytest.mark.parametrize(("keys", "hides"), [(0, False), (1, False), (2, True)])
async def test_what_is_cached_is_hidden_where_there_are_several_keys(keys: int, hides: bool) -> None:
    config = GatewayConfig(api_keys=tuple(ApiKey(f"key-{at:020}", f"k{at}") for at in range(keys)))
    assert AnswerContext(config, on_demand=False).hides_cache is hides


async def test_each_llama_server_has_a_queue_and_another_nodes_api_has_none() -> None:
    context = AnswerContext(GatewayConfig(), on_demand=False)
    one, two = FakeUpstream(Path("/one"), "one", slots=1), FakeUpstream(Path("/two"), "two", slots=2)
    elsewhere = FakeUpstream(Path("/three"), "three")
    elsewhere.slots = None  # type: ignore[assignment]
    assert context.served(elsewhere) is None
    assert (context.running, context.waiting, context.queues) == (0, 0, [])
    first, second = context.served(one), context.served(two)
    assert first is not None and second is not None and first is not second
    assert context.served(one) is first and context.served(two) is second
    with first.turns.enter("a"), first.turns.enter("b"), first.turns.enter("c"), second.turns.enter("a"):
        assert (context.running, context.waiting) == (2, 2)
        assert context.queues == [("one", 1, 2), ("two", 1, 0)]


async def test_an_answer_is_alone_while_there_is_exactly_one() -> None:
    context = AnswerContext(GatewayConfig(), on_demand=False)
    seen = [context.is_alone]
    with context.counted():
        seen.append(context.is_alone)
        with context.counted():
            seen.append(context.is_alone)
        seen.append(context.is_alone)
    assert [*seen, context.is_alone] == [False, True, False, True, False]


# The wait for the model.


@pytest.mark.parametrize(
    ("states", "status", "seconds"),
    [
        ([(0, READY)], 200, 0),
        ([(0, WAITING)], 503, BEGIN_SECONDS),
        ([(0, NO_ROOM)], 503, BEGIN_SECONDS),
        ([(0, DEGRADED)], 503, BEGIN_SECONDS),
        ([(0, WAITING), (14.5, READY)], 200, 14.5),
        ([(0, WAITING), (14.5, LOADING), (29.5, READY)], 200, 29.5),
        ([(0, LOADING)], 503, 100),
        ([(0, LOADING), (99.5, READY)], 200, 99.5),
        ([(0, LOADING), (20, WAITING)], 503, 30),
        ([(0, FAILED)], 503, 0),
        ([(0, UNLOADED)], 503, 0),
        ([(0, LOADING), (5, FAILED)], 503, 5),
        ([(0, LOADING), (50, UNLOADED)], 503, 50),
    ],
)
async def test_a_request_waits_as_long_as_its_model_may_come(
    states: list[tuple[float, Readiness]], status: int, seconds: float
) -> None:
    """It comes before the model is ready, which then changes after so many seconds."""
    async with world(says(200, WHOLE), config=HOLDS, seconds=LONG) as here:
        began = now()
        here.upstream.readiness = states[0][1]
        asked = asyncio.ensure_future(ask(here))
        for at, state in states[1:]:
            await asyncio.sleep(began + at - now())
            here.upstream.readiness = state
        reply = await asked
        assert reply.status == status and reply.took(seconds)
        assert len(here.server.seen) == (status == 200)
        if status == 503:
            last = here.upstream.readiness
            assert reply.error["code"] == f"model_{last.state}"
            assert last.reason in str(reply.error["message"])
            assert reply.headers["x-should-retry"] == "false", "it has waited"
            assert reply.headers.get("Retry-After") == (
                None if last.state is ModelState.FAILED else str(last.retry_after)
            )


@pytest.mark.parametrize(
    ("patience", "state", "seconds"),
    [(10.0, WAITING, 10), (10.0, LOADING, 10), (20.0, WAITING, BEGIN_SECONDS)],
)
async def test_it_waits_no_longer_than_answers_may(patience: float, state: Readiness, seconds: float) -> None:
    config = GatewayConfig(port=0, continue_seconds=patience)
    async with world(says(200, WHOLE), config=config, seconds=LONG) as here:
        here.upstream.readiness = state
        reply = await ask(here)
        assert reply.status == 503 and reply.took(seconds)


@pytest.mark.parametrize(
    "config", [GatewayConfig(port=0), GatewayConfig(port=0, continue_seconds=9.0, fails_over=True)]
)
async def test_where_requests_do_not_wait_they_are_refused_at_once(config: GatewayConfig) -> None:
    async with world(says(200, WHOLE), config=config) as here:
        here.upstream.readiness = LOADING
        reply = await ask(here)
        assert (reply.status, reply.seconds, reply.headers["Retry-After"]) == (503, 0, "7")
        assert "x-should-retry" not in reply.headers, "the client may ask again: nobody has waited"


@pytest.mark.parametrize(
    ("config", "back", "status", "seconds"),
    [
        (HOLDS, 99.0, 200, 99),
        (HOLDS, None, 503, 100),
        (GatewayConfig(port=0), None, 503, 0),
    ],
)
async def test_a_model_that_is_lost_while_a_request_queues_is_waited_for(
    config: GatewayConfig, back: float | None, status: int, seconds: float
) -> None:
    server = OneByOne(WHOLE)
    async with world(server, config=config, seconds=LONG) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, user="first"))
        await here.server.until(lambda: server.came == ["first"])
        second = asyncio.ensure_future(ask(here, user="second"))
        await asyncio.sleep(5)
        here.upstream.readiness = WAITING
        server.answer_one(2)
        assert (await first).status == 200
        began = now()
        if back is not None:
            await asyncio.sleep(back)
            here.upstream.readiness = READY
        reply = await second
        assert reply.status == status and now() - began == pytest.approx(seconds, abs=0.06)
        assert ("x-should-retry" in reply.headers) is (config is HOLDS and status == 503)


async def test_a_model_on_demand_that_cannot_be_loaded_is_not_waited_for_again() -> None:
    async with many_world({"tiny": says(200, WHOLE)}, config=HOLDS) as here:
        model = here.models["tiny"]
        model.refused = NO_ROOM
        asked = asyncio.ensure_future(here.chat("tiny"))
        await asyncio.sleep(10)
        began = now()
        model.granted.set()
        async with await asked as reply:
            assert (reply.status, now() - began) == (503, 0)
            assert "too large" in (await reply.json())["error"]["message"]
        assert [turn.ended for turn in model.turns] == [True] and not model.server.seen


# Losses.


@pytest.mark.parametrize(("losses", "status", "tries"), [(1, 200, 2), (3, 200, 4), (4, 502, 4)])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_request_is_sent_four_times_at_most(
    losses: int, status: int, tries: int, whole: bool
) -> None:
    deaths = [dies(b"{", whole=True) if whole else dies()] * losses
    async with world(in_turn(*deaths, says(200, WHOLE)), config=HOLDS, seconds=LONG) as here:
        here.upstream.knows = "worker garage is lost"
        here.upstream.readiness = Readiness(ModelState.READY, "", retry_after=9)
        reply = await ask(here)
        assert (reply.status, len(here.server.seen), len(here.upstream.broke)) == (
            status,
            tries,
            min(losses, 4),
        )
        assert measured(here, "meshd_answer_losses_total") == min(losses, 4)
        if status == 502:
            assert (reply.error["code"], reply.error["message"]) == ("upstream_lost", "worker garage is lost")
            assert (reply.error["type"], reply.headers["Retry-After"]) == ("upstream_error", "9")


async def test_without_retries_the_first_loss_is_the_answer() -> None:
    async with world(in_turn(dies(), says(200, WHOLE))) as here:
        reply = await ask(here)
        assert (reply.status, len(here.server.seen)) == (502, 1)


async def test_what_was_never_received_is_another_failure_than_what_was_lost() -> None:
    async with world(says(200, WHOLE)) as here:
        here.upstream.socket_path = here.upstream.socket_path.with_name("none")
        here.upstream.readiness = Readiness(ModelState.READY, "", retry_after=9)
        reply = await ask(here)
        assert (reply.status, reply.error["code"]) == (503, "upstream_away")
        assert (reply.error["type"], reply.headers["Retry-After"]) == ("unavailable_error", "9")
        assert measured(here, "meshd_answer_losses_total") == 1


@pytest.mark.parametrize(
    ("lost", "back", "seconds", "code"),
    [(LOADING, 99.0, 99, None), (LOADING, None, 100, "upstream_lost"), (FAILED, None, 0, "upstream_lost")],
)
async def test_the_rest_comes_once_the_model_is_back(
    lost: Readiness, back: float | None, seconds: float, code: str | None
) -> None:
    async with world(
        in_turn(dies(chunk("a")), streams(chunk("b"), DONE)), config=HOLDS, seconds=LONG
    ) as here:

        async def broke() -> None:
            here.upstream.readiness = lost

        here.upstream.on_broke = broke
        asked = asyncio.ensure_future(ask(here, stream=True))
        if back is not None:
            await asyncio.sleep(back)
            here.upstream.readiness = Readiness(ModelState.READY, "", note="continued on one machine less")
        reply = await asked
        assert reply.took(seconds)
        if code is None:
            assert reply.events == chunk("a") + chunk("b") + DONE
            assert reply.body.count(b": continued on one machine less\n\n") == 1
            rest = here.server.asked()[1]["messages"][-1]
            assert rest == {"role": "assistant", "content": "a"}
        else:
            assert reply.events.startswith(chunk("a")) and reply.error["code"] == code
            assert len(here.server.seen) == 1


async def test_a_head_that_fails_over_says_why_at_once() -> None:
    config = GatewayConfig(port=0, fails_over=True)
    async with world(in_turn(dies(chunk("a")), streams(chunk("b"), DONE)), config=config) as here:
        here.upstream.knows = "the connection to `one` was lost"
        reply = await ask(here, stream=True)
        assert reply.events == chunk("a") + chunk("b") + DONE
        assert reply.body.index(b": the connection to `one` was lost\n\n") == len(chunk("a"))


async def test_another_answer_ends_the_stream_if_it_cannot_be_joined() -> None:
    """With a seed of the client the answer is made again, and with a grammar only that is possible."""
    other = streams(chunk("x"), chunk("y"), DONE)
    async with world(in_turn(dies(chunk("a")), other), config=HOLDS, seconds=LONG) as here:
        reply = await ask(here, stream=True, seed=1, temperature=1, grammar='root ::= "a" | "x"')
        assert reply.events.startswith(chunk("a")) and chunk("x") not in reply.events
        assert reply.error["code"] == "upstream_lost" and "another run" in str(reply.error["message"])
        assert len(here.server.seen) == 2


@pytest.mark.parametrize("sent", [False, True], ids=["before the first byte", "after it"])
@pytest.mark.parametrize(("config", "tries"), [(HOLDS, 2), (GatewayConfig(port=0), 1)])
async def test_a_loss_that_is_final_is_never_retried(config: GatewayConfig, tries: int, sent: bool) -> None:
    """It was alone with llama-server at two crashes, or at one where nothing is retried."""
    async with world(dies(*[chunk("a")] * sent), config=config, seconds=LONG) as here:

        async def broke() -> None:
            here.upstream.crashes += 1

        here.upstream.on_broke = broke
        reply = await ask(here, stream=True)
        assert reply.error["code"] == "request_ends_server" and len(here.server.seen) == tries
        if not sent:
            assert (reply.status, reply.headers["x-should-retry"]) == (500, "false")


async def test_a_caller_whose_requests_end_llama_server_is_refused_for_a_while() -> None:
    deaths = [dies()] * API_CULPRITS.most
    async with world(in_turn(*deaths, says(200, WHOLE)), seconds=LONG) as here:

        async def broke() -> None:
            here.upstream.crashes += 1

        here.upstream.on_broke = broke
        codes = [(await ask(here)).error["code"] for _ in range(API_CULPRITS.most + 1)]
        assert codes == ["request_ends_server"] * API_CULPRITS.most + ["too_many_crashes"]
        refused = await ask(here, stream=True)
        assert (refused.status, refused.headers["Retry-After"]) == (429, str(round(CULPRIT_SECONDS) + 1))
        assert len(here.server.seen) == API_CULPRITS.most
        assert (await ask(here, "/tokenize", content="a")).status == 429, "it has a body as well"
        async with here.http.get(f"{here.url}/props") as reply:
            assert reply.status == 200, "what has none ends nothing"
        await asyncio.sleep(CULPRIT_SECONDS)
        assert (await ask(here)).status == 200


# The body.


@pytest.mark.parametrize(
    ("config", "path", "fields", "seed"),
    [
        (HOLDS, CHAT, {}, True),
        (GatewayConfig(port=0, fails_over=True), CHAT, {}, True),
        (GatewayConfig(port=0), CHAT, {}, False),
        (HOLDS, "/completion", {"prompt": "a"}, True),
        (HOLDS, "/v1/embeddings", {"input": "a"}, False),
        (HOLDS, "/tokenize", {"content": "a"}, False),
    ],
)
async def test_a_seed_is_added_to_what_generates_and_may_be_retried(
    config: GatewayConfig, path: str, fields: dict[str, str], seed: bool
) -> None:
    async with world(in_turn(dies(), says(200, WHOLE)), config=config) as here:
        await ask(here, path, **fields)
        await ask(here, path, **fields)
        seeds = [asked.get("seed") for asked in here.server.asked()]
    if seed:
        assert all(isinstance(one, int) and 0 <= one < 1 << 31 for one in seeds)
        assert seeds[0] == seeds[1] != seeds[2], "a retry has the same, and the next request another"
    else:
        assert set(seeds) == {None}


async def test_requests_without_a_body_are_gets_of_the_path_alone() -> None:
    async with world(says(200, {"model_path": "/secret", "n": 1})) as here:
        async with here.http.get(f"{here.url}/props", headers={"X-Any": "1"}) as reply:
            assert (reply.status, await reply.json()) == (200, {"model_path": "tiny", "n": 1})
        await ask(here, "/tokenize", content="a")
        [get, post] = here.server.seen
    assert get[:2] == ("GET", "/props") and get[3] == b"" and "Content-Type" not in get[2]
    assert post[:2] == ("POST", "/tokenize") and post[2]["Content-Type"] == "application/json"
    for seen in (get, post):
        assert seen[2]["Accept-Encoding"] == "identity" and "X-Any" not in seen[2]


async def test_fields_for_the_device_are_added_to_what_may_grow() -> None:
    async with world(says(200, WHOLE)) as here:
        sampling = here.upstream.device_sampling = DeviceSampling(SETTINGS, 50_000)
        await ask(here, temperature=0)
        await ask(here, "/tokenize", content="a")
        chat, other = here.server.asked()
        added = sampling.added_to({"temperature": 0})
        assert added and {name: chat[name] for name in added} == added
        assert other == {"content": "a"}
        refused = await ask(here, backend_sampling=True)
        assert (refused.status, refused.error["code"]) == (400, "backend_sampling_not_allowed")
        here.upstream.device_sampling = None
        await ask(here, temperature=0)
        assert not added.keys() & here.server.asked()[-1].keys() - {"temperature"}


@pytest.mark.parametrize(("elsewhere", "questions"), [(False, True), (True, False)])
async def test_a_template_is_asked_again_after_a_loss_and_another_nodes_is_not(
    elsewhere: bool, questions: bool
) -> None:
    twice = [*HI["messages"], *HI["messages"]]  # which some templates refuse

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apply-template":
            return web.json_response({"prompt": server.seen[-1][3].decode()})
        return await answers(server, request)

    answers = in_turn(says(200, WHOLE), says(200, WHOLE), dies(), says(200, WHOLE))
    async with world(answer) as here:
        if elsewhere:
            here.upstream.slots = None  # type: ignore[assignment]
        asked = []
        for _ in range(4):
            before = len(here.server.seen)
            await ask(here, messages=twice)
            asked.append(len(here.server.seen) - before > 1)
        assert asked == ([True, False, False, True] if questions else [False] * 4)


async def test_what_one_head_refuses_the_next_one_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = says(503, {"error": {"message": "too many", "code": 503}})
    config = GatewayConfig(port=0, fails_over=True)
    async with world(in_turn(busy, busy, says(200, WHOLE)), config=config) as here:
        monkeypatch.setattr(here.upstream, "is_refusal", lambda status: status == 503)
        assert (await ask(here)).status == 200
        assert here.upstream.broke == ["too many"] * 2
    async with world(busy) as here:
        monkeypatch.setattr(here.upstream, "is_refusal", lambda status: status == 503)
        reply = await ask(here)
        assert (reply.status, reply.error["code"]) == (503, "upstream_away"), "nothing was generated"


async def test_a_run_that_is_shorter_than_the_first_differs() -> None:
    first, second = dies(chunk("a"), chunk("b")), streams(chunk("a"))
    async with world(in_turn(first, second), config=HOLDS, seconds=LONG) as here:
        reply = await ask(here, stream=True, seed=1, temperature=1, grammar='root ::= "a" | "ab"')
        assert reply.events.startswith(chunk("a") + chunk("b")) and "another run" in str(
            reply.error["message"]
        )


async def test_a_suspect_passes_with_its_pieces_and_the_next_one_is_tried() -> None:
    """Two were there at a crash: the second trial begins after the sixteenth new piece of the first."""
    began: list[float] = []

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        began.append(now())
        if len(began) > 2:
            return await timed(*[(1, chunk(str(at))) for at in range(40)], (0, DONE))(server, request)
        response = await begin_stream(request)
        await server.let_go.wait()
        die(request)
        return response

    async with world(answer, config=HOLDS, seconds=LONG) as here:

        async def broke() -> None:
            here.upstream.crashes = 1

        here.upstream.on_broke = broke
        asked = [asyncio.ensure_future(ask(here, stream=True)) for _ in range(2)]
        await here.server.until(lambda: len(began) == 2)
        here.server.let_go.set()
        assert [(await reply).events.endswith(DONE) for reply in asked] == [True, True]
        assert began[3] - began[2] == pytest.approx(16, abs=0.6)


async def test_comments_go_on_after_a_loss_within_an_event() -> None:
    long = b"data: " + b"x" * (2 * EVENT_BYTES)
    async with world(dies(long), config=HOLDS, seconds=LONG) as here:

        async def broke() -> None:
            here.upstream.readiness = LOADING

        here.upstream.on_broke = broke
        asked = asyncio.ensure_future(ask(here, stream=True))
        await asyncio.sleep(25)
        here.upstream.readiness = READY
        reply = await asked
        assert reply.body.count(b": hashing\n\n") == 3 and reply.error["code"] == "upstream_lost"
        assert len(here.server.seen) == 1, "it came in pieces"
