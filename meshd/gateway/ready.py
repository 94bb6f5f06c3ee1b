"""True readiness: llama-server is ready when it has generated a token, not when its port answers."""

import asyncio
import json
from pathlib import Path

import aiohttp

from meshd.gateway.interface import ReadyReport
from meshd.gateway.upstream import open_session

_POLL_SECONDS = 0.02  # asked once `/health` is 200, so that the answer is seldom 503
_ANSWER_BYTES = 1 << 20

_REQUEST = {
    "prompt": "Hello",
    "n_predict": 1,
    "temperature": 0,
    "ignore_eos": True,  # a model whose first choice is its end would generate nothing
    "cache_prompt": False,
    "stream": False,
}


async def one_token(socket_path: Path, *, poll_seconds: float = _POLL_SECONDS) -> ReadyReport:
    """Ask llama-server for one real token at temperature 0.

    Waits without limit while the socket is not there yet or the answer is 503 (loading): the caller
    cancels when the child has ended or time is up. Once it is past loading, an error, a broken
    connection or an answer without a token is a report with the reason.
    """
    async with open_session(socket_path) as session:
        while True:
            report = await _ask(session)
            if report is not None:
                return report
            await asyncio.sleep(poll_seconds)


async def _ask(session: aiohttp.ClientSession) -> ReadyReport | None:
    """One try; None when it is too early."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with session.post("http://localhost/completion", json=_REQUEST) as answer:
            body = await _body(answer)
    except aiohttp.ClientConnectorError:
        return None
    except (aiohttp.ClientError, OSError):
        return ReadyReport(False, "llama-server exited while it generated the first token")
    if answer.status == 503:
        return None
    if answer.status != 200:
        return ReadyReport(False, f"the first token failed: {_error_text(answer.status, body)}")
    if not _has_token(body):
        return ReadyReport(False, "llama-server answered without a token")
    settings = _parsed(body).get("generation_settings")
    return ReadyReport(
        True, "", seconds=loop.time() - began, settings=settings if isinstance(settings, dict) else {}
    )


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """All of it, however many pieces it comes in; anything longer than an answer can be is cut."""
    body = await answer.content.read(_ANSWER_BYTES)
    while not answer.content.at_eof() and len(body) < _ANSWER_BYTES:
        body += await answer.content.read(_ANSWER_BYTES)
    return body


def _parsed(body: bytes) -> dict[str, object]:
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _error_text(status: int, body: bytes) -> str:
    error = _parsed(body).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message)[:300] if message else f"llama-server answered {status}"


def _has_token(body: bytes) -> bool:
    answer = _parsed(body)
    timings = answer.get("timings")
    counts = [
        answer.get("tokens_predicted"),
        timings.get("predicted_n") if isinstance(timings, dict) else None,
    ]
    return any(isinstance(count, int) and count > 0 for count in counts)
