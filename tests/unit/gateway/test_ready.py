"""True readiness: one real token, with the reason when there is none."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.gateway.ready import drafted_rounds, one_round, one_token
from meshd.model.device_sampling import DeviceSampling

from tests.process.gateway_fake import Answer, FakeServer, die, listening, says
from tests.unit.model.test_device_sampling import SETTINGS

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
TOKEN = {"content": " world", "tokens_predicted": 1, "timings": {"predicted_n": 1}}


def of_logits(_settings: Mapping[str, object]) -> DeviceSampling | None:
    return None


def of_candidates(settings: Mapping[str, object]) -> DeviceSampling:
    return DeviceSampling(settings, 50_000)


def told(settings: object, answer: Answer) -> Answer:
    """It tells its settings, and answers what else it is asked."""

    async def either(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/props":
            return web.json_response({"default_generation_settings": {"params": settings}})
        return await answer(server, request)

    return either


@contextlib.asynccontextmanager
async def server_at(answer: Answer) -> AsyncIterator[tuple[FakeServer, Path]]:
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        server = FakeServer(answer)
        async with asyncio.timeout(20), listening(server, Path(folder) / "s"):
            yield server, Path(folder) / "s"


def report_for(answer: Answer, sampling: FindSampling = of_logits) -> tuple[ReadyReport, FakeServer]:
    async def scenario() -> tuple[ReadyReport, FakeServer]:
        async with server_at(answer) as (server, path):
            return await one_token(path, sampling), server

    return asyncio.run(scenario())


def test_a_token_at_temperature_0_makes_it_ready() -> None:
    report, server = report_for(says(200, TOKEN))
    assert report.ready
    assert report.reason == ""
    assert [(method, path) for method, path, _, _ in server.seen] == [
        ("GET", "/props"),
        ("POST", "/completion"),
    ]
    asked = json.loads(server.seen[1][3])
    assert (asked["n_predict"], asked["temperature"]) == (1, 0)


@pytest.mark.parametrize("settings", [SETTINGS, {}, [1], None])
def test_the_token_is_taken_as_those_of_clients_are(settings: object) -> None:
    told_settings = settings if isinstance(settings, dict) else {}
    report, server = report_for(told(settings, says(200, TOKEN)), of_candidates)
    assert report.ready
    assert report.settings == told_settings
    assert report.props == {"default_generation_settings": {"params": settings}}
    asked = json.loads(server.seen[1][3])
    assert asked.get("backend_sampling", False) is (settings == SETTINGS)
    added = of_candidates(told_settings).added_to({"prompt": asked["prompt"], "temperature": 0})
    assert {name: asked[name] for name in added} == added


def test_a_server_that_tells_no_settings_is_asked_for_a_token_all_the_same() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/props":
            die(request)
        return web.json_response(TOKEN)

    report, _ = report_for(answer, of_candidates)
    assert (report.ready, report.settings) == (True, {})


def test_loading_is_waited_for() -> None:
    async def answer(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        if len(server.seen) < 4:
            return web.json_response(LOADING, status=503)
        return web.json_response(TOKEN)

    report, server = report_for(answer)
    assert report.ready
    assert [path for _, path, _, _ in server.seen] == ["/props"] * 4 + ["/completion"]


async def test_a_socket_that_is_not_there_yet_is_waited_for() -> None:
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        path, server = Path(folder) / "s", FakeServer(says(200, TOKEN))
        async with asyncio.timeout(20):
            asked = asyncio.ensure_future(one_token(path, of_logits))
            await asyncio.sleep(0)
            async with listening(server, path):
                assert (await asked).ready


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (500, {"error": {"message": "Compute error."}}, "Compute error."),
        (501, {"error": {"message": "no completion"}}, "no completion"),
        (500, "text", "500"),
        (200, {"content": "", "tokens_predicted": 0}, "without a token"),
        (200, {"timings": {"predicted_n": "1"}}, "without a token"),
        (200, [], "without a token"),
    ],
)
def test_anything_but_a_token_is_reported_with_its_reason(status: int, body: object, reason: str) -> None:
    report, _ = report_for(says(status, body))
    assert not report.ready
    assert reason in report.reason


def test_an_upstream_that_dies_on_the_first_token_is_reported() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        die(request)
        return web.Response()

    report, _ = report_for(answer)
    assert not report.ready
    assert "exited" in report.reason


async def test_giving_up_closes_the_connection() -> None:
    async def silent(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.Response()

    async with server_at(silent) as (server, path):
        asked = asyncio.ensure_future(one_token(path, of_logits))
        await server.until(lambda: server.active == 1)
        asked.cancel()
        await server.until(lambda: server.cancelled == 1)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_an_answer_in_pieces_is_read_to_its_end() -> None:
    async def in_pieces(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        data = json.dumps({"content": "x" * 1000, "tokens_predicted": 1}).encode()
        for start in range(0, len(data), 100):
            await response.write(data[start : start + 100])
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    async with server_at(in_pieces) as (_, path):
        assert (await one_token(path, of_logits)).ready


def round_of(answer: Answer) -> tuple[float | None, FakeServer]:
    async def scenario() -> tuple[float | None, FakeServer]:
        async with server_at(answer) as (server, path):
            return await one_round(path, of_candidates(SETTINGS)), server

    return asyncio.run(scenario())


def test_a_round_is_the_shortest_second_token_of_some_tries() -> None:
    taken = iter([90.0, 50.0, 70.0])

    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        timings = {"prompt_n": 1, "prompt_ms": 9.0, "predicted_n": 2, "predicted_ms": next(taken)}
        return web.json_response({"content": "ab", "timings": timings})

    seconds, server = round_of(answer)
    assert seconds == 0.05
    asked = [json.loads(body) for _, _, _, body in server.seen]
    assert [one["n_predict"] for one in asked] == [2, 2, 2], "with one to go nothing is drafted"
    assert all(one["backend_sampling"] for one in asked), "as the requests of clients"


def test_drafted_rounds_are_those_of_the_shorter_of_two_answers() -> None:
    taken = iter([900.0, 700.0])

    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        timings = {"prompt_n": 1, "prompt_ms": 9.0, "predicted_n": 9, "predicted_ms": next(taken)}
        return web.json_response({"timings": {**timings, "draft_n": 6, "draft_n_accepted": 4}})

    async def scenario() -> AnswerTimings | None:
        async with server_at(answer) as (server, path):
            found = await drafted_rounds(path, None, 3)
            assert [json.loads(body)["n_predict"] for _, _, _, body in server.seen] == [9, 9]
            return found

    assert asyncio.run(scenario()) == AnswerTimings(1, 0.009, 9, 0.7, 6, 4)


def test_without_drafts_there_are_no_drafted_rounds() -> None:
    async def scenario() -> AnswerTimings | None:
        async with server_at(says(200, TOKEN)) as (_, path):
            return await drafted_rounds(path, None, 3)

    assert asyncio.run(scenario()) is None


@pytest.mark.parametrize("answer", [says(200, TOKEN), says(500, {"error": {}}), says(200, "text")])
def test_without_two_tokens_a_round_is_not_known(answer: Answer) -> None:
    assert round_of(answer)[0] is None


def test_a_round_of_an_upstream_that_dies_is_not_known() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        die(request)
        return web.Response()

    assert round_of(answer)[0] is None
