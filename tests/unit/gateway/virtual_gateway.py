"""A gateway on a virtual clock: requests, fake llama-servers that answer them, and what is measured."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.model.status import ModelState

from tests.process.gateway_fake import HI, Answer, FakeServer, World, begin_stream, die

CHAT = "/v1/chat/completions"
TIMINGS = {"prompt_n": 3, "prompt_ms": 200, "predicted_n": 5, "predicted_ms": 400, "cache_n": 4}
WHOLE = {"choices": [{"index": 0, "message": {"content": "hi"}}], "timings": TIMINGS}
LONG = 10_000.0  # seconds of a scenario, all virtual
HOLDS = GatewayConfig(port=0, continue_seconds=100.0)
READY = Readiness(ModelState.READY, "")
LOADING = Readiness(ModelState.LOADING, "hashing", retry_after=7)
WAITING = Readiness(ModelState.WAITING, "no worker", retry_after=7)
FAILED = Readiness(ModelState.FAILED, "broken file")
NO_ROOM = Readiness(ModelState.FAILED, "too large", no_room=True)
UNLOADED = Readiness(ModelState.UNLOADED, "made room")
DEGRADED = Readiness(ModelState.DEGRADED, "no word from anna")


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Reply:
    """One reply, and how long it took."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float

    def took(self, seconds: float) -> bool:
        """Return whether it came after so many, but for the time between two looks at the model."""
        return seconds <= self.seconds + 1e-6 and self.seconds < seconds + 0.06

    @property
    def error(self) -> dict[str, object]:
        """The error of a refusal, or of the last event of a stream."""
        text = self.body.rpartition(b"data: ")[2]
        found: dict[str, object] = json.loads(text)["error"]
        return found

    @property
    def events(self) -> bytes:
        """A stream without its comments."""
        parts = [part + b"\n\n" for part in self.body.split(b"\n\n") if part and not part.startswith(b":")]
        return b"".join(parts)


async def ask(here: World, path: str = CHAT, *, key: str = "", **fields: object) -> Reply:
    began, headers = now(), {"Authorization": f"Bearer {key}"} if key else {}
    async with here.http.post(here.url + path, json={**HI, **fields}, headers=headers) as reply:
        body = await reply.read()
        return Reply(reply.status, body, reply.headers, now() - began)


async def send(
    here: World, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> Reply:
    began = now()
    async with here.http.request(method, here.url + path, headers=headers, data=body) as reply:
        return Reply(reply.status, await reply.read(), reply.headers, now() - began)


def in_turn(*answers: Answer) -> Answer:
    """The first request gets the first of these, and so on; the last one is for all others."""
    left = list(answers)

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        return await (left.pop(0) if len(left) > 1 else left[0])(server, request)

    return answer


def dies(*pieces: bytes, whole: bool = False) -> Answer:
    """It dies, after it has streamed these; with `whole` within an answer that is no stream."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if whole:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
        elif pieces:
            response = await begin_stream(request)
        else:
            response = web.Response()
        for piece in pieces:
            await response.write(piece)
        die(request)
        return response

    return answer


def timed(*pieces: tuple[float, bytes]) -> Answer:
    """A stream: each piece comes so many seconds after the one before."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for seconds, piece in pieces:
            await asyncio.sleep(seconds)
            await response.write(piece)
        return response

    return answer


def measured(here: World, name: str) -> float:
    """A metric of the model, or of all requests for chats."""
    for family in here.gateway.collect():
        for sample in family.samples:
            if sample.name == name and set(sample.labels.values()) <= {"tiny", CHAT}:
                return float(sample.value)
    return 0.0


def statuses(here: World, path: str = CHAT) -> dict[str, float]:
    """How many requests for a path ended with each status."""
    return {
        sample.labels["status"]: sample.value
        for family in here.gateway.collect()
        for sample in family.samples
        if sample.name == "meshd_requests_total" and sample.labels["path"] == path
    }
