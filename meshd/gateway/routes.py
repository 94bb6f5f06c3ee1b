"""Who may call the API, what is answered without llama-server, and what is passed on to which."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

from aiohttp import web

from meshd.base.work_slots import Slots
from meshd.gateway.accounts import Accounts
from meshd.gateway.asked import AskedBody, read_form, read_json
from meshd.gateway.auth import KeyRing, given_keys
from meshd.gateway.body import Bodies
from meshd.gateway.browser import (
    FORM_TYPE,
    JSON_TYPE,
    BrowserGuard,
    foreign_headers,
    is_form,
    is_json,
    opens_page,
    preflight_headers,
)
from meshd.gateway.chat_page import PageFile
from meshd.gateway.client_connections import RequestGate, Visitor, member_of
from meshd.gateway.failure import ANSWER_HEADERS, Failure, HttpRefusal
from meshd.gateway.interface import Models, Upstream
from meshd.gateway.kept_proxy import KeptProxy
from meshd.gateway.one_model import TurnAtOnce
from meshd.gateway.own_answers import HEALTH_PATHS, OwnAnswers, check_ready
from meshd.gateway.paths import ROUTES, Route
from meshd.gateway.proxied_call import CallAdmission, ProxiedCall
from meshd.gateway.proxy import Proxy

_SEEDS = 1 << 31
IDENTITY = "identity"  # the coding that changes nothing


class Tally:
    """Numbers for the status."""

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self._uses: Counter[Upstream] = Counter()

    def requests_of(self, model: str) -> int:
        return sum(count for one, count in self._uses.items() if one.model_name == model)

    @contextmanager
    def use_of(self, upstream: Upstream) -> Iterator[None]:
        """A request to it, which it is told of."""
        self._uses[upstream] += 1
        upstream.requested(self._uses[upstream])
        try:
            yield
        finally:
            self._uses[upstream] -= 1
            upstream.requested(self._uses[upstream])
            if not self._uses[upstream]:
                del self._uses[upstream]  # another node's API may be one for each request

    def add_tokens(self, count: int) -> None:
        self.tokens += count


class Router:
    """Handles every request of the API: guards first, then our own answers, then the proxy."""

    def __init__(
        self,
        *,
        models: Models,
        proxy: Proxy,
        queued: KeptProxy,
        accounts: Accounts,
        guard: BrowserGuard,
        keys: KeyRing,
        bodies: Bodies,
        tally: Tally,
        places: Slots,
        door: RequestGate,
        page: Mapping[str, PageFile],
        seeds: bool = False,
    ) -> None:
        """`places`: of requests under way. `seeds`: requests without one get one, so that the same request
        gets the same answer."""
        self._models = models
        self._proxy = proxy
        self._queued = queued
        self._accounts = accounts
        self._own = OwnAnswers(models)
        self._guard = guard
        self._keys = keys
        self._bodies = bodies
        self._tally = tally
        self._places = places
        self._door = door
        self._page = page
        self._seeds = seeds
        self._parsing = asyncio.Lock()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every refusal is OpenAI's error JSON."""
        origin = request.headers.get("Origin")
        # only for an allowed origin: no other page may read an answer, not even a refusal
        foreign = origin is not None and self._guard.is_foreign_but_allowed(origin)
        extra = {**ANSWER_HEADERS, **(foreign_headers(origin) if origin and foreign else {})}
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
            if page_file is not None:
                return page_file.response(extra)
            return self._own.health(request.query.get("model", ""), extra)
        key = self._check_key(request)
        if self._own.answers(path):
            _demand_method(method, "GET")
            return self._own.about(path, extra)
        route = ROUTES.get(path)
        if route is None:
            raise HttpRefusal(Failure(404, f"the API has no path `{path[:200]}`", code="unknown_path"))
        _demand_method(method, route.method)
        _demand_type(request.headers, route)
        return await self._pass_on(request, path, route, extra, key)

    def _check_key(self, request: web.BaseRequest) -> bytes:
        """The key's digest; empty where none is asked for."""
        member = member_of(request)
        key = self._keys.match(request.headers) if member is None else member.key
        if key is None:
            given = "Authorization" in request.headers or "x-api-key" in request.headers
            wrong = "this is not a key of this API: send" if given else "this API needs a key: send"
            message = f"{wrong} `Authorization: Bearer KEY`"
            raise HttpRefusal(Failure(401, message, type="authentication_error", code="invalid_api_key"))
        if isinstance(request.protocol, Visitor) and not self._door.know(request.protocol, key):
            message = "too many connections are open with this key"
            raise HttpRefusal(Failure(503, message, type="unavailable_error", code="busy", retry_after=2))
        return key

    async def _pass_on(
        self, request: web.BaseRequest, path: str, route: Route, extra: dict[str, str], key: bytes
    ) -> web.StreamResponse:
        if not self._waits(request, key):
            self._own.check_ready()
        release = self._places.take(key)
        if release is None:
            message = f"{len(self._places)} requests are already in progress"
            raise HttpRefusal(Failure(503, message, type="unavailable_error", code="busy", retry_after=2))
        with ExitStack() as held:
            held.callback(release)
            if (only := self._models.only) is not None:
                held.enter_context(self._tally.use_of(only.upstream))
            if route.method == "GET":
                return await self._look(request, path, route, extra)
            if route.computes:
                held.enter_context(self._accounts.request(key))
            async with self._bodies.read(request, key) as body:
                return await self._generate(request, path, route, extra, body, held, key)

    def _waits(self, request: web.BaseRequest, key: bytes) -> bool:
        """Whether its answer was begun, so that it waits for the model until that is ready again."""
        return self._models.only is not None and self._queued.comes_back(request.headers, key)

    async def _look(
        self, request: web.BaseRequest, path: str, route: Route, extra: dict[str, str]
    ) -> web.StreamResponse:
        """At what a llama-server tells of itself; nothing is loaded for that."""
        upstream = self._own.find(request.query.get("model"), given_keys(request.headers)).upstream
        self._tally.requests += 1
        admission = CallAdmission(lambda: TurnAtOnce(upstream))
        call = ProxiedCall("GET", path, None, False, route.counts, route.form, extra, upstream, admission)
        return await self._proxy.forward(request, call)

    async def _generate(
        self,
        request: web.BaseRequest,
        path: str,
        route: Route,
        extra: dict[str, str],
        body: bytes,
        held: ExitStack,
        key: bytes,
    ) -> web.StreamResponse:
        kind = request.headers["Content-Type"] if route.is_form else JSON_TYPE
        asked = await self._asked(body, kind, route)
        model = self._own.find(asked.model, given_keys(request.headers))
        may, stream, looked_at = route.counts and asked.can_grow, asked.stream, asked.sampling
        needs_seed = self._seeds and may and not asked.has_seed
        del asked  # a name of a model may be as long as the body
        if self._models.only is None:
            held.enter_context(self._tally.use_of(model.upstream))
        if not self._models.on_demand and not self._waits(request, key):
            check_ready(model.upstream.readiness)  # a slow body may have outlived the model
        admission = CallAdmission(model.turn)
        held.callback(admission.end)
        self._tally.requests += 1
        call = ProxiedCall(
            "POST",
            path,
            body,
            stream,
            route.counts,
            route.form,
            extra,
            model.upstream,
            admission,
            cut=member_of(request) is not None,
            own_seed=needs_seed,
            added=partial(_added, model.upstream, looked_at, seed=needs_seed, may=may),
            began=asyncio.get_running_loop().time(),
            content_type=kind,
        )
        if route.computes:
            return await self._queued.forward(request, call, key)
        return await self._proxy.forward(request, call)

    async def _asked(self, body: bytes, kind: str, route: Route) -> AskedBody:
        if route.is_form:
            return await read_form(body, kind)
        async with self._parsing:
            await asyncio.sleep(0)  # however many bodies are there: links and answers go on between two
            return read_json(body)


def _added(
    upstream: Upstream, looked_at: Mapping[str, object], *, seed: bool, may: bool
) -> dict[str, object]:
    """What is added to a request, as its model is now. `looked_at`: its `sampling_fields`."""
    fields: dict[str, object] = {"seed": secrets.randbelow(_SEEDS)} if seed else {}
    sampling = upstream.device_sampling
    if sampling is None:
        return fields
    if sampling.is_refused(looked_at):
        message = "`backend_sampling` is decided by meshd: leave it out, or start with `-- -bs`"
        raise HttpRefusal(Failure(400, message, code="backend_sampling_not_allowed"))
    return fields | sampling.added_to(looked_at) if may else {}


def _demand_method(method: str, wanted: str) -> None:
    if method != wanted:
        message = f"use {wanted} for this path"
        raise HttpRefusal(Failure(405, message, code="method_not_allowed", allow=(wanted,)))


def _demand_type(headers: Mapping[str, str], route: Route) -> None:
    """Raises HttpRefusal."""
    if route.method != "POST":
        return
    coding = headers.get("Content-Encoding", IDENTITY)
    if coding.strip().lower() != IDENTITY:
        message = f"the body must not be compressed (`{coding[:50]}`): leave `Content-Encoding` out"
        raise HttpRefusal(Failure(415, message, code="unsupported_encoding"))
    given = headers.get("Content-Type")
    if is_form(given) if route.is_form else is_json(given):
        return
    wanted = (
        f"a form: send `Content-Type: {FORM_TYPE}`"
        if route.is_form
        else f"JSON: send `Content-Type: {JSON_TYPE}`"
    )
    raise HttpRefusal(Failure(415, f"the body must be {wanted}", code="unsupported_media_type"))


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
