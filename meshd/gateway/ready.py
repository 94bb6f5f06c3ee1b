"""True readiness: llama-server is ready when it has generated a token, not when its port answers."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import aiohttp

from meshd.base.sockets import connect_unix
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
_ANY_LENGTH = {**_REQUEST, "n_predict": -1}  # sampled as answers of clients are, which are not so short


async def one_token(socket_path: Path, sampling: FindSampling) -> ReadyReport:
    """Ask llama-server for one real token at temperature 0.

    `sampling`: returns where to sample, by llama-server's settings. The token is sampled as those of clients
    are, so that logits cross the network only if theirs do.

    Waits without limit while the socket does not exist or the answer is 503 (loading): the caller cancels
    when the child has ended or time is up. After loading, an error, a broken connection or an answer without
    a token is reported with the reason.
    """
    async with open_session(partial(connect_unix, socket_path)) as session:
        while True:
            props = await _props(session)
            if props is not None:
                chosen = sampling(_settings(props))
                added = chosen.added_to(_ANY_LENGTH) if chosen is not None else {}
                report = await _ask(session, {**_REQUEST, **added}, props)
                if report is not None:
                    return report
            await asyncio.sleep(_POLL_SECONDS)


async def one_round(socket_path: Path, sampling: DeviceSampling | None) -> float | None:
    """Measure the seconds that llama-server takes for the second of two tokens, the shortest of some tries.

    The first token belongs to the prompt, and with one token left llama-server drafts nothing. None if it
    gives no timings, or is gone.
    """
    timings = await _timings(socket_path, sampling, 2, _TRIES)
    return min((answer.generated_seconds for answer in timings if answer.generated_tokens == 2), default=None)


async def drafted_rounds(
    socket_path: Path, sampling: DeviceSampling | None, length: int
) -> AnswerTimings | None:
    """Time a short answer with drafts of this length; None if llama-server reports no drafts."""
    timings = await _timings(socket_path, sampling, length + _MORE_TOKENS, _TRIES - 1)
    drafted = [answer for answer in timings if answer.drafted and answer.generated_tokens > 1]
    return min(drafted, key=lambda answer: answer.generated_seconds, default=None)


async def _timings(
    socket_path: Path, sampling: DeviceSampling | None, tokens: int, tries: int
) -> list[AnswerTimings]:
    """Generate the same answer several times, and return the timings of each."""
    added = sampling.added_to(_ANY_LENGTH) if sampling is not None else {}
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


async def _props(session: aiohttp.ClientSession) -> Mapping[str, object] | None:
    """Return llama-server's properties; {} if it gives none, None if it is not ready."""
    try:
        async with session.get(f"{_HOST}/props") as answer:
            body = await _body(answer)
    except aiohttp.ClientConnectorError:
        return None
    except (aiohttp.ClientError, OSError):
        return {}  # what has become of it is told below
    return None if answer.status == 503 else _parsed(body)


def _settings(props: Mapping[str, object]) -> Mapping[str, object]:
    """Return llama-server's defaults for requests; {} if it gives none."""
    found = props.get("default_generation_settings")
    settings = found.get("params") if isinstance(found, dict) else None
    return settings if isinstance(settings, dict) else {}


async def _ask(
    session: aiohttp.ClientSession, request: Mapping[str, object], props: Mapping[str, object]
) -> ReadyReport | None:
    """Ask once; None if llama-server is not ready."""
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
    return ReadyReport(True, "", seconds=loop.time() - began, settings=_settings(props), props=props)


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """Read the whole body, cut at the length that an answer can have."""
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
