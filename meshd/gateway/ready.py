"""True readiness: llama-server is ready when it has generated a token, not when its port answers."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp

from meshd.base.sockets import connect_unix
from meshd.gateway.dialects.fields import object_of
from meshd.gateway.events import answer_timings, parsed
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.gateway.upstream import UpstreamLost, open_session, read_up_to, send_call
from meshd.model.device_sampling import DeviceSampling

_POLL_SECONDS = 0.02  # asked once `/health` is 200, so that the answer is seldom 503
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
            if (props := await _call(session, "/props")) is not None:
                report = await _ask(session, sampling, props.fields)
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
            answer = await _call(session, "/completion", request)
            if answer is None or not answer.status:
                return []
            if (timings := answer_timings(answer.body)) is not None:
                taken.append(timings)
    return taken


class _Reply(NamedTuple):
    status: int  # 0: it broke off
    body: bytes = b""

    @property
    def fields(self) -> dict[str, object]:
        found = parsed(self.body)
        return found if isinstance(found, dict) else {}


async def _call(
    session: aiohttp.ClientSession, path: str, request: Mapping[str, object] | None = None
) -> _Reply | None:
    """Ask llama-server; return its answer, cut at the length that it can have. None: it is not ready."""
    method, headers, held = "GET", {}, bytearray()
    if request is not None:
        method, headers = "POST", {"Content-Type": "application/json"}
    body = None if request is None else json.dumps(request).encode()
    try:
        with closing(await send_call(session, method, path, body, headers)) as answer:
            await read_up_to(_ANSWER_BYTES, answer, held)
    except UpstreamLost as lost:
        return _Reply(0) if lost.taken else None
    return None if answer.status == 503 else _Reply(answer.status, bytes(held))


async def _ask(
    session: aiohttp.ClientSession, sampling: FindSampling, props: dict[str, object]
) -> ReadyReport | None:
    """Ask for a token; None if llama-server is not ready. `props`: what it says of itself."""
    settings = object_of(object_of(props, "default_generation_settings"), "params")
    chosen = sampling(settings)
    added = chosen.added_to(_ANY_LENGTH) if chosen is not None else {}
    began = asyncio.get_running_loop().time()
    answer = await _call(session, "/completion", {**_REQUEST, **added})
    if answer is None:
        return None
    if not answer.status:
        return ReadyReport(False, "llama-server exited while it generated the first token")
    found = answer.fields
    if answer.status != 200:
        why = object_of(found, "error").get("message") or f"llama-server answered {answer.status}"
        return ReadyReport(False, f"the first token failed: {str(why)[:300]}")
    counts = (found.get("tokens_predicted"), object_of(found, "timings").get("predicted_n"))
    if not any(isinstance(count, int) and count > 0 for count in counts):
        return ReadyReport(False, "llama-server answered without a token")
    seconds = asyncio.get_running_loop().time() - began
    return ReadyReport(True, "", seconds=seconds, settings=settings, props=props)
