"""Requests that are no HTTP, or are compressed: one clear answer each, and not a word on stderr."""

import asyncio
import gzip
import io
import zlib

import pytest
from meshd.base import fault_boundary, log
from meshd.gateway.interface import ApiKey, GatewayConfig

from tests.process.gateway_fake import says, world
from tests.process.malformed import BROKEN_BODIES, MALFORMED, error_of, told

KEY = "sk-a-key-of-this-test"
HEADERS = (b"x-content-type-options: nosniff", b"cross-origin-resource-policy: same-origin", b"server: meshd")
FORM = "multipart/form-data; boundary=b"


@pytest.mark.parametrize("kind", MALFORMED)
async def test_each_gets_an_error_like_all_others_which_repeats_nothing(kind: str) -> None:
    async with world(says(200, {})) as here:
        answer = await told(here.port, MALFORMED[kind][0])
    assert error_of(answer) == MALFORMED[kind][1:]
    head = answer.lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert set(HEADERS) <= set(head) and b"connection: keep-alive" not in head
    assert b"aaa" not in answer


def test_nothing_is_logged_of_them_or_written_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with world(says(200, {})) as here:
            for _ in range(20):
                for sent, _status, _code in MALFORMED.values():
                    await told(here.port, sent)
                for sent in BROKEN_BODIES.values():
                    await told(here.port, sent)

    said = io.StringIO()
    log.set_up(level="info", stream=said)
    try:
        asyncio.run(scenario())
    finally:
        log.set_up(level="warning")
    assert [line for line in said.getvalue().splitlines() if "api_listening" not in line] == []
    assert capfd.readouterr().err == ""


def test_a_failure_of_ours_is_a_500_that_is_logged_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> bytes:
        async with world(says(200, {})) as here:
            monkeypatch.setattr("meshd.gateway.access.BrowserGuard.check", lambda *_, **_options: 1 // 0)
            for _ in range(50):
                answer = await told(here.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return answer

    fault_boundary.forget()
    said = io.StringIO()
    log.set_up(level="error", stream=said)
    try:
        assert error_of(asyncio.run(scenario())) == (500, "internal_error")
    finally:
        log.set_up(level="warning")
        fault_boundary.forget()
    assert 0 < said.getvalue().count("ZeroDivisionError") <= 3 and "Traceback" not in said.getvalue()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZip", "identity, gzip", "nonsense"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/transcriptions"])
async def test_a_compressed_body_is_refused(coding: str, path: str) -> None:
    async with world(says(200, {})) as here:
        kind = FORM if "audio" in path else "application/json"
        headers = {"Content-Encoding": coding, "Content-Type": kind}
        body = zlib.compress(b"{}") if coding == "deflate" else gzip.compress(b"{}")
        async with here.http.post(here.url + path, data=body, headers=headers) as answer:
            assert answer.status == 415
            error = (await answer.json())["error"]
        assert error["code"] == "unsupported_encoding" and f"`{coding}`" in error["message"]
        assert not here.server.seen


@pytest.mark.parametrize("coding", ["identity", "Identity "])
async def test_a_coding_that_changes_nothing_passes(coding: str) -> None:
    async with world(says(200, {"usage": {}})) as here:
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        async with here.http.post(here.url + "/completion", data=b"{}", headers=headers) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("keys", [(), (KEY,)])
@pytest.mark.parametrize("line", ["GET /health", "GET /v1/models", "POST /v1/completions", "POST /nothing"])
async def test_nothing_is_unpacked_for_anybody(
    line: str, keys: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte may be a megabyte, and all limits count what was sent."""
    unpacked: list[object] = []
    packed = gzip.compress(bytes(1 << 20))
    head = (
        f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    )
    config = GatewayConfig(port=0, api_keys=tuple(map(ApiKey, keys)))
    async with world(says(200, {}), config=config) as here:
        monkeypatch.setattr("aiohttp.http_parser.DeflateBuffer.__init__", lambda *_, **__: unpacked.append(1))
        await told(here.port, head.encode() + packed)
    assert not unpacked
