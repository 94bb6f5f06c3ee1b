"""A gateway as `meshd serve` has it, before a scripted llama-server: what programs meet when they are tried.

A real llama-server renders every chat with the template that is tried, so what the template refuses is
refused. Nothing is generated: the script (script.py) answers, and faults are as the scene says.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

from tests.e2e.native_rig import Head
from tests.process.gateway_fake import (
    FakeModel,
    FakeModels,
    FakeServer,
    FakeUpstream,
    begin_stream,
    die,
    event,
    gateway_of,
    listening,
    serving,
)
from tests.recorded.answers import Json, chat_stream, chat_whole
from tests.recorded.programs import MODEL
from tests.recorded.script import answer_to, step_of

Fault = Literal["", "loading", "503", "401", "404", "context", "cut"]
CHATS = ("/chat/completions", "/responses", "/messages")  # how the paths of chats end
CONTINUE_SECONDS = 300.0  # the default of `continue_answers`
LOAD_SECONDS = 20.0
_CONTEXT, _PROMPT = 8192, 9001  # tokens
_EVENTS_BEFORE_CUT = 4
_WAITING = Readiness(ModelState.WAITING, "waiting for workers: 0 of 1 ready")
_LOADING = Readiness(ModelState.LOADING, "loading the model: 40 %", progress=0.4)
_LOST = "llama-server lost worker anna: no connection for 120 s"
_HOP_BY_HOP = frozenset({"host", "connection", "transfer-encoding", "keep-alive", "date", "server"})


@dataclass
class Note:
    """One request of a program, and what the gateway answered."""

    method: str
    path: str
    body: Json | None
    at: float  # of the monotonic clock
    status: int = 0
    type: str = ""
    answer: bytearray = field(default_factory=bytearray)

    @property
    def is_chat(self) -> bool:
        """Return whether it asks the model for an answer."""
        return self.path.partition("?")[0].endswith(CHATS)


class _Tap:
    """Passes requests on to the gateway, and answers back as they come; notes both."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        notes: list[Note],
        on_first_chat: Callable[[], object],
    ) -> None:
        self._url, self._http, self._notes = url, http, notes
        self._on_first_chat = on_first_chat

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.read()
        body = json.loads(data) if data else None
        note = Note(request.method, request.path_qs, body, time.monotonic())
        if note.is_chat and not any(one.is_chat for one in self._notes):
            self._on_first_chat()
        self._notes.append(note)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        asked = self._http.request(
            request.method,
            self._url + request.path_qs,
            data=data or None,
            headers=headers,
            skip_auto_headers=("Accept-Encoding", "Accept", "User-Agent", "Content-Type"),
        )
        async with asked as answer:
            note.status, note.type = answer.status, answer.headers.get("Content-Type", "")
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                note.answer += piece
                await response.write(piece)
            return response


class _ScriptedServer:
    """Answers as a llama-server. `folder` is where the program works, `notes` what it has asked."""

    def __init__(self, head: Head, folder: str, fault: Fault, notes: list[Note]) -> None:
        self._head, self._folder, self._fault, self._notes = head, folder, fault, notes

    async def __call__(self, _server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        data = await request.read()
        is_chat = request.path == "/v1/chat/completions"
        path = "/apply-template" if is_chat else request.path
        status, said = await asyncio.to_thread(self._head.request, request.method, path, data or None)
        if not is_chat or status != 200:
            return web.Response(body=said, status=status, content_type="application/json")
        if self._fault == "context":
            return web.json_response({"error": _exceeds()}, status=400)
        return await self._play(request, json.loads(data))

    async def _play(self, request: web.BaseRequest, body: Json) -> web.StreamResponse:
        # by what the program sent: where a template has no calls, they have become text here
        step = max(step_of(note.body) for note in self._notes if note.is_chat and note.body)
        answer = answer_to(body, step=step, folder=self._folder)
        if not body.get("stream"):
            if self._fault == "cut":
                die(request)
            return web.json_response(chat_whole(answer))
        response = await begin_stream(request)
        for number, (_, fields) in enumerate(chat_stream(answer)):
            if self._fault == "cut" and number == _EVENTS_BEFORE_CUT:
                die(request)
                break
            await response.write(b"data: [DONE]\n\n" if fields == "[DONE]" else event(fields))
        return response


def _exceeds() -> Json:
    """Return llama-server's error for a prompt that is too long (server-context.cpp)."""
    said = f"request ({_PROMPT} tokens) exceeds the available context size ({_CONTEXT} tokens)"
    counts = {"n_prompt_tokens": _PROMPT, "n_ctx": _CONTEXT}
    return {
        "code": 400,
        "message": f"{said}, try increasing it",
        "type": "exceed_context_size_error",
        **counts,
    }


class _Upstream(FakeUpstream):
    """Its model is not loaded again when it has been lost."""

    async def upstream_broke(self, why: str) -> str:
        self.readiness = Readiness(ModelState.FAILED, _LOST)
        return _LOST


def _load(upstream: _Upstream) -> None:
    """End a load that is under way some time after a program has asked."""
    if upstream.readiness is _LOADING:
        ready = Readiness(ModelState.READY, "")
        asyncio.get_running_loop().call_later(LOAD_SECONDS, setattr, upstream, "readiness", ready)


async def _gateway(fault: Fault, upstream: _Upstream, server: FakeServer) -> Gateway:
    keys = (ApiKey("sk-another"),) if fault == "401" else ()  # by default none is asked for
    config = GatewayConfig(port=0, api_keys=keys, continue_seconds=CONTINUE_SECONDS)
    if fault == "404":  # with several models a name chooses
        upstream.model_name = "another-model"
        return await gateway_of(config, FakeModels([FakeModel(upstream.model_name, upstream, server)]))
    upstream.readiness = {"503": _WAITING, "loading": _LOADING}.get(fault, upstream.readiness)
    return await gateway_of(config, OneModel(upstream))


@dataclass(frozen=True)
class Scene:
    """The place where a program is tried: the API's address without `/v1`, and what was asked of it."""

    url: str
    notes: list[Note]

    def first_asked(self) -> float | None:
        """Return when a chat was first asked for, in seconds of the monotonic clock."""
        return next((note.at for note in self.notes if note.is_chat), None)


@contextlib.asynccontextmanager
async def scene(head: Head, folder: str, fault: Fault = "") -> AsyncIterator[Scene]:
    """Set a scene up. `head` renders the chats, `folder` is where the program will work."""
    with tempfile.TemporaryDirectory(prefix="gw") as name:
        path = Path(name) / "s"
        notes: list[Note] = []
        server = FakeServer(_ScriptedServer(head, folder, fault, notes))
        facts = ServedFacts(context=65536)
        upstream = _Upstream(path, MODEL, facts=facts)
        gateway = await _gateway(fault, upstream, server)
        session = aiohttp.ClientSession(
            auto_decompress=False, timeout=aiohttp.ClientTimeout(None), cookie_jar=aiohttp.DummyCookieJar()
        )
        async with listening(server, path), serving(gateway), session as http:
            tap = _Tap(gateway.url, http, notes, partial(_load, upstream))
            runner = web.ServerRunner(
                web.Server(tap.handle, handler_cancellation=True, access_log=None), shutdown_timeout=1.0
            )
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                [(host, port)] = [address[:2] for address in runner.addresses]
                yield Scene(f"http://{host}:{port}", notes)
            finally:
                await runner.cleanup()
