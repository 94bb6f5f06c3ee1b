"""The way of a request past the guards to what answers it; and the answers that need no llama-server."""

import asyncio
import json
import socket
from pathlib import Path

import pytest
from aiohttp import web
from meshd.base.errors import Broken
from meshd.gateway import answer as answer_module
from meshd.gateway import server as module
from meshd.gateway.access import ApiPort, BrowserGuard, KeyRing
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits, MemberCaller
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.identity.proof import key_digest

from tests.process.gateway_fake import (
    HI,
    FakeServer,
    FakeUpstream,
    OneByOne,
    World,
    many_world,
    raw_post,
    says,
    world,
)
from tests.unit.gateway.virtual_gateway import (
    CHAT,
    LOADING,
    LONG,
    READY,
    WHOLE,
    Reply,
    ask,
    in_turn,
    send,
    statuses,
)

pytestmark = pytest.mark.virtual

ONE, TWO = ApiKey("key-one-012345678", "one"), ApiKey("key-two-012345678", "two")
KEYS = GatewayConfig(port=0, api_keys=(ONE, TWO))
PAGE = "https://chat.example"
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


async def raw(here: World, request: bytes) -> tuple[bytes, bool]:
    """What a connection gets within a second, and whether it is still open then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    writer.write(request)
    await asyncio.sleep(1)
    writer.write_eof()
    found = await reader.read()
    writer.close()
    return found, b"Connection: close" not in found


# The port.


async def test_the_url_is_for_programs_of_this_machine() -> None:
    for host, url in (
        ("127.0.0.1", "http://127.0.0.1:8090"),
        ("0.0.0.0", "http://127.0.0.1:8090"),
        ("192.0.2.7", "http://192.0.2.7:8090"),
        ("::", "http://[::1]:8090"),
        ("2001:db8::7", "http://[2001:db8::7]:8090"),
        ("box.lan", "http://box.lan:8090"),
    ):
        guard = BrowserGuard(bound_host=host, names=(), origins=())
        port = ApiPort(GatewayConfig(host=host), guard, KeyRing((ONE,)), [], 8090)
        gateway = Gateway(port, OneModel(FakeUpstream(Path("/s"))), wall=lambda: 0.0)
        assert gateway.url == gateway.status.url == url
        assert list(gateway.key_digests) == [key_digest(ONE.secret)]


async def test_the_status_counts_what_was_asked() -> None:
    server = OneByOne(WHOLE)
    config = GatewayConfig(port=0, api_keys=KEYS.api_keys, continue_seconds=9.0)
    async with world(server, config=config) as here:
        here.upstream.slots = 1
        asked = [asyncio.ensure_future(ask(here, key=ONE.secret, user=user)) for user in "ab"]
        await asyncio.sleep(1)
        status = here.gateway.status
        assert (status.requests, status.running, status.waiting, status.tokens) == (2, 1, 1, 0)
        assert status.ready and status.continue_s == 9.0 and here.gateway.under_way == 2
        assert [(key.name, key.active) for key in status.keys] == [("one", 2), ("two", 0)]
        assert (here.gateway.requests_of("tiny"), here.gateway.requests_of("other")) == (2, 0)
        gauges = {
            sample.name: sample.value
            for family in here.gateway.collect()
            for sample in family.samples
            if sample.name in ("meshd_requests_running", "meshd_requests_waiting")
        }
        assert gauges == {"meshd_requests_running": 1, "meshd_requests_waiting": 1}
        server.answer_one(2)
        assert [(await one).status for one in asked] == [200, 200]
        await here.until_idle()
        assert here.upstream.active == [1, 2, 1, 0] and here.gateway.requests_of("tiny") == 0
        here.upstream.readiness = LOADING
        status = here.gateway.status
        assert (status.tokens, status.ready, status.reason) == (10, False, "hashing")


async def test_members_are_taken_while_the_api_serves() -> None:
    ours, theirs = socket.socketpair()
    async with world(says(200, WHOLE)) as here:
        pass
    with pytest.raises(Broken, match="starting or stopping"):
        await here.gateway.take(theirs, MemberCaller(b"k"))
    assert theirs.fileno() == -1 and ours.recv(1) == b""
    ours.close()


@pytest.mark.parametrize(
    ("path", "has_key", "status"),
    [(CHAT, True, 200), (CHAT, False, 401), ("/metrics", True, 200), ("/health", False, 200)],
)
async def test_a_member_comes_with_the_key_that_it_has_shown(path: str, has_key: bool, status: int) -> None:
    async with world(says(200, WHOLE), config=KEYS) as here:
        ours, theirs = socket.socketpair()
        await here.gateway.take(theirs, MemberCaller(key_digest(ONE.secret) if has_key else None))
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        writer.write(raw_post(here.port, {}) if path == CHAT else head)
        assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
        writer.close()
        seen = [request[:2] for request in here.server.seen]
    if status == 200 and path != "/health":
        assert seen == [("POST" if path == CHAT else "GET", path)], "metrics are llama-server's"
    else:
        assert not seen


# The guards.


_WRONG, _NONE = "this is not a key of this API", "this API needs a key"


async def test_a_key_is_needed_for_all_but_the_page_and_health() -> None:
    async with world(says(200, WHOLE), config=KEYS) as here:
        for headers, wrong in (
            ({}, _NONE),
            ({"Authorization": "Bearer wrong-key-0123"}, _WRONG),
            ({"x-api-key": "wrong-key-0123"}, _WRONG),
            ({"Authorization": f"Bearer {ONE.secret}"}, ""),
            ({"x-api-key": TWO.secret}, ""),
        ):
            for path in ("/", "/chat.js", "/chat.css", "/health", "/v1/health"):
                assert (await send(here, "GET", path, headers)).status == 200
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CHAT), ("GET", "/no")):
                reply = await send(here, method, path, {**JSON, **headers}, json.dumps(HI).encode())
                if wrong:
                    assert reply.status == 401 and wrong in str(reply.error["message"])
                    assert reply.error["code"] == "invalid_api_key"
                    assert reply.error["type"] == "authentication_error"
                else:
                    assert reply.status == (404 if path == "/no" else 200)


@pytest.mark.parametrize(("config", "stays"), [(GatewayConfig(port=0), True), (KEYS, False)])
async def test_without_keys_whoever_asks_for_health_may_keep_the_connection(
    config: GatewayConfig, stays: bool
) -> None:
    async with world(says(200, WHOLE), config=config, seconds=LONG) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(30)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = await reader.read()
        assert found.count(b"HTTP/1.1 200") == 1 + stays
        writer.close()


async def test_the_method_of_a_path_is_demanded() -> None:
    async with world(says(200, WHOLE)) as here:
        for method, path, allow in (
            ("POST", "/health", "GET"),
            ("POST", "/", "GET"),
            ("DELETE", "/v1/models", "GET"),
            ("POST", "/metrics", "GET"),
            ("GET", CHAT, "POST"),
            ("PUT", CHAT, "POST"),
            ("POST", "/props", "GET"),
        ):
            reply = await send(here, method, path, JSON, b"{}")
            assert (reply.status, reply.headers["Allow"]) == (405, allow)
            assert reply.error["code"] == "method_not_allowed" and not here.server.seen


async def test_a_head_is_answered_as_a_get_without_its_body() -> None:
    async with world(says(200, WHOLE)) as here:
        for path in ("/health", "/v1/models", "/", "/metrics"):
            reply = await send(here, "HEAD", path)
            assert (reply.status, reply.body) == (200, b"")


async def test_the_type_of_a_body_is_that_of_its_path() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nsound\r\n--x--\r\n'
    sound = "/v1/audio/transcriptions"
    async with world(says(200, WHOLE), config=GatewayConfig(port=0, allowed_origins=(PAGE,))) as here:
        for path, headers, code in (
            (CHAT, {**JSON, "Content-Encoding": "gzip"}, "unsupported_encoding"),
            (CHAT, {**JSON, "Content-Encoding": " Identity "}, ""),
            (CHAT, {"Content-Type": "text/plain"}, ""),
            (CHAT, {"Content-Type": "text/plain", "Origin": PAGE}, "unsupported_media_type"),
            (CHAT, {**JSON, "Origin": PAGE}, ""),
            (sound, JSON, "unsupported_media_type"),
            (sound, FORM, ""),
        ):
            body = form if path == sound else json.dumps(HI).encode()
            reply = await send(here, "POST", path, headers, body)
            assert reply.status == (415 if code else 200)
            assert not code or reply.error["code"] == code
            wanted = "multipart/form-data" if path == sound else "application/json"
            assert code != "unsupported_media_type" or wanted in str(reply.error["message"])


async def test_codings_and_long_headers_are_refused() -> None:
    async with world(says(200, WHOLE)) as here:
        for line, status in (
            (b"Transfer-Encoding: gzip, chunked", b"501"),
            (b"X-Long: " + b"x" * (32 << 10), b"431"),
            (b"Cookie: " + b"x" * (33 << 10), b"200"),
            (b"X-Any: x", b"200"),
        ):
            found, _ = await raw(here, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")
            assert found.startswith(b"HTTP/1.1 " + status)


async def test_a_refused_client_need_not_send_the_rest_of_its_body() -> None:
    async with world(says(200, WHOLE)) as here:
        for start, stays in (
            (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
            (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", True),
            (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{", False),
        ):
            found, is_open = await raw(here, start)
            assert found.startswith(b"HTTP/1.1 404 ") and is_open is stays


@pytest.mark.parametrize("origin", [PAGE, "https://evil.example"])
async def test_only_pages_of_allowed_origins_may_call_and_read(origin: str) -> None:
    async with world(says(200, WHOLE), config=GatewayConfig(port=0, allowed_origins=(PAGE,))) as here:
        allowed = origin == PAGE
        for path in ("/v1/models", "/nothing", "/props"):
            reply = await send(here, "GET", path, {"Origin": origin})
            assert reply.status == ((404 if path == "/nothing" else 200) if allowed else 403)
            assert reply.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
            assert reply.headers["X-Content-Type-Options"] == "nosniff"
        asked = {"Origin": origin, "Access-Control-Request-Headers": "x-any"}
        for private in (None, "true", "false"):
            more = {} if private is None else {"Access-Control-Request-Private-Network": private}
            reply = await send(here, "OPTIONS", CHAT, {**asked, **more})
            assert reply.status == (204 if allowed else 403)
            name = "Access-Control-Allow-Private-Network"
            assert (name in reply.headers) is (allowed and private == "true")
            assert reply.headers.get("Access-Control-Allow-Headers") == ("x-any" if allowed else None)
            assert reply.headers.get("X-Content-Type-Options") == "nosniff"


async def test_any_site_may_link_to_the_page_alone() -> None:
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with world(says(200, WHOLE)) as here:
        assert (await send(here, "GET", "/", linked)).status == 200
        for path in ("/v1/models", "/health", "/nothing"):
            reply = await send(here, "GET", path, linked)
            assert (reply.status, reply.error["code"]) == (403, "site_not_allowed")


async def test_a_preflight_without_an_allowed_origin_is_denied() -> None:
    async with world(says(200, WHOLE)) as here:
        reply = await send(here, "OPTIONS", CHAT)
        assert (reply.status, reply.error["code"], reply.error["type"]) == (
            403,
            "cors_denied",
            "permission_error",
        )


# Limits.


async def test_one_key_of_several_has_three_quarters_of_the_places() -> None:
    server = OneByOne(WHOLE)
    config = GatewayConfig(port=0, api_keys=KEYS.api_keys, max_requests=4)
    async with world(server, config=config) as here:
        running = [asyncio.ensure_future(ask(here, key=ONE.secret, user="a")) for _ in range(3)]
        await asyncio.sleep(1)
        refused = await ask(here, key=ONE.secret)
        assert (refused.status, refused.error["code"], refused.headers["Retry-After"]) == (503, "busy", "2")
        assert "3 requests are already in progress" in str(refused.error["message"])
        running.append(asyncio.ensure_future(ask(here, key=TWO.secret, user="a")))
        await asyncio.sleep(1)
        assert here.gateway.under_way == 4
        assert (await ask(here, key=TWO.secret)).status == 503, "all are taken"
        server.answer_one(5)
        assert [(await one).status for one in running] == [200] * 4
        assert here.gateway.under_way == 0 and (await ask(here, key=ONE.secret, user="a")).status == 200


async def test_before_a_restart_nothing_begins() -> None:
    async with world(says(200, WHOLE)) as here:
        here.gateway.drains = True
        reply = await ask(here)
        assert (reply.status, reply.error["code"], reply.headers["Retry-After"]) == (503, "stopping", "5")
        assert here.gateway.status.requests == 0


@pytest.mark.parametrize(("path", "counts"), [(CHAT, True), ("/v1/embeddings", True), ("/tokenize", False)])
async def test_requests_that_compute_count_for_the_quota_of_a_key(path: str, counts: bool) -> None:
    key = ApiKey(ONE.secret, "one", KeyLimits(requests_per_minute=1))
    async with world(says(200, WHOLE), config=GatewayConfig(port=0, api_keys=(key,))) as here:
        found = [(await ask(here, path, key=key.secret, input="a", content="a")).status for _ in range(2)]
        assert found == [200, 429 if counts else 200]
        assert here.gateway.status.keys[0].answers == counts
        assert here.gateway.status.requests == (1 if counts else 2)


async def test_each_answer_of_a_request_counts() -> None:
    key = ApiKey(ONE.secret, "one", KeyLimits(requests_per_minute=4))
    async with world(says(200, WHOLE), config=GatewayConfig(port=0, api_keys=(key,)), seconds=LONG) as here:
        assert (await complete(here, *"abc", key=key.secret)).status == 200
        assert [(await ask(here, key=key.secret)).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("path", ["/props", "/tokenize", CHAT])
async def test_a_model_that_is_not_ready_is_not_asked(path: str) -> None:
    async with world(says(200, WHOLE)) as here:
        here.upstream.readiness = LOADING
        reply = await (send(here, "GET", path) if path == "/props" else ask(here, path, content="a"))
        assert (reply.status, reply.error["code"]) == (503, "model_loading")
        assert not here.server.seen and here.gateway.status.requests == 0


async def test_what_holds_only_what_computes() -> None:
    config = GatewayConfig(port=0, continue_seconds=100.0)
    async with world(says(200, WHOLE), config=config, seconds=LONG) as here:
        here.upstream.readiness = LOADING
        waiting = asyncio.ensure_future(ask(here))
        reply = await ask(here, "/tokenize", content="a")
        assert (reply.status, reply.seconds) == (503, 0)
        late = await asyncio.open_connection("127.0.0.1", here.port)
        here.upstream.readiness = READY
        post = raw_post(here.port, {"content": "a"}, path="/tokenize")
        late[1].write(post[:-1])
        await asyncio.sleep(1)
        here.upstream.readiness = LOADING
        late[1].write(post[-1:])
        assert (await late[0].readline()).startswith(b"HTTP/1.1 503 "), "its body has outlived the model"
        late[1].close()
        here.upstream.readiness = READY
        assert (await waiting).status == 200


# Several models.


async def test_a_request_is_counted_for_the_model_that_it_names() -> None:
    async with many_world({"tiny": says(200, WHOLE), "big": says(200, WHOLE)}) as here:
        here.models["big"].granted.set()
        async with await here.chat("big") as reply:
            assert reply.status == 200
        async with here.http.get(f"{here.gateway.url}/props?model=tiny-alias") as reply:
            assert reply.status == 200
        async with here.http.get(f"{here.gateway.url}/props?model=none") as reply:
            assert reply.status == 404
        tiny, big = here.models["tiny"], here.models["big"]
        assert big.upstream.active == [1, 0] and tiny.upstream.active == []
        assert (len(tiny.turns), len(big.turns)) == (0, 1), "nothing is loaded to tell of itself"
        assert here.gateway.status.requests == 2


@pytest.mark.parametrize(("served", "shown"), [("tiny", "tiny"), ("", "mine")])
async def test_an_answer_names_the_model_or_what_was_asked_for(served: str, shown: str) -> None:
    async with world(says(200, WHOLE)) as here:
        here.upstream.model_name = served
        reply = await ask(here, "/v1/messages", model="mine", max_tokens=5)
        assert json.loads(reply.body)["model"] == shown


@pytest.mark.parametrize("size", [10, 100 << 10])
async def test_bodies_of_any_size_are_read_alike(size: int) -> None:
    async with world(says(200, WHOLE)) as here:
        messages = [{"role": "user", "content": "x" * size}]
        assert (await ask(here, messages=messages, temperature=0.5)).status == 200
        [asked] = here.server.asked()
        assert asked["temperature"] == 0.5 and asked["messages"] == messages
        assert (await send(here, "POST", CHAT, JSON, b"[" + b" " * size)).error["code"] == "invalid_json"


# Several answers to one request.


class Prompts:
    """It answers each prompt a while after it came, and notes how many it has at a time."""

    def __init__(self, *, refuses: str = "", text: str = "", status: int = 200) -> None:
        self.most = 0
        self.came: list[object] = []
        self.left = 0
        self._refuses = refuses
        self._text = text
        self._status = status

    async def __call__(self, server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        prompt = json.loads(server.seen[-1][3]).get("prompt")
        self.came.append(prompt)
        self.most = max(self.most, server.active)
        try:
            await asyncio.sleep(1 if prompt == self._refuses else 10)
        except asyncio.CancelledError:
            self.left += 1
            raise
        if prompt == self._refuses:
            return web.json_response({"error": {"code": 400, "message": "no"}}, status=400)
        usage = {"prompt_tokens": 2, "completion_tokens": 5}
        fields = {"choices": [{"index": 0, "text": f"{prompt}{self._text}"}], "usage": usage}
        return web.json_response(fields, status=self._status)


async def complete(here: World, *prompts: str, key: str = "") -> Reply:
    body = json.dumps({"prompt": list(prompts)}).encode()
    return await send(here, "POST", "/v1/completions", {**JSON, "x-api-key": key}, body)


@pytest.mark.parametrize(("slots", "at_once", "seconds"), [(1, 1, 50), (3, 3, 20), (9, 5, 10)])
async def test_prompts_run_in_as_many_slots_as_there_are(slots: int, at_once: int, seconds: float) -> None:
    server = Prompts()
    async with world(server, seconds=LONG) as here:
        here.upstream.slots = slots
        reply = await complete(here, *"abcde")
        assert (reply.status, server.most, reply.seconds) == (200, at_once, seconds)
        assert reply.headers["Content-Type"].startswith("application/json")
        joined = json.loads(reply.body)
        assert [(one["index"], one["text"]) for one in joined["choices"]] == [*enumerate("abcde")]
        assert joined["usage"]["completion_tokens"] == 25 == here.gateway.status.tokens
        assert here.gateway.status.requests == 1


async def test_one_that_is_refused_ends_the_others() -> None:
    server = Prompts(refuses="b")
    async with world(server, seconds=LONG) as here:
        here.upstream.slots = 2
        reply = await complete(here, *"abcde")
        assert (reply.status, reply.error["message"], reply.seconds) == (400, "no", 1)
        await here.server.until(lambda: not here.server.active)
        assert sorted(map(str, server.came)) == ["a", "b"] and server.left == 1
        assert here.gateway.status.running == here.gateway.status.waiting == 0


async def test_an_answer_with_another_status_is_the_whole() -> None:
    async with world(Prompts(status=201), seconds=LONG) as here:
        here.upstream.slots = 1
        reply = await complete(here, *"ab")
        assert reply.status == 201 and json.loads(reply.body)["choices"][0]["text"] == "a"


async def test_groups_of_inputs_take_turns() -> None:
    async def answer(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(10)
        inputs = json.loads(server.seen[-1][3])["input"]
        rows = [{"index": at, "embedding": [len(text)]} for at, text in enumerate(inputs)]
        return web.json_response({"data": rows, "usage": {"prompt_tokens": len(inputs)}})

    async with world(answer, seconds=LONG) as here:
        here.upstream.slots = 4
        texts = ["x" * length for length in range(1, 21)]
        reply = await send(here, "POST", "/v1/embeddings", JSON, json.dumps({"input": texts}).encode())
        assert reply.seconds == 20 and len(here.server.seen) == 2, "one after the other"
        rows = json.loads(reply.body)["data"]
        assert [(row["index"], row["embedding"]) for row in rows] == [(at, [at + 1]) for at in range(20)]


@pytest.mark.parametrize(("spare", "status"), [(0, 200), (-1, 413)])
async def test_answers_that_are_joined_have_a_limit_together(
    monkeypatch: pytest.MonkeyPatch, spare: int, status: int
) -> None:
    async with world(in_turn(says(200, {"choices": []}))) as here:
        monkeypatch.setattr(module, "MOST_JOINED_BYTES", 2 * len(b'{"choices": []}') + spare)
        reply = await complete(here, *"ab")
        assert reply.status == status
        assert status == 200 or reply.error["code"] == "answers_too_large"


@pytest.mark.parametrize(("spare", "status"), [(0, 200), (-1, 502)])
async def test_and_each_has_one(monkeypatch: pytest.MonkeyPatch, spare: int, status: int) -> None:
    async with world(in_turn(says(200, {"choices": []}))) as here:
        monkeypatch.setattr(answer_module, "MOST_JOINED_BYTES", len(b'{"choices": []}') + spare)
        monkeypatch.setattr(answer_module, "HELD_ANSWER_BYTES", 3)  # of an answer that is not joined
        reply = await complete(here, *"ab")
        assert reply.status == status
        assert status == 200 or reply.error["code"] == "too_long"


async def test_what_cannot_be_joined_is_the_servers_fault() -> None:
    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="{")

    async with world(answer) as here:
        reply = await complete(here, *"ab")
        assert (reply.status, reply.error["code"]) == (502, "upstream_error")
        assert "not JSON" in str(reply.error["message"])


# What is counted of requests.


async def test_requests_are_counted_by_paths_that_exist() -> None:
    async with world(says(200, {})) as here:
        for path in ("/v1/models/tiny", "/v1/models/none", "/v1/models", "/api/tags", "/health", "/"):
            await send(here, "GET", path)
        for path in ("/chat.js", "/props", "/nothing", "/nowhere"):
            await send(here, "GET", path)
        assert statuses(here, "/v1/models/NAME") == {"200": 1, "404": 1}
        assert statuses(here, "other") == {"404": 2}
        for path in ("/v1/models", "/api/tags", "/health", "/props"):
            assert statuses(here, path) == {"200": 1}
        assert statuses(here, "/") == {"200": 2}, "all files of the page"


async def test_an_odd_status_has_no_label() -> None:
    async with world(in_turn(*[says(status, {}) for status in (200, 207, 299, 418)])) as here:
        for _ in range(4):
            await ask(here)
        assert statuses(here) == {"200": 1, "207": 1, "other": 1, "418": 1}


async def test_a_fault_of_ours_counts_as_500() -> None:
    async def shows() -> str:
        raise ValueError("a bug")

    async with world(says(200, {})) as here:
        here.gateway.shows(shows)
        assert (await send(here, "GET", "/metrics")).status == 500
        assert statuses(here, "/metrics") == {"500": 1}


async def test_metrics_are_those_of_requests_until_others_are_shown() -> None:
    async def shows() -> str:
        return "all of the node"

    async with world(says(200, WHOLE)) as here:
        await ask(here)
        reply = await send(here, "GET", "/metrics")
        assert b'meshd_requests_total{path="/v1/chat/completions",status="200"} 1.0' in reply.body
        assert reply.headers["Content-Type"].startswith("text/plain; version=")
        here.gateway.shows(shows)
        assert (await send(here, "GET", "/metrics")).body == b"all of the node"
        assert b"choices" in (await send(here, "GET", "/metrics?model=tiny")).body, "llama-server's own"
