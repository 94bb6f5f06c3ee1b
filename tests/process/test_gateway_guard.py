"""Who is let in: keys, Host, Origin, Content-Type and preflights, over real HTTP."""

import asyncio
import json

import pytest
from meshd.gateway.interface import ApiKey, GatewayConfig
from meshd.gateway.paths import ROUTES

from tests.process.gateway_fake import HI, World, says, world

KEY = "k-0123456789abcdef"
ORIGIN = "http://app.example:3000"


def run(
    headers: dict[str, str],
    *,
    config: GatewayConfig | None = None,
    method: str = "POST",
    path: str = "/v1/chat/completions",
) -> tuple[int, dict[str, str], str]:
    """One request; gives status, headers and the error's code. `PORT` in a header becomes the port."""

    async def scenario() -> tuple[int, dict[str, str], str]:
        async with world(says(200, {"usage": {}}), config=config) as here:
            sent = {name: value.replace("PORT", str(here.port)) for name, value in headers.items()}
            data = json.dumps(HI).encode() if method == "POST" else None
            async with here.http.request(
                method, here.url + path, headers=sent, data=data, skip_auto_headers=["Content-Type"]
            ) as answer:
                body = await answer.read()
                code = "" if answer.status < 400 else str(json.loads(body)["error"]["code"])
                reached = path in ROUTES and answer.status == 200
                assert (len(here.server.seen) == 1) == reached
                return answer.status, dict(answer.headers), code

    return asyncio.run(scenario())


JSON = {"Content-Type": "application/json"}


def test_an_allowed_host_passes() -> None:
    config = GatewayConfig(port=0, allowed_hosts=("box.lan",))
    assert run({**JSON, "Host": "box.lan"}, config=config)[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health"])
def test_other_hosts_are_refused_dns_rebinding(path: str) -> None:
    method = "GET" if path == "/health" else "POST"
    status, _, code = run({**JSON, "Host": "evil.example:PORT"}, path=path, method=method)
    assert (status, code) == (403, "host_not_allowed")


def test_a_refused_name_is_told_with_the_option_that_allows_it() -> None:
    async def scenario(name: str, option: str) -> None:
        async with world(says(200, {})) as here:
            headers = {name: "http://chat.example" if name == "Origin" else "chat.example"}
            async with here.http.get(f"{here.url}/health", headers=headers) as answer:
                assert option in (await answer.json())["error"]["message"]

    asyncio.run(scenario("Host", "allowed_hosts"))
    asyncio.run(scenario("Origin", "--allowed-origin ORIGIN"))


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


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:PORT", ORIGIN, "app://obsidian.md"],
)
def test_allowed_origins_pass_and_may_read_the_answer(origin: str) -> None:
    config = GatewayConfig(port=0, allowed_origins=(ORIGIN,))
    status, headers, _ = run({**JSON, "Origin": origin, "Sec-Fetch-Site": "cross-site"}, config=config)
    assert status == 200
    assert headers["Access-Control-Allow-Origin"].startswith(origin.removesuffix("PORT"))


def test_a_rebound_name_is_refused_whatever_the_origin() -> None:
    status, _headers, code = run({**JSON, "Origin": "app://obsidian.md", "Host": "evil.example"})
    assert (status, code) == (403, "host_not_allowed")


def test_other_origins_are_refused() -> None:
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/health"), ("GET", "/v1/models")):
        status, headers, code = run({**JSON, "Origin": ORIGIN}, method=method, path=path)
        assert (status, code) == (403, "origin_not_allowed")
        assert "Access-Control-Allow-Origin" not in headers


LOOKS = ("/v1/models", "/props", "/metrics", "/health", "/", "/chat.js")
OPENED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("path", LOOKS)
def test_a_look_is_for_the_user_programs_and_our_page_although_it_has_no_origin(path: str) -> None:
    """Which headers are those of another site: tests/unit/gateway/test_access.py."""
    config = GatewayConfig(port=0, allowed_origins=(ORIGIN,))
    framed = {"Sec-Fetch-Site": "cross-site", **OPENED, "Sec-Fetch-Dest": "iframe"}
    status, _, code = run(framed, method="GET", path=path, config=config)
    assert (status, code) == (403, "site_not_allowed")
    assert run({"Sec-Fetch-Site": "same-origin"}, method="GET", path=path)[0] == 200


def test_a_page_of_an_allowed_origin_passes_from_another_site() -> None:
    config = GatewayConfig(port=0, allowed_origins=(ORIGIN,))
    foreign = {"Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}
    assert run(foreign, method="GET", path="/v1/models", config=config)[0] == 200
    assert run({**JSON, **foreign}, config=config)[0] == 200


def test_a_link_from_another_site_opens_the_chat_page_and_nothing_else() -> None:
    followed = {"Sec-Fetch-Site": "cross-site", **OPENED}
    assert run(followed, method="GET", path="/")[0] == 200
    for path in ("/v1/models", "/props", "/health"):
        assert run(followed, method="GET", path=path)[0] == 403


@pytest.mark.parametrize("path", [*LOOKS, "/nothing"])
def test_no_answer_is_taken_for_what_it_is_not_or_by_another_page(path: str) -> None:
    for sent in ({}, {"Host": "evil.example"}):
        _, headers, _ = run(sent, method="GET", path=path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Server"] == "meshd"


@pytest.mark.parametrize("content_type", [None, "multipart/form-data; boundary=a"])
def test_types_that_a_form_can_send_are_refused_of_pages_and_taken_of_programs(
    content_type: str | None,
) -> None:
    sent = {} if content_type is None else {"Content-Type": content_type}
    for page in ({"Origin": "http://127.0.0.1:PORT"}, {"Sec-Fetch-Site": "same-origin"}):
        status, _, code = run({**sent, **page})
        assert (status, code) == (415, "unsupported_media_type")
    assert run(sent)[0] == 200


def test_a_preflight_is_denied_unless_the_origin_is_allowed() -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    status, headers, _ = run(asked, method="OPTIONS")
    assert status == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]
    config = GatewayConfig(port=0, allowed_origins=(ORIGIN,), api_keys=(ApiKey(KEY),))

    async def scenario() -> None:
        async with world(says(200, {}), config=config) as here:
            async with here.http.options(here.url + "/v1/chat/completions", headers=asked) as answer:
                assert answer.status == 204
                assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
                assert (
                    answer.headers["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"]
                )
                assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
                assert answer.headers["Vary"] == "Origin"
            # a page of an allowed origin reads refusals too, and needs a key like everyone
            async with here.http.get(here.url + "/v1/models", headers={"Origin": ORIGIN}) as answer:
                assert answer.status == 401
                assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "given",
    [
        {"Authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"Authorization": "Bearer other", "X-Api-Key": KEY},
    ],
)
def test_a_key_opens_the_api(given: dict[str, str]) -> None:
    config = GatewayConfig(port=0, api_keys=(ApiKey("another-key"), ApiKey(KEY)))
    assert run({**JSON, **given}, config=config)[0] == 200


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Authorization": f"Bearer {KEY}x"},
        {"x-api-key": "\xff"},
    ],
)
def test_without_a_key_nothing_but_health_is_told(given: dict[str, str]) -> None:
    config = GatewayConfig(port=0, api_keys=(ApiKey(KEY),))
    status, headers, code = run({**JSON, **given}, config=config)
    assert (status, code, headers["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")
    for path in ("/v1/models", "/props", "/no/such/path"):
        assert run(given, config=config, method="GET", path=path)[0] == 401
    assert run(given, config=config, method="GET", path="/health")[0] == 200


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "this API needs a key"), ({"Authorization": "Bearer wrong-key"}, "this is not a key of this API")],
)
def test_a_wrong_key_is_told_from_none(given: dict[str, str], said: str) -> None:
    async def check() -> None:
        config = GatewayConfig(port=0, api_keys=(ApiKey(KEY),))
        async with world(says(200, {}), config=config) as here:
            answer = await here.http.post(f"{here.url}/v1/chat/completions", headers={**JSON, **given})
            assert (await answer.json())["error"]["message"].startswith(said)

    asyncio.run(check())


def test_a_key_is_asked_for_before_a_body_is_read() -> None:
    async def scenario() -> None:
        async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as here:
            await check(here)

    async def check(here: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        head = ["POST /completion HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        writer.write("\r\n".join([*head, "Content-Length: 1000000", "", ""]).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in answer.lower()
        writer.close()
        await writer.wait_closed()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": "a=" + "b" * 30_000}, 200),
        ({"Cookie": "a=" + "b" * 200_000}, 200),
        ({"Authorization": "Bearer " + "x" * 6000}, 200),
        ({f"X-{number}": "y" for number in range(240)}, 200),
        ({"X-Long": "y" * 33_000}, 431),
    ],
    ids=["cookies", "all cookies of localhost", "a long key", "many headers", "a long header"],
)
def test_headers_may_be_as_long_as_browsers_send_them(headers: dict[str, str], status: int) -> None:
    assert run({**JSON, **headers})[0] == status


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
def test_no_request_makes_llama_server_fetch_an_address(path: str, body: object) -> None:
    async def scenario() -> None:
        async with world(says(200, {})) as here:
            async with here.http.post(here.url + path, json=body) as answer:
                assert answer.status == 400
                assert "data URLs" in (await answer.json())["error"]["message"]
            assert not here.server.seen

    asyncio.run(scenario())
