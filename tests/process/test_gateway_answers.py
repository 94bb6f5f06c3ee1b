"""Answers in one piece, our own answers, and what is said while the model is away."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from meshd.base.peer_limits import INTERIM_ANSWERS
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.gateway.upstream import UpstreamLost, open_session, read_some, send_call
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, WorkerWeights

from tests.process.gateway_fake import HI, FakeServer, die, listening, raw_post, says, when, world

COMPLETION = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}

NOT_READY = [state for state in ModelState if state is not ModelState.READY]


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, object]:
    """The error object, which every refusal has."""
    parsed: dict[str, dict[str, object]] = json.loads(await answer.read())
    assert set(parsed["error"]) == {"message", "type", "param", "code"}
    return parsed["error"]


async def test_an_answer_is_passed_on_whole_and_counted() -> None:
    async with world(says(200, COMPLETION)) as here:
        answer = await here.chat(temperature=0)
        assert answer.status == 200
        assert await answer.json() == COMPLETION
        method, path, headers, body = here.server.seen[0]
        assert (method, path) == ("POST", "/v1/chat/completions")
        assert json.loads(body)["temperature"] == 0
        assert headers["Content-Type"] == "application/json"
        status = here.gateway.status
        assert (status.requests, status.tokens) == (1, 5)
        assert status.ready


async def test_only_needed_headers_reach_llama_server() -> None:
    """X-Conversation-Id makes llama-server go on generating for a client that is gone."""

    async with world(says(200, COMPLETION)) as here:
        extra = {"X-Conversation-Id": "c", "Authorization": "Bearer k", "Cookie": "a=b", "X-Any": "1"}
        async with here.http.post(f"{here.url}/completion", json={}, headers=extra) as answer:
            assert answer.status == 200
        names = {name.lower() for name in here.server.seen[0][2]}
        expected = {"host", "content-type", "content-length", "accept-encoding", "connection"}
        assert names - {"accept", "user-agent"} == expected
        assert here.server.seen[0][2]["Connection"] == "close"


async def test_a_query_is_not_passed_on() -> None:
    async with world(says(200, {})) as here:
        async with here.http.get(f"{here.url}/props?model=/etc/passwd&autoload=1") as answer:
            assert answer.status == 200
        assert here.server.seen[0][:2] == ("GET", "/props")


async def test_where_the_model_lies_is_not_told() -> None:
    said = {"model_path": "/home/anna/models/secret-project.gguf", "total_slots": 4}

    async with world(says(200, said)) as here:
        async with here.http.get(f"{here.url}/props") as answer:
            assert await answer.json() == {"model_path": "tiny", "total_slots": 4}


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_llama_server_are_told_in_openai_s_form(stream: bool) -> None:
    refusal = {"error": {"code": 400, "message": "no messages", "type": "invalid_request_error"}}
    told = {"error": {**refusal["error"], "param": None, "code": "invalid_request"}}
    async with world(says(400, refusal)) as here:
        answer = await here.chat(stream=stream)
        assert answer.status == 400
        assert await answer.json() == told
        assert here.upstream.broke == []


async def test_a_refusal_that_is_not_json_is_made_json() -> None:
    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=500, text="oops")

    async with world(answer) as here:
        reply = await here.chat()
        assert reply.status == 500
        assert "oops" in str((await error_of(reply))["message"])


@pytest.mark.parametrize(
    ("after", "stream"),
    [("nothing", False), ("nothing", True), ("headers", False), ("half a body", False)],
)
async def test_an_upstream_that_dies_gives_502_with_what_the_head_knows(after: str, stream: bool) -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        if after != "nothing":
            await response.prepare(request)
        if after == "half a body":
            await response.write(b'{"id":')
        die(request)
        return response

    async with world(answer) as here:
        here.upstream.knows = "worker garage is lost: no link for 20 s"
        reply = await here.chat(stream=stream)
        assert (reply.status, reply.headers["Retry-After"]) == (502, "5")
        error = await error_of(reply)
        assert (error["type"], error["code"]) == ("upstream_error", "upstream_lost")
        assert error["message"] == here.upstream.knows
        assert len(here.upstream.broke) == 1


async def test_an_absent_upstream_gives_503_and_the_next_one_answers_on_the_same_path() -> None:
    async with world(says(200, COMPLETION)) as here:
        assert (await here.chat()).status == 200
        path = here.upstream.socket_path
        path.rename(path.with_name("away"))
        reply = await here.chat()
        assert reply.status == 503
        assert reply.headers["Retry-After"] == "5"
        assert (await error_of(reply))["code"] == "upstream_away"
        assert len(here.upstream.broke) == 1
        second = FakeServer(says(200, COMPLETION))
        async with listening(second, path):
            assert (await here.chat()).status == 200
        assert len(second.seen) == 1
        path.with_name("away").rename(path)


async def test_a_full_accept_queue_is_waited_for() -> None:
    """A busy llama-server is not a dead one: it would be restarted for nothing."""

    async with world(says(200, COMPLETION)) as here:
        path = here.upstream.socket_path
        path.rename(path.with_name("away"))
        slow = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        slow.bind(str(path))
        slow.listen(1)
        slow.setblocking(False)
        replies = [asyncio.ensure_future(here.chat()) for _ in range(8)]
        loop = asyncio.get_running_loop()
        body = json.dumps(COMPLETION).encode()
        for _ in replies:
            connection, _ = await loop.sock_accept(slow)
            while b"\r\n\r\n" not in await loop.sock_recv(connection, 1 << 16):
                pass
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            await loop.sock_sendall(connection, head.encode() + b"\r\n\r\n" + body)
            connection.close()
        assert [(await reply).status for reply in replies] == [200] * 8
        assert here.upstream.broke == []
        slow.close()
        path.unlink()
        path.with_name("away").rename(path)


@pytest.mark.parametrize("state", NOT_READY)
async def test_until_it_is_ready_calls_get_503_with_the_reason(state: ModelState) -> None:
    async with world(says(200, COMPLETION)) as here:
        anna = WorkerWeights("anna", 100, 60, 40, 10)
        here.upstream.readiness = Readiness(
            state, "hashing 3 of 17 GB", retry_after=7, progress=0.2, workers=(anna,)
        )
        for stream in (False, True):
            reply = await here.chat(stream=stream)
            assert reply.status == 503
            later = None if state is ModelState.FAILED else "7"
            assert reply.headers.get("Retry-After") == later
            error = await error_of(reply)
            assert error["type"] == "not_ready_error"
            assert "hashing 3 of 17 GB" in str(error["message"])
            assert error["code"] == f"model_{state}"
        async with here.http.get(f"{here.url}/health") as health:
            assert health.status == 503
            assert health.headers.get("Retry-After") == later
            said = await health.json()
            assert said["status"] == str(state)
            assert said["reason"] == "hashing 3 of 17 GB"
            assert said["progress"] == 0.2
            assert said["workers"] == [
                {"node": "anna", "total_bytes": 100, "local_bytes": 60, "missing_bytes": 40, "sent_bytes": 10}
            ]
        assert here.server.seen == []
        assert not here.gateway.status.ready
        here.upstream.readiness = Readiness(ModelState.READY, "")
        async with here.http.get(f"{here.url}/health") as health:
            assert (health.status, (await health.json())["status"]) == (200, "ok")
        assert (await here.chat()).status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/org%2Ftiny%20model"])
async def test_no_model_is_listed_before_it_answers(path: str) -> None:
    async with world(says(200, {})) as here:
        here.upstream.model_name = "org/tiny model"
        here.upstream.readiness = Readiness(ModelState.LOADING, "loading", retry_after=7)
        async with here.http.get(here.url + path) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
            assert (await error_of(answer))["code"] == "model_loading"


async def test_the_model_is_listed_by_its_real_name() -> None:
    async with world(says(200, {})) as here:
        here.upstream.model_name = "org/tiny model"
        async with here.http.get(f"{here.url}/v1/models") as answer:
            listed = await answer.json()
        assert [model["id"] for model in listed["data"]] == ["org/tiny model"]
        async with here.http.get(f"{here.url}/v1/models/org%2Ftiny%20model") as answer:
            assert (answer.status, (await answer.json())["id"]) == (200, "org/tiny model")
        async with here.http.get(f"{here.url}/v1/models/other") as answer:
            assert answer.status == 404
            assert (await error_of(answer))["code"] == "model_not_found"
        here.upstream.model_name = ""
        async with here.http.get(f"{here.url}/v1/models") as answer:
            assert (await answer.json())["data"] == []
        assert here.server.seen == []


async def test_a_listed_model_says_how_long_its_context_is_and_what_it_can() -> None:
    async with world(says(200, {})) as here:
        here.upstream.facts = ServedFacts(
            context=8192,
            trained_context=40960,
            created=1700000000,
            size=5,
            parameters=7,
            architecture="qwen3",
            quantization="Q4_K_M",
            capabilities=("completion", "tools"),
        )
        async with here.http.get(f"{here.url}/v1/models") as answer:
            [listed] = (await answer.json())["data"]
        async with here.http.get(f"{here.url}/v1/models/tiny") as answer:
            assert await answer.json() == listed
        assert listed == {
            "id": "tiny",
            "object": "model",
            "created": 1700000000,
            "owned_by": "meshd",
            "max_model_len": 8192,
            "context_length": 8192,
            "context_window": 8192,
            "capabilities": ["completion", "tools"],
            "meta": {
                "n_ctx": 8192,
                "n_ctx_train": 40960,
                "n_params": 7,
                "size": 5,
                "ftype": "Q4_K_M",
                "architecture": "qwen3",
            },
        }
        here.upstream.facts = ServedFacts(trained_context=40960)
        async with here.http.get(f"{here.url}/v1/models") as answer:
            [listed] = (await answer.json())["data"]
        assert "max_model_len" not in listed and listed["meta"] == {"n_ctx_train": 40960}


@pytest.mark.parametrize(
    "path",
    [
        "/slots",
        "/slots/0",
        "/lora-adapters",
        "/cors-proxy",
        "/index.html",
        "/chat.js/",
        "/page/chat.js",
        "//",
        "/v1/files",
        "/api/v0/models",
    ],
)
async def test_paths_that_are_not_listed_do_not_exist(path: str) -> None:
    async with world(says(200, {})) as here:
        for send in (here.http.get, here.http.delete):
            async with send(f"{here.url}{path}") as answer:
                assert answer.status == 404
                await error_of(answer)
        async with here.http.post(f"{here.url}{path}", json={}) as answer:
            assert answer.status == 404
        assert here.server.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/props"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/health"),
        ("PUT", "/"),
        ("DELETE", "/chat.js"),
    ],
)
async def test_another_method_is_refused(method: str, path: str) -> None:
    async with world(says(200, {})) as here:
        async with here.http.request(method, f"{here.url}{path}", json={}) as answer:
            assert answer.status == 405
            assert answer.headers["Allow"] == ("POST" if method == "GET" else "GET")
            await error_of(answer)
        assert here.server.seen == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, "{}".encode("utf-16")])
async def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    async with world(says(200, {})) as here:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        async with here.http.post(f"{here.url}/completion", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert (await error_of(answer))["code"] == "invalid_json"
        assert here.server.seen == []
        assert here.upstream.under_way == 0


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_gets_413(announced: bool) -> None:
    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 1000

    async with world(says(200, COMPLETION), config=GatewayConfig(port=0, max_body_bytes=10_000)) as here:
        headers = {"Content-Type": "application/json"}
        fits = b"{" + b" " * 9_998 + b"}"
        async with here.http.post(f"{here.url}/completion", data=fits, headers=headers) as answer:
            assert answer.status == 200
        data = fits + b" " if announced else pieces(11)
        async with here.http.post(f"{here.url}/completion", data=data, headers=headers) as answer:
            assert answer.status == 413
            assert (await error_of(answer))["code"] == "body_too_large"
        assert len(here.server.seen) == 1


async def test_large_bodies_together_are_bounded_and_their_room_comes_back() -> None:
    async def wait(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.json_response(COMPLETION)

    config = GatewayConfig(port=0, max_body_bytes=10_000, max_bodies_bytes=15_000)
    async with world(wait, config=config) as here:
        first = asyncio.ensure_future(here.chat(pad="x" * 9_000))
        await here.server.until(lambda: here.server.active == 1)
        refused = await here.chat(pad="x" * 9_000)
        assert refused.status == 503
        assert "Retry-After" in refused.headers
        here.server.let_go.set()
        assert (await first).status == 200
        assert (await here.chat(pad="x" * 9_000)).status == 200


async def test_a_body_that_outlives_the_model_waits_for_its_load() -> None:
    async with world(says(200, COMPLETION), config=GatewayConfig(port=0, continue_seconds=300.0)) as here:
        request = raw_post(here.port, HI)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(request[:-2])
        await when(here, lambda: bool(here.upstream.active))
        here.upstream.readiness = Readiness(ModelState.LOADING, "worker anna is lost")
        writer.write(request[-2:])
        await when(here, lambda: bool(here.gateway.status.requests))
        assert not here.server.seen
        here.upstream.readiness = Readiness(ModelState.READY, "")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await writer.wait_closed()


async def test_only_so_many_requests_are_under_way() -> None:
    async def wait(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.json_response(COMPLETION)

    async with world(wait, config=GatewayConfig(port=0, max_requests=2)) as here:
        running = [asyncio.ensure_future(here.chat()) for _ in range(2)]
        await here.server.until(lambda: here.server.active == 2)
        refused = await here.chat()
        assert refused.status == 503
        assert (await error_of(refused))["code"] == "busy"
        here.server.let_go.set()
        assert [(await one).status for one in running] == [200, 200]


async def test_before_a_restart_running_answers_end_and_no_other_begins() -> None:
    async def wait(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.json_response(COMPLETION)

    async with world(wait) as here:
        running = asyncio.ensure_future(here.chat())
        await here.server.until(lambda: here.server.active == 1)
        here.gateway.drains = True
        refused = await here.chat()
        assert refused.status == 503 and refused.headers["Retry-After"] == "5"
        assert (await error_of(refused))["code"] == "stopping"
        assert here.gateway.under_way == 1
        here.server.let_go.set()
        assert (await running).status == 200
        await here.until_idle()
        assert here.gateway.under_way == 0
        here.gateway.drains = False
        assert (await here.chat()).status == 200


AFTER_ALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def asked(interim: bytes, count: int, *, at_once: int) -> bytes:
    """Return what is made of an answer that comes after so many that are none."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def connect() -> socket.socket:
        return ours

    async def say() -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(count // at_once):
            writer.write(interim * at_once)
            await writer.drain()
        writer.write(AFTER_ALL)

    saying = asyncio.get_running_loop().create_task(say())
    try:
        async with asyncio.timeout(10), open_session(connect) as session:
            answer = await send_call(session, "POST", "/completion", b"{}", {})
            return await read_some(answer)
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        writer.transport.abort()


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints", b"199 x"])
def test_interim_answers_without_end_are_a_loss(status: bytes, at_once: int) -> None:
    with pytest.raises(UpstreamLost):
        asyncio.run(asked(b"HTTP/1.1 " + status + b"\r\n\r\n", 100_000, at_once=at_once))


@pytest.mark.parametrize("count", [0, 1, INTERIM_ANSWERS.most])
def test_a_few_are_read_over(count: int) -> None:
    assert asyncio.run(asked(b"HTTP/1.1 100 Continue\r\n\r\n", count, at_once=1)) == b"{}"


async def test_the_reasoning_of_an_answer_is_ended_by_whoever_knows_its_id() -> None:
    path = "/v1/chat/completions/control"
    async with world(says(200, {"success": True})) as here:
        asked = {"id": "chatcmpl-x", "action": "reasoning_end", "model": "tiny", "slot": 1}
        async with here.http.post(here.url + path, json=asked) as answer:
            assert (answer.status, await answer.json()) == (200, {"success": True})
        [(_, seen, _, body)] = here.server.seen
        assert seen == path
        assert json.loads(body) == {"id": "chatcmpl-x", "action": "reasoning_end", "model": "tiny"}
        for wrong in ({**asked, "action": "stop"}, {**asked, "id": 5}, {**asked, "id": "x" * 129}):
            async with here.http.post(here.url + path, json=wrong) as answer:
                assert answer.status == 400
