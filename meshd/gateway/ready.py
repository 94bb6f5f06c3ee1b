"""True readiness: llama-server is ready when it has generated a token, not when its port answers."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import aiohttp

from meshd.base.unix_connect import connect_unix
from meshd.gateway.events import answer_timings
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.gateway.upstream import open_session
from meshd.model.device_sampling import DeviceSampling

_POLL_SECONDS = 0.02  # asked once `/health` is 200, so that the answer is seldom 503
_HOST = "http://localhost"
_ANSWER_BYTES = 1 << 20
_TRIES = 3  # of a round: the first one brings the graphs to the workers
_MORE_TOKENS = 6  # than a draft has: few of the drafts are shortened by the end of the answer

_REQUEST = {
    "prompt": "Hello",
    "n_predict": 1,
    "temperature": 0,
    "cache_prompt": False,
    "stream": False,
}


async def one_token(
    socket_path: Path,
    sampling: FindSampling,
    *,
    poll_seconds: float = _POLL_SECONDS,
) -> ReadyReport:
    """Ask llama-server for one real token at temperature 0.

    `sampling`: what becomes of requests, by llama-server's own settings. The token is taken as those of
    clients are, so that logits do not cross where theirs do not.

    Waits without limit while the socket is not there yet or the answer is 503 (loading): the caller
    cancels when the child has ended or time is up. Once it is past loading, an error, a broken
    connection or an answer without a token is a report with the reason.
    """
    async with open_session(partial(connect_unix, socket_path)) as session:
        while True:
            settings = await _settings(session)
            if settings is not None:
                chosen = sampling(settings)
                added = chosen.added_to(_REQUEST) if chosen is not None else {}
                report = await _ask(session, {**_REQUEST, **added}, settings)
                if report is not None:
                    return report
            await asyncio.sleep(poll_seconds)


async def one_round(
    socket_path: Path, sampling: DeviceSampling | None, *, tries: int = _TRIES
) -> float | None:
    """Seconds that llama-server takes for the second of two tokens: the first is the prompt's, and with one
    to go it drafts nothing. The shortest of some tries; None if it does not tell, for one that is gone.
    """
    told = await _timings(socket_path, sampling, 2, tries)
    return min((one.generated_seconds for one in told if one.generated_tokens == 2), default=None)


async def drafted_rounds(
    socket_path: Path, sampling: DeviceSampling | None, length: int
) -> AnswerTimings | None:
    """Of a short answer, made with drafts of this length; None if llama-server does not tell of any."""
    told = await _timings(socket_path, sampling, length + _MORE_TOKENS, _TRIES - 1)
    drafted = [one for one in told if one.drafted and one.generated_tokens > 1]
    return min(drafted, key=lambda one: one.generated_seconds, default=None)


async def _timings(
    socket_path: Path, sampling: DeviceSampling | None, tokens: int, tries: int
) -> list[AnswerTimings]:
    """Of the same answer of so many tokens, made again and again."""
    added = sampling.added_to(_REQUEST) if sampling is not None else {}
    request = {**_REQUEST, **added, "n_predict": tokens, "ignore_eos": True}
    taken: list[AnswerTimings] = []
    async with open_session(partial(connect_unix, socket_path)) as session:
        for _ in range(tries):
            try:
                async with session.post(f"{_HOST}/completion", json=request) as answer:
                    timings = answer_timings(await _body(answer))
            except (aiohttp.ClientError, OSError):
                return []
            if timings is not None:
                taken.append(timings)
    return taken


async def _settings(session: aiohttp.ClientSession) -> Mapping[str, object] | None:
    """What requests have that say nothing else; {} where it does not tell, None when it is too early."""
    try:
        async with session.get(f"{_HOST}/props") as answer:
            body = await _body(answer)
    except aiohttp.ClientConnectorError:
        return None
    except (aiohttp.ClientError, OSError):
        return {}  # what has become of it is told below
    if answer.status == 503:
        return None
    found: object = _parsed(body).get("default_generation_settings")
    settings = found.get("params") if isinstance(found, dict) else None
    return settings if isinstance(settings, dict) else {}


async def _ask(
    session: aiohttp.ClientSession, request: Mapping[str, object], settings: Mapping[str, object]
) -> ReadyReport | None:
    """One try; None when it is too early."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with session.post(f"{_HOST}/completion", json=request) as answer:
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
    return ReadyReport(True, "", seconds=loop.time() - began, settings=settings)


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
