"""The pages over real HTTP: their files, their headers, and who gets them."""

import asyncio
import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from meshd.base.errors import UserError
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.pages import INDEX_NAME, Page, chat_page, load_page, small_page
from meshd.model.status import ModelState
from wheels.chat_page import pack
from yarl import URL

from tests.process.gateway_fake import says, world

KEY = "k-0123456789abcdef"
PATHS = {
    "/": "text/html; charset=utf-8",
    "/chat.js": "text/javascript; charset=utf-8",
    "/chat.css": "text/css; charset=utf-8",
}
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SCRIPT = "start(1)"
BUILT = {
    "index.html": f"<p>Chat</p><script>{SCRIPT}</script>",
    "_app/immutable/start.js": "export const start = 1; " * 100,
    "_app/immutable/font.woff2": "not really",
    "build.json": '{"version": "0.5.0"}',
}


def ask(
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    keys: tuple[str, ...] = (),
    state: ModelState = ModelState.READY,
    page: Page | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """One request; llama-server must not hear of it. The body is as it was sent."""

    async def scenario() -> tuple[int, Mapping[str, str], bytes]:
        config = GatewayConfig(port=0, api_keys=tuple(map(ApiKey, keys)))
        async with world(says(200, {}), config=config, page=page) as here:
            here.upstream.readiness = Readiness(state, "waiting for workers")
            sent = {"Accept-Encoding": "identity", **(headers or {})}
            async with (
                aiohttp.ClientSession(auto_decompress=False) as http,
                http.request(method, URL(here.url + path, encoded=True), headers=sent) as answer,
            ):
                body = await answer.read()
            assert here.server.seen == []
            return answer.status, answer.headers, body

    return asyncio.run(scenario())


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A page as `wheels/chat_page.py` packs it."""
    for name, text in BUILT.items():
        place = tmp_path / "dist" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    pack(tmp_path / "dist", tmp_path / "chat")
    return tmp_path / "chat"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("keys", [(), (KEY,)])
def test_each_file_is_served_with_strict_headers_and_without_a_key(path: str, keys: tuple[str, ...]) -> None:
    status, headers, body = ask(path, keys=keys)
    assert (status, headers["Content-Type"]) == (200, PATHS[path])
    assert body == small_page()[path].place.read_bytes()
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["Cache-Control"] == "no-cache"
    assert headers["Server"] == "meshd"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_port_without_a_web_server_gives_a_page_with_the_same_headers(built: Path) -> None:
    page = chat_page(built)
    assert page is not None
    head, _, body = page["/"].plain_response().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert first == "HTTP/1.1 200 OK"
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert headers["Content-Security-Policy"] == ask("/", page=page)[1]["Content-Security-Policy"]
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert (int(headers["Content-Length"]), headers["Connection"]) == (len(body), "close")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body).decode() == BUILT["index.html"]


@pytest.mark.parametrize("path", PATHS)
def test_a_head_has_the_headers_alone(path: str) -> None:
    status, headers, body = ask(path, method="HEAD")
    assert (status, body) == (200, b"")
    assert headers["Content-Length"] == str(len(small_page()[path].place.read_bytes()))
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


@pytest.mark.parametrize("state", [ModelState.WAITING, ModelState.LOADING, ModelState.FAILED])
def test_it_is_there_before_the_model_is(state: ModelState) -> None:
    assert ask("/", state=state)[0] == 200


@pytest.mark.parametrize("coding", ["gzip", "br, gzip;q=0.9", "identity"])
@pytest.mark.parametrize("name", BUILT)
def test_a_built_page_is_served_as_it_was_built(built: Path, name: str, coding: str) -> None:
    path = "/" if name == "index.html" else f"/{name}"
    status, headers, body = ask(path, headers={"Accept-Encoding": coding}, page=chat_page(built))
    assert status == 200
    is_gzip = headers.get("Content-Encoding") == "gzip"
    assert is_gzip == ("gzip" in coding and not name.endswith("woff2"))
    assert (gzip.decompress(body) if is_gzip else body).decode() == BUILT[name]
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert ("immutable" in headers["Cache-Control"]) == ("immutable" in name)


def test_only_the_script_of_the_build_may_run_within_its_html(built: Path) -> None:
    policy = ask("/", page=chat_page(built))[1]["Content-Security-Policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert rules["default-src"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert not any("http" in allowed or "*" in allowed for allowed in rules.values())


def test_a_file_that_a_browser_has_is_not_sent_again(built: Path) -> None:
    page = chat_page(built)
    tag = ask("/", page=page)[1]["ETag"]
    assert ask("/", headers={"If-None-Match": tag}, page=page)[::2] == (304, b"")
    assert ask("/", headers={"If-None-Match": '"another"'}, page=page)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/index.html.gz",
        f"/{INDEX_NAME}",
        "/_app/../index.json",
        "/_app/%2e%2e/index.json",
        "/_app/",
        "/chat.js",
    ],
)
def test_nothing_but_the_files_of_the_index_is_served(built: Path, path: str) -> None:
    assert ask(path, page=chat_page(built))[0] == 404


def test_the_small_page_is_there_where_none_was_built(tmp_path: Path) -> None:
    assert load_page(tmp_path / "none").keys() == PATHS.keys()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scripts": [], "files": {"/": {}}}'])
def test_a_damaged_index_leaves_the_small_page(built: Path, text: str) -> None:
    (built / INDEX_NAME).write_text(text, encoding="utf-8")
    assert load_page(built).keys() == PATHS.keys()


def test_the_same_build_makes_the_same_bytes(built: Path, tmp_path: Path) -> None:
    pack(tmp_path / "dist", tmp_path / "again")
    first, again = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (built, tmp_path / "again")
    )
    assert first == again != {}


def test_a_file_of_an_unknown_kind_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "page.wasm").write_bytes(b"")
    with pytest.raises(UserError, match=r"page\.wasm"):
        pack(tmp_path / "dist", tmp_path / "chat")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("GET", "/tools", []),
        ("POST", "/tools", {"error": "meshd runs no tools"}),
        ("POST", "/v1/streams/lookup", []),
        ("GET", "/v1/stream?conv_id=1", None),
        ("DELETE", "/v1/stream?conv_id=1", None),
    ],
)
def test_what_meshd_does_not_have_is_answered_with_nothing(method: str, path: str, said: object) -> None:
    status, _, body = ask(path, method=method)
    assert (status, json.loads(body) if body else None) == (204 if said is None else 200, said)
    assert ask(path, method=method, keys=(KEY,))[0] == 401
    assert ask(path, method="PUT")[0] == 405


@pytest.mark.parametrize(("path", "status"), [("/props", 503), ("/v1/models", 503), ("/nowhere", 404)])
def test_the_page_may_have_its_refusals_in_answers_that_are_fine(path: str, status: int) -> None:
    """Else a browser counts each as an error."""

    async def scenario() -> None:
        async with world(says(200, {})) as here:
            here.upstream.readiness = Readiness(ModelState.LOADING, "hashing")
            async with here.http.get(here.url + path) as answer:
                assert answer.status == status and "X-Meshd-Status" not in answer.headers
                plain = await answer.json()
            async with here.http.get(here.url + path, headers={"X-Meshd-Quiet": "1"}) as answer:
                assert (answer.status, answer.headers["X-Meshd-Status"]) == (200, str(status))
                assert answer.headers["Cache-Control"] == "no-store" and await answer.json() == plain
            async with here.http.post(here.url + path, headers={"X-Meshd-Quiet": "1"}) as answer:
                assert answer.status in (404, 405), "only what the page asks for again and again"

    asyncio.run(scenario())
