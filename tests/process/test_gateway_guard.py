"""Who is let in: keys, Host, Origin, Content-Type and preflights, over real HTTP.

Which names, origins and keys pass is tested in tests/unit/gateway/test_access.py; here, that each is looked
at, in which order, and what the client is told.
"""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from meshd.gateway.interface import ApiKey, GatewayConfig
from meshd.gateway.paths import ROUTES

from tests.process.gateway_fake import HI, says, world

KEY = "k-0123456789abcdef"
ORIGIN = "http://app.example:3000"
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
OPENED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FRAMED = {**OPENED, "Sec-Fetch-Dest": "iframe"}
OURS = {"Origin": "http://127.0.0.1:PORT"}
LOOKS = ("/v1/models", "/props", "/metrics?model=tiny", "/health", "/", "/chat.js")
OPEN = GatewayConfig(port=0)
LISTED = GatewayConfig(port=0, allowed_hosts=("box.lan",), allowed_origins=(ORIGIN,))
KEYED = GatewayConfig(port=0, api_keys=(ApiKey("another-key"), ApiKey(KEY)))


def run(
    headers: dict[str, str], *, config: GatewayConfig = OPEN, path: str = CHAT, method: str = ""
) -> tuple[int, dict[str, str], str]:
    """Send one request, a POST to CHAT and a GET elsewhere; return status, headers and the error's code.

    `PORT` in a header becomes the port.
    """
    method = method or ("POST" if path == CHAT else "GET")

    async def scenario() -> tuple[int, dict[str, str], str]:
        async with world(says(200, {"usage": {}}), config=config) as here:
            sent = {name: value.replace("PORT", str(here.port)) for name, value in headers.items()}
            data = json.dumps(HI).encode() if method == "POST" else None
            async with here.http.request(
                method, here.url + path, headers=sent, data=data, skip_auto_headers=["Content-Type"]
            ) as answer:
                body = await answer.read()
                code = "" if answer.status < 400 else str(json.loads(body)["error"]["code"])
                reached = path.partition("?")[0] in ROUTES and answer.status == 200
                assert (len(here.server.seen) == 1) == reached
                return answer.status, dict(answer.headers), code

    return asyncio.run(scenario())


@dataclass(frozen=True, slots=True)
class Case:
    """A request, where it goes, and what comes back."""

    sent: dict[str, str]
    status: int
    code: str = ""
    paths: tuple[str, ...] = (CHAT,)
    config: GatewayConfig = field(default=OPEN)


CASES = {
    "a listed host": Case({**JSON, "Host": "box.lan"}, 200, config=LISTED),
    "another host": Case(
        {**JSON, "Host": "evil.example:PORT"}, 403, "host_not_allowed", (CHAT, "/health", "/")
    ),
    "another host of a program's page": Case(
        {**JSON, "Origin": "app://obsidian.md", "Host": "evil.example"}, 403, "host_not_allowed"
    ),
    "another origin": Case({**JSON, "Origin": ORIGIN}, 403, "origin_not_allowed", (CHAT, *LOOKS)),
    "a look from a frame": Case(FRAMED, 403, "site_not_allowed", LOOKS, LISTED),
    "a look of our page": Case({"Sec-Fetch-Site": "same-origin"}, 200, paths=LOOKS),
    "a look of a listed page": Case(
        {"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}, 200, paths=("/v1/models",), config=LISTED
    ),
    "a link to our page": Case(OPENED, 200, paths=("/",)),
    "a link elsewhere": Case(OPENED, 403, "site_not_allowed", ("/v1/models", "/props", "/health")),
    "no type from a page": Case(OURS, 415, "unsupported_media_type"),
    "a form from a page": Case(
        {**OURS, "Content-Type": "multipart/form-data; boundary=a"}, 415, "unsupported_media_type"
    ),
    "no type from a site": Case({"Sec-Fetch-Site": "same-origin"}, 415, "unsupported_media_type"),
    "no type from a program": Case({}, 200),
    "a key": Case({**JSON, "Authorization": f"Bearer {KEY}"}, 200, config=KEYED),
    "a key in small letters": Case({**JSON, "authorization": f"bearer  {KEY} "}, 200, config=KEYED),
    "a key of Anthropic's client": Case({**JSON, "x-api-key": KEY}, 200, config=KEYED),
    "a key beside a wrong one": Case(
        {**JSON, "Authorization": "Bearer other", "X-Api-Key": KEY}, 200, config=KEYED
    ),
    "cookies": Case({**JSON, "Cookie": "a=" + "b" * 30_000}, 200),
    "all cookies of localhost": Case({**JSON, "Cookie": "a=" + "b" * 200_000}, 200),
    "a long key": Case({**JSON, "Authorization": "Bearer " + "x" * 6000}, 200),
    "many headers": Case({**JSON, **{f"X-{number}": "y" for number in range(240)}}, 200),
    "a long header": Case({**JSON, "X-Long": "y" * 33_000}, 431, "headers_too_large"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_is_let_in(case: Case) -> None:
    for path in case.paths:
        status, headers, code = run(case.sent, path=path, config=case.config)
        assert (status, code) == (case.status, case.code), path
        assert code != "origin_not_allowed" or "Access-Control-Allow-Origin" not in headers


def raw_status(*head: str) -> int:
    """Status of a request given line by line."""

    async def scenario() -> int:
        async with world(says(200, {})) as here:
            reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writer.write("\r\n".join([*head, "Connection: close", "", ""]).encode())
            line = await reader.readline()
            await reader.read()
            writer.close()
            await writer.wait_closed()
            return int(line.split()[1])

    return asyncio.run(scenario())


def test_a_request_has_exactly_one_host() -> None:
    assert raw_status("GET /health HTTP/1.1", "Host: localhost") == 200
    assert raw_status("GET /health HTTP/1.1") == 400
    assert raw_status("GET /health HTTP/1.0") == 400
    assert raw_status("GET /health HTTP/1.1", "Host: localhost", "Host: evil.example") == 400


@pytest.mark.parametrize("origin", ["http://127.0.0.1:PORT", ORIGIN, "app://obsidian.md"])
def test_allowed_origins_pass_and_may_read_the_answer(origin: str) -> None:
    status, headers, _ = run({**JSON, "Origin": origin, "Sec-Fetch-Site": "cross-site"}, config=LISTED)
    assert status == 200
    assert headers["Access-Control-Allow-Origin"].startswith(origin.removesuffix("PORT"))


@pytest.mark.parametrize("path", [*LOOKS, "/nothing"])
def test_no_answer_is_taken_for_what_it_is_not_or_by_another_page(path: str) -> None:
    for sent in ({}, {"Host": "evil.example"}):
        _, headers, _ = run(sent, method="GET", path=path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Server"] == "meshd"


PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    "Access-Control-Request-Private-Network": "true",
}


def test_a_preflight_is_denied_unless_the_origin_is_allowed() -> None:
    status, headers, _ = run(PREFLIGHT, method="OPTIONS")
    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]


async def test_a_preflight_of_an_allowed_origin_is_answered() -> None:
    config = GatewayConfig(port=0, allowed_origins=(ORIGIN,), api_keys=(ApiKey(KEY),))

    async with world(says(200, {}), config=config) as here:
        async with here.http.options(here.url + "/v1/chat/completions", headers=PREFLIGHT) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert (
                answer.headers["Access-Control-Allow-Headers"] == PREFLIGHT["Access-Control-Request-Headers"]
            )
            assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
            assert answer.headers["Vary"] == "Origin"
        # a page of an allowed origin reads refusals too, and needs a key like everyone
        async with here.http.get(here.url + "/v1/models", headers={"Origin": ORIGIN}) as answer:
            assert answer.status == 401
            assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN


@pytest.mark.parametrize("given", [{}, {"Authorization": f"Bearer {KEY}x"}, {"x-api-key": "\xff"}])
def test_without_a_key_nothing_but_health_is_told(given: dict[str, str]) -> None:
    status, headers, code = run({**JSON, **given}, config=KEYED)
    assert (status, code, headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")
    for path in ("/v1/models", "/props", "/no/such/path"):
        assert run(given, config=KEYED, method="GET", path=path)[0] == 401
    assert run(given, config=KEYED, method="GET", path="/health")[0] == 200


async def test_a_key_is_asked_for_before_a_body_is_read() -> None:
    async with world(says(200, {}), config=KEYED) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        head = ["POST /completion HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        writer.write("\r\n".join([*head, "Content-Length: 1000000", "", ""]).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer.lower()
        writer.close()
        await writer.wait_closed()


IMAGE = {"type": "image_url", "image_url": {"url": "http://192.0.2.1/x.png"}}
SOURCE = {"type": "image", "source": {"type": "url", "url": "http://192.0.2.1/x.png"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((path, {"messages": [{"role": "user", "content": [IMAGE]}]})
          for path in ("/v1/chat/completions", "/apply-template")),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [SOURCE]}]}]}),
        ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "a", "output": [
            {"type": "input_image", "image_url": "http://192.0.2.1/x.png"}]}]}),
    ],
)  # fmt: skip
async def test_no_request_makes_llama_server_fetch_an_address(path: str, body: object) -> None:
    async with world(says(200, {})) as here:
        async with here.http.post(here.url + path, json=body) as answer:
            assert answer.status == 400
            assert "data URLs" in (await answer.json())["error"]["message"]
        assert not here.server.seen
