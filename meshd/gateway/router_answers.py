"""Answers for a page on which a user picks one of several models, in the form of llama-server's router.

llama.cpp's web UI asks for them once `/props` has `"role": "router"` (tools/server/server-models.cpp). They
hold names and states, never paths or arguments. A load is what a request would cause, and takes a place as
one. An unload is refused while requests need the model, and for a model that another key uses.

Members of the mesh get none of these: their own nodes answer them.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from aiohttp import web

from meshd.base.peer_limits import API_MODEL_WATCHERS
from meshd.base.tasks import Owner
from meshd.gateway.client_connections import member_of
from meshd.gateway.failure import Failure, HttpRefusal, unavailable
from meshd.gateway.interface import Models, ModelTurn, NamedModel, Readiness, Upstream
from meshd.gateway.paths import PROPS_PATH
from meshd.gateway.request import Bodies, check_ready, find_model, not_ready, parse_object
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, ModelStatus

LOAD_PATH, UNLOAD_PATH, EVENTS_PATH = "/models/load", "/models/unload", "/models/sse"
ROUTER_PATHS: Mapping[str, str] = {LOAD_PATH: "POST", UNLOAD_PATH: "POST", EVENTS_PATH: "GET"}
"""Their methods."""
ASKED_BY_PAGE = frozenset({*ROUTER_PATHS, PROPS_PATH})

_LOOK_SECONDS = 0.5  # at states, while a page watches: nobody tells when one changes
_QUIET_SECONDS = 15.0  # then a comment shows whether the page still reads
_KEPT_SECONDS = 600.0  # a model that another key has used stays for so long
_STAGE = "text_model"  # llama-server tells three stages of a load, and needs one
_LOADED, _UNLOADED = "loaded", "unloaded"
_VALUES = {
    ModelState.FETCHING: "loading",
    ModelState.WAITING: "loading",
    ModelState.LOADING: "loading",
    ModelState.READY: _LOADED,
    ModelState.DEGRADED: "failed",
    ModelState.FAILED: "failed",
    ModelState.UNLOADED: _UNLOADED,
}
_INPUTS = {"vision": "image", "audio": "audio"}

Users = dict[str, dict[bytes, float]]
"""When each key used each model last, in seconds of the loop, by the model's name."""

UseModel = Callable[[bytes, Upstream], AbstractContextManager[None]]
"""Takes the place of a request of this key for a model; raises HttpRefusal if there is none."""


def router_fields(state: ModelState, waiting: int, facts: ServedFacts) -> dict[str, object]:
    """Return what the list of models says of one for such a page. `waiting`: requests for it."""
    value = _value(state, waiting)
    fields: dict[str, object] = {"status": {"value": value}}
    if value == _LOADED:  # before, nobody knows what it takes
        inputs = ["text", *(word for can, word in _INPUTS.items() if can in facts.capabilities)]
        fields["architecture"] = {"input_modalities": inputs, "output_modalities": ["text"]}
    return fields


def _value(state: ModelState, waiting: int) -> str:
    if state is ModelState.UNLOADED and waiting:
        return "loading"  # once there is room
    return _VALUES[state]


class _Load:
    """A load that a page waits for."""

    def __init__(self, turn: ModelTurn) -> None:
        self._turn = turn
        self._given_up = asyncio.Event()

    async def outcome(self) -> Readiness | None:
        """Wait until the model is ready; return its state if it cannot be. Raises HttpRefusal: given up."""
        found: list[Readiness | None] = []

        async def begin() -> None:
            found.append(await self._turn.begin())
            owner.cancel()

        async def watch() -> None:
            await self._given_up.wait()
            owner.cancel()

        async with Owner() as owner:
            owner.start(begin(), name="load for a page")
            owner.start(watch(), name="load given up")
        if not found:
            raise HttpRefusal(Failure(409, "the load was given up", code="load_ended"))
        return found[0]

    def give_up(self) -> None:
        """End it, so that nothing keeps the model. Idempotent."""
        self._turn.end()
        self._given_up.set()


class RouterAnswers:
    """The answers of one gateway."""

    def __init__(self, models: Models, bodies: Bodies, use: UseModel, users: Users | None) -> None:
        """Read bodies within the limits of `bodies`. `users` None: no keys tell callers apart."""
        self._models = models
        self._bodies = bodies
        self._use = use
        self._users = users
        self._loads: dict[tuple[bytes, str], list[_Load]] = {}  # under way, by key and the model's name
        self._watchers = 0
        self._ends = asyncio.Event()

    def end(self) -> None:
        """End all streams of events, as the API stops."""
        self._ends.set()

    def answers(self, request: web.BaseRequest) -> bool:
        """Return True if this request for one of `ASKED_BY_PAGE` is answered here."""
        if self._models.only is not None or member_of(request) is not None:
            return False
        return request.path in ROUTER_PATHS or (request.path == PROPS_PATH and not request.query.get("model"))

    async def answer(
        self, request: web.BaseRequest, key: bytes, extra: Mapping[str, str]
    ) -> web.StreamResponse:
        """Answer a request whose path and method are known. Raises HttpRefusal."""
        match request.path:
            case str(path) if path == EVENTS_PATH:
                return await self._watch(request, extra)
            case str(path) if path == PROPS_PATH:
                return self._props(extra)
            case _:
                model = await self._named(request, key)
                if request.path == LOAD_PATH:
                    await self._load(model, key)
                else:
                    self._unload(model, key)
                return web.json_response({"success": True}, headers=extra)

    def _props(self, extra: Mapping[str, str]) -> web.Response:
        """Describe no model but the choice; what each can do, it says by `?model=`. Raises HttpRefusal."""
        if not self._models.on_demand:  # other nodes' models: none may be there
            check_ready(self._models.readiness)
        settings: dict[str, object] = {"params": {}, "n_ctx": 0}
        fields = {"role": "router", "models_autoload": True, "default_generation_settings": settings}
        return web.json_response(fields, headers=extra)

    async def _named(self, request: web.BaseRequest, key: bytes) -> NamedModel:
        """Return the model that a body names. Raises HttpRefusal."""
        async with self._bodies.read(request, key) as body:
            asked = parse_object(body).get("model")
        if not asked:
            raise HttpRefusal(Failure(400, "`model`: name a model", param="model", code="invalid_model"))
        return find_model(self._models, asked)

    # Loads.

    async def _load(self, model: NamedModel, key: bytes) -> None:
        """Load a model as a request for it would, and wait until it is ready. Raises HttpRefusal.

        It is given up when the client goes, or asks for the opposite.
        """
        name = model.upstream.model_name
        with self._use(key, model.upstream):
            if self._users is not None and self._models.on_demand:
                self._users.setdefault(name, {})[key] = asyncio.get_running_loop().time()
            load = _Load(model.turn())
            loads = self._loads.setdefault((key, name), [])
            loads.append(load)
            try:
                refused = await load.outcome()
            finally:
                load.give_up()
                loads.remove(load)
                if not loads:
                    self._loads.pop((key, name), None)
        if refused is not None:
            raise HttpRefusal(not_ready(refused, has_waited=True))

    def _unload(self, model: NamedModel, key: bytes) -> None:
        """Unload a model that nobody else needs. Raises HttpRefusal."""
        name = model.upstream.model_name
        if self._users is not None and not self._is_for(key, self._users.get(name, {})):
            message = f"`{name}` stays loaded for others: only keys that used it lately, alone, may unload it"
            raise HttpRefusal(Failure(403, message, type="permission_error", code="model_of_others"))
        loads = self._loads.get((key, name), [])
        for load in loads:
            load.give_up()
        why = model.unload_unused()
        if why and not loads:  # else that was what this key could end
            raise HttpRefusal(Failure(409, f"`{name}` stays loaded: {why}", code="model_in_use"))

    @staticmethod
    def _is_for(key: bytes, used: Mapping[bytes, float]) -> bool:
        """Return True if this key has used a model, and no other one lately. `used`: when each key did."""
        lately = asyncio.get_running_loop().time() - _KEPT_SECONDS
        return key in used and all(at < lately for other, at in used.items() if other != key)

    # Events.

    async def _watch(self, request: web.BaseRequest, extra: Mapping[str, str]) -> web.StreamResponse:
        """Stream the states of all models, and then each change, until the page goes. Raises HttpRefusal."""
        headers = {**extra, "Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        if self._watchers >= API_MODEL_WATCHERS.most:
            raise unavailable(f"{self._watchers} pages already watch the models")
        response = web.StreamResponse(headers=headers)
        self._watchers += 1
        try:
            await response.prepare(request)
            await self._tell(response)
        except ConnectionError:
            pass  # the page is gone
        finally:
            self._watchers -= 1
        return response

    async def _tell(self, response: web.StreamResponse) -> None:
        """Write events until the API stops. A page that does not read is waited for, and misses changes."""
        known: dict[str, Mapping[str, object]] = {}
        quiet = 0.0
        while not self._ends.is_set():
            now = self._states
            changed = [(name, state) for name, state in now.items() if known.get(name) != state]
            events = [_event(name, "status_change", state) for name, state in changed]
            if known.keys() != now.keys():  # also at first: the page may have asked while there was none
                events.insert(0, _event("*", "models_reload", {}))
            quiet = 0.0 if events else quiet + _LOOK_SECONDS
            if events or quiet >= _QUIET_SECONDS:
                quiet = 0.0
                await response.write(b"".join(events) or b":\n\n")
            known = now
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._ends.wait()
            except TimeoutError:
                pass

    @property
    def _states(self) -> dict[str, Mapping[str, object]]:
        """The state of each model, as events have them."""
        if self._models.on_demand:
            return {status.name: _state(status) for status in self._models.statuses}
        names = (model.upstream.model_name for model in self._models.all)
        return {name: {"status": _LOADED} for name in names if name}


def _state(status: ModelStatus) -> dict[str, object]:
    state: dict[str, object] = {"status": _value(status.state, status.waiting)}
    if status.progress is not None and state["status"] == "loading":
        state["progress"] = {"stages": [_STAGE], "current": _STAGE, "value": round(status.progress, 2)}
    return state


def _event(model: str, kind: str, data: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps({"model": model, "event": kind, "data": data}).encode() + b"\n\n"
