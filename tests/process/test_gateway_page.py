"""The chat page over real HTTP: its files, their headers, and who gets them."""

import asyncio

import pytest
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.server import load_page
from meshd.model.status import ModelState

from tests.process.gateway_fake import says, world

KEY = "k-0123456789abcdef"
PATHS = {
    "/": "text/html; charset=utf-8",
    "/chat.js": "text/javascript; charset=utf-8",
    "/chat.css": "text/css; charset=utf-8",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def ask(
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    keys: tuple[str, ...] = (),
    state: ModelState = ModelState.READY,
) -> tuple[int, dict[str, str], bytes]:
    """One request; llama-server must not hear of it."""

    async def scenario() -> tuple[int, dict[str, str], bytes]:
        async with world(
            says(200, {}), config=GatewayConfig(port=0, api_keys=tuple(map(ApiKey, keys)))
        ) as here:
            here.upstream.readiness = Readiness(state, "waiting for workers")
            async with here.http.request(method, here.url + path, headers=headers) as answer:
                body = await answer.read()
            assert here.server.seen == []
            return answer.status, dict(answer.headers), body

    return asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_each_file_is_served_with_strict_headers_and_without_a_key(path: str, keys: tuple[str, ...]) -> None:
    status, headers, body = ask(path, keys=keys)
    assert (status, headers["Content-Type"]) == (200, PATHS[path])
    assert body == load_page()[path].body
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert headers["Server"] == "meshd"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", PATHS)
def test_a_head_has_the_headers_alone(path: str) -> None:
    status, headers, body = ask(path, method="HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str(len(load_page()[path].body))
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


@pytest.mark.parametrize("state", [ModelState.WAITING, ModelState.LOADING, ModelState.FAILED])
def test_it_is_there_before_the_model_is(state: ModelState) -> None:
    assert ask("/", state=state)[0] == 200
