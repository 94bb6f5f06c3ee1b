"""Which paths the API has, who may call them, and what is answered without llama-server.

An allow-list: paths that write files, change slots, adapters or properties, show other users' prompts
or fetch from elsewhere are not in it.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

from aiohttp import web

from meshd.base.peer_limits import Share
from meshd.base.work_slots import Slots
from meshd.gateway.auth import KeyRing, given_keys
from meshd.gateway.body import LARGEST_COPY, Bodies, parse_object, with_fields
from meshd.gateway.browser import BrowserGuard, foreign_headers, is_json, opens_page, preflight_headers
from meshd.gateway.chat_page import PageFile
from meshd.gateway.client_connections import RequestGate, Visitor, member_of
from meshd.gateway.events import StreamForm
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.interface import ModelWish, Readiness, Upstream, Upstreams
from meshd.gateway.proxy import ProxiedCall, Proxy
from meshd.model.status import ModelState


@dataclass(frozen=True, slots=True)
class Route:
    """A path that is passed on. `counts`: its answers hold generated tokens."""

    method: str
    counts: bool = False
    form: StreamForm = StreamForm.OPENAI


_GENERATE = Route("POST", counts=True)
_ASK = Route("POST")
_LOOK = Route("GET")

ROUTES: Mapping[str, Route] = {
    "/v1/chat/completions": _GENERATE,
    "/v1/completions": _GENERATE,
    "/v1/responses": Route("POST", counts=True, form=StreamForm.RESPONSES),
    "/v1/messages": Route("POST", counts=True, form=StreamForm.ANTHROPIC),
    "/v1/messages/count_tokens": _ASK,
    "/v1/embeddings": _ASK,
    "/v1/rerank": _ASK,
    "/v1/reranking": _ASK,
    # llama.cpp's own
    "/chat/completions": _GENERATE,
    "/completion": _GENERATE,
    "/completions": _GENERATE,
    "/infill": _GENERATE,
    "/embedding": _ASK,
    "/embeddings": _ASK,
    "/rerank": _ASK,
    "/reranking": _ASK,
    "/tokenize": _ASK,
    "/detokenize": _ASK,
    "/apply-template": _ASK,
    "/props": _LOOK,
    "/metrics": _LOOK,
}

_ANY_SEED = -1  # llama-server takes another one each time
_SEEDS = 1 << 31

_HEADERS = {
    "Server": "meshd",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",  # no other page includes an answer, as a script say
}
HEALTH_PATHS = frozenset({"/health", "/v1/health"})
MODELS_PATHS = frozenset({"/v1/models", "/models"})
MODEL_PREFIX = "/v1/models/"
_NAMES_SHOWN = 32  # of models, in an error


class Tally:
    """Numbers for the status."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.active = 0

    def add_tokens(self, count: int) -> None:
        self.tokens += count


class Router:
    """Handles every request of the API: guards first, then our own answers, then the proxy."""

    def __init__(
        self,
        *,
        upstream: Upstreams,
        proxy: Proxy,
        guard: BrowserGuard,
        keys: KeyRing,
        bodies: Bodies,
        tally: Tally,
        max_requests: int,
        door: RequestGate,
        page: Mapping[str, PageFile],
        seeds: bool = False,
    ) -> None:
        """`seeds`: requests without one get one, so that the same request gets the same answer."""
        self._upstream = upstream
        self._proxy = proxy
        self._guard = guard
        self._keys = keys
        self._bodies = bodies
        self._tally = tally
        self._max_requests = max_requests
        self._door = door
        self._page = page
        self._seeds = seeds
        self._requests = Slots(Share("", max_requests, "node", ""), _of_key(max_requests, keys))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every refusal is OpenAI's error JSON."""
        origin = request.headers.get("Origin")
        # only for an allowed origin: no other page may read an answer, not even a refusal
        foreign = origin is not None and self._guard.is_foreign_but_allowed(origin)
        extra = {**_HEADERS, **(foreign_headers(origin) if origin and foreign else {})}
        try:
            self._check_browser(request)
            if request.method == "OPTIONS":
                return _preflight(request, extra, allowed=foreign)
            return await self._answer(request, extra)
        except HttpRefusal as refusal:
            response = refusal.failure.response()
            response.headers.update(extra)
            if not request.content.is_eof():
                response.force_close()  # the client need not send the rest of its body
            return response

    def _check_browser(self, request: web.BaseRequest) -> None:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise HttpRefusal(Failure(400, "exactly one Host header is needed", code="bad_host"))
        if not self._guard.host_allowed(hosts[0]):
            message = f"host `{hosts[0][:200]}` is not allowed: allow it with `--allowed-host NAME`"
            raise HttpRefusal(Failure(403, message, type="permission_error", code="host_not_allowed"))
        origins = request.headers.getall("Origin", [])
        if len(origins) > 1 or not self._guard.origin_allowed(next(iter(origins), None), hosts[0]):
            message = f"origin `{origins[0][:200]}` is not allowed: allow it with `--allowed-origin ORIGIN`"
            raise HttpRefusal(Failure(403, message, type="permission_error", code="origin_not_allowed"))
        if self._guard.site_allowed(request.headers):
            return
        if request.path not in self._page or not opens_page(request.headers):
            message = "pages of other sites may not call the API: allow one with `--allowed-origin ORIGIN`"
            raise HttpRefusal(Failure(403, message, type="permission_error", code="site_not_allowed"))

    async def _answer(self, request: web.BaseRequest, extra: dict[str, str]) -> web.StreamResponse:
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path
        page_file = self._page.get(path)
        if page_file is not None or path in HEALTH_PATHS:
            _demand_method(method, "GET")
            if not self._keys:
                self._check_key(request)  # lets the connection stay
            return self._health(extra) if page_file is None else page_file.response(extra)
        key = self._check_key(request)
        own = self._own_answer(path)
        if own is not None:
            _demand_method(method, "GET")
            self._check_ready()  # a client takes a model that is listed for one that answers
            return await own(extra)
        route = ROUTES.get(path)
        if route is None:
            raise HttpRefusal(Failure(404, f"the API has no path `{path[:200]}`", code="unknown_path"))
        _demand_method(method, route.method)
        if route.method == "POST" and not is_json(request.headers.get("Content-Type")):
            message = "the body must be JSON: send `Content-Type: application/json`"
            raise HttpRefusal(Failure(415, message, code="unsupported_media_type"))
        return await self._pass_on(request, path, route, extra, key)

    def _check_key(self, request: web.BaseRequest) -> bytes:
        """The key's digest; empty where none is asked for."""
        member = member_of(request)
        key = self._keys.match(request.headers) if member is None else member.key
        if key is None:
            message = "a valid API key is needed: `Authorization: Bearer KEY`"
            raise HttpRefusal(Failure(401, message, type="authentication_error", code="invalid_api_key"))
        if isinstance(request.protocol, Visitor) and not self._door.know(request.protocol, key):
            message = "too many connections are open with this key"
            raise HttpRefusal(Failure(503, message, type="unavailable_error", code="busy", retry_after=2))
        return key

    async def _pass_on(
        self, request: web.BaseRequest, path: str, route: Route, extra: dict[str, str], key: bytes
    ) -> web.StreamResponse:
        self._check_ready()
        release = self._requests.take(key)
        if release is None:
            message = f"{self._tally.active} requests are already in progress"
            raise HttpRefusal(Failure(503, message, type="unavailable_error", code="busy", retry_after=2))
        self._count(1)
        try:
            if route.method == "GET":
                upstream = self._route(request, {})
                self._tally.requests += 1
                call = ProxiedCall("GET", path, None, False, route.counts, route.form, extra, upstream)
                return await self._proxy.forward(request, call)
            async with self._bodies.read(request) as body:
                return await self._proxy.forward(request, self._call(request, path, route, body, extra))
        finally:
            self._count(-1)
            release()

    def _call(
        self, request: web.BaseRequest, path: str, route: Route, body: bytes, extra: dict[str, str]
    ) -> ProxiedCall:
        asked = parse_object(body)
        upstream = self._route(request, asked)
        self._check_ready(upstream)  # a slow body may have outlived the model
        fields = self._more_fields(upstream, asked, len(body), counts=route.counts)
        self._tally.requests += 1
        return ProxiedCall(
            "POST",
            path,
            with_fields(body, fields) if fields else body,
            asked.get("stream") is True,
            route.counts,
            route.form,
            extra,
            upstream,
            own_seed="seed" in fields,
            cut=member_of(request) is not None,
        )

    def _route(self, request: web.BaseRequest, asked: Mapping[str, object]) -> Upstream:
        model = asked.get("model")
        wish = ModelWish(model if isinstance(model, str) else "", given_keys(request.headers))
        upstream = self._upstream.route(wish)
        if upstream is None:
            raise HttpRefusal(self._unknown_model(wish.model))
        return upstream

    def _count(self, change: int) -> None:
        self._tally.active += change
        self._upstream.requested(self._tally.active)

    def _more_fields(
        self, upstream: Upstream, asked: Mapping[str, object], size: int, *, counts: bool
    ) -> dict[str, object]:
        """What is added to a request of `size` bytes."""
        may = counts and bool(asked) and size <= LARGEST_COPY
        fields: dict[str, object] = {}
        if self._seeds and may and asked.get("seed") in (None, _ANY_SEED):
            fields["seed"] = secrets.randbelow(_SEEDS)
        sampling = upstream.device_sampling
        if sampling is None:
            return fields
        if sampling.is_refused(asked):
            message = "`backend_sampling` is decided by meshd: leave it out, or start with `-- -bs`"
            raise HttpRefusal(Failure(400, message, code="backend_sampling_not_allowed"))
        return fields | sampling.added_to(asked) if may else {}

    def _check_ready(self, upstream: Upstream | None = None) -> None:
        now = (upstream or self._upstream).readiness
        if now.state is not ModelState.READY:
            raise HttpRefusal(_not_ready(now))

    def _health(self, extra: dict[str, str]) -> web.Response:
        now = self._upstream.readiness
        model = self._upstream.model_name
        if now.state is ModelState.READY:
            return web.json_response({"status": "ok", "model": model}, headers=extra)
        failure = _not_ready(now)
        said = {"status": str(now.state), "reason": now.reason, "progress": now.progress, "model": model}
        workers = [asdict(worker) for worker in now.workers]
        headers = {**failure.headers(), **extra}
        return web.json_response(
            {**said, "workers": workers, "error": failure.error()}, status=503, headers=headers
        )

    def _own_answer(self, path: str) -> Callable[[dict[str, str]], Awaitable[web.Response]] | None:
        if path in MODELS_PATHS:
            return self._models
        if path.startswith(MODEL_PREFIX):
            return lambda extra: self._model(path.removeprefix(MODEL_PREFIX), extra)
        return None

    async def _models(self, extra: dict[str, str]) -> web.Response:
        data = [_model_object(name) for name in self._upstream.model_names]
        return web.json_response({"object": "list", "data": data}, headers=extra)

    async def _model(self, asked: str, extra: dict[str, str]) -> web.Response:
        if asked not in self._upstream.model_names:
            raise HttpRefusal(self._unknown_model(asked))
        return web.json_response(_model_object(asked), headers=extra)

    def _unknown_model(self, asked: str) -> Failure:
        names = [f"`{name}`" for name in self._upstream.model_names]
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        served = f"{shown} {'is' if len(names) == 1 else 'are'}" if names else "no model is"
        message = f"the model `{asked[:200]}` is not served here, {served}"
        return Failure(404, message, code="model_not_found")


def _not_ready(now: Readiness) -> Failure:
    return Failure(
        503,
        f"the model is not ready ({now.state}): {now.reason}",
        type="unavailable_error",
        code=f"model_{now.state}",
        retry_after=now.retry_after,
    )


def _of_key(most: int, keys: KeyRing) -> Share:
    """With several keys, none takes all places."""
    return Share("", most if len(keys) < 2 else max(1, most * 3 // 4), "key", "")


def _model_object(name: str) -> dict[str, str | int]:
    # OpenAI's clients demand `created`; nobody knows when a GGUF file was made
    return {"id": name, "object": "model", "created": 0, "owned_by": "meshd"}


def _demand_method(method: str, wanted: str) -> None:
    if method != wanted:
        message = f"use {wanted} for this path"
        raise HttpRefusal(Failure(405, message, code="method_not_allowed", allow=(wanted,)))


def _preflight(request: web.BaseRequest, extra: Mapping[str, str], *, allowed: bool) -> web.Response:
    if not allowed:
        raise HttpRefusal(
            Failure(
                403, "this origin is not allowed to call the API", type="permission_error", code="cors_denied"
            )
        )
    headers = preflight_headers(
        request.headers["Origin"],
        asked=request.headers.get("Access-Control-Request-Headers"),
        private_network=request.headers.get("Access-Control-Request-Private-Network") == "true",
    )
    return web.Response(status=204, headers={**extra, **headers})
