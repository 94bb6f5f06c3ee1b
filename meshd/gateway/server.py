"""The API of a node: it serves until cancelled, and takes each request past the guards to what answers it.

Health, the lists of models and the pages need no llama-server: see `own_answers.py`, `router_answers.py`
and `pages.py`.
"""

import asyncio
import ipaddress
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from aiohttp import web

from meshd.base.admission import Share, Slots
from meshd.base.errors import Broken
from meshd.base.log import get
from meshd.base.metrics import Metric, exposition, gauge
from meshd.base.metrics_port import CONTENT_TYPE as METRICS_TYPE
from meshd.base.metrics_port import Exposition
from meshd.base.sockets import adopt
from meshd.base.tasks import Owner, in_thread
from meshd.gateway.access import (
    FORM_TYPE,
    JSON_TYPE,
    ApiPort,
    foreign_headers,
    given_keys,
    is_form,
    may_be_json,
    preflight_headers,
)
from meshd.gateway.answer import RECORD, Answer, AnswerContext, RequestRecord
from meshd.gateway.answer_parts import Parts, PartsError, joined_answer
from meshd.gateway.client_connections import (
    ApiServer,
    ConnectionLimits,
    check_framing,
    demand_method,
    listening,
    member_of,
    refused,
)
from meshd.gateway.console import LINKED_PATHS, MESH_PATH, Console, Entrance
from meshd.gateway.dialects.chat import PassedOn
from meshd.gateway.dialects.dialect import RequestFacts
from meshd.gateway.dialects.fields import encoded_in_pieces, text_of
from meshd.gateway.events import CLIENT_GONE
from meshd.gateway.failure import ANSWER_HEADERS, Failure, HttpRefusal, unavailable
from meshd.gateway.interface import (
    ConsoleSource,
    GatewayStatus,
    MemberCaller,
    Models,
    NamedModel,
    Upstream,
)
from meshd.gateway.metrics import OTHER_PATH, PAGE_PATH
from meshd.gateway.own_answers import HEALTH_PATHS, MODEL_PREFIX, OWN_PATHS, OwnAnswers
from meshd.gateway.pages import QUIET_HEADER, Page, load_page, make_quiet
from meshd.gateway.paths import (
    LACKING,
    METRICS_PATH,
    ROUTES,
    SHOW_PATH,
    Route,
    unknown_path,
)
from meshd.gateway.request import (
    Bodies,
    PlainModel,
    UpstreamRequest,
    check_ready,
    find_model,
    parse_object,
    read_form,
    upstream_request,
)
from meshd.gateway.router_answers import ASKED_BY_PAGE, ROUTER_PATHS, RouterAnswers
from meshd.gateway.turns import Accounts, AnswerLog, Turns
from meshd.gateway.upstream import MOST_JOINED_BYTES
from meshd.gateway.work import GatewayWork
from meshd.model.status import ModelState
from meshd.wire.browser import SIGNAL_PATH

if TYPE_CHECKING:
    from meshd.gateway.tracing import Tracing

_ID_BYTES = 12
_READ_AT_ONCE = 32 << 10  # bytes of a body
IDENTITY = "identity"  # the coding that changes nothing
IDLE_CONNECTION_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0  # for clients to take the last event; those that do not read are cut off

_KNOWN_PATHS = frozenset({*ROUTES, *LACKING, *ROUTER_PATHS, *HEALTH_PATHS, *OWN_PATHS})
_STATUSES = frozenset({*map(int, HTTPStatus), CLIENT_GONE})

_log = get("gateway")


class Gateway:
    """The API of one node, and its chat page; implements MemberGate.

    A request passes the guards first. Then it is answered here, or by llama-server.
    """

    def __init__(
        self,
        api: ApiPort,
        models: Models,
        *,
        wall: Callable[[], float],
        log: AnswerLog | None = None,
        tracing: "Tracing | None" = None,
        page: Page | None = None,
        console: ConsoleSource | None = None,
    ) -> None:
        """Take the API's port, which `serve` closes, the models, and the `log` of answers.

        `wall` gives unix seconds, for the log and for daily quotas. `tracing` None: requests have no traces.
        `page` None: the one that is installed. `console`: what the page of the mesh shows, if known already.
        """
        config = api.config
        self._api = api
        self._wall = wall
        self._tracing = tracing
        self._server: ApiServer | None = None
        self.started = asyncio.Event()
        # what answers requests
        self._models = models
        self._answers = AnswerContext(config, on_demand=models.on_demand)
        self.work = GatewayWork(config.api_keys, self._answers.under_way, self._answers.counts)
        self._exposition: Exposition = self._own_metrics
        self._own = OwnAnswers(models)
        self._page = load_page() if page is None else page
        # requests wait for a model that is about to be ready
        self._holds = config.continue_seconds > 0 and not config.fails_over
        # how much a caller may use
        self._connections = ConnectionLimits()
        entrance = Entrance(self._check_key, self._connections.admit_request)
        self.console = Console(api.port, api.keys, entrance, console)
        of_key = Share("", api.keys.share_of(config.max_requests), "key", "")
        self._places = Slots(Share("", config.max_requests, "node", ""), of_key)
        self._accounts = Accounts(config.api_keys, log=log, wall=wall, metrics=self._answers.metrics)
        self.drains = False
        """True before a restart: requests under way end, and no other begins."""
        self._bodies = Bodies(most_each=config.max_body_bytes, most_together=config.max_bodies_bytes)
        self._users: dict[str, dict[bytes, float]] = {}  # when each key used each model on demand
        users = self._users if api.keys else None
        self._router = RouterAnswers(models, self._bodies, self._use_by, users)
        # counts of requests, since the start and by model
        self._requests = 0
        self._uses: Counter[Upstream] = Counter()
        # work on the event loop and in threads, in turns of the callers
        self._small_bodies, self._large_bodies, self._joining = Turns(), Turns(), Turns()

    @property
    def url(self) -> str:
        """Return the base URL for a client on this machine."""
        host, port = self._api.config.host, self._api.port
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return f"http://{host}:{port}"
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def status(self) -> GatewayStatus:
        """Return the API's state now, and counts since the start."""
        return GatewayStatus(
            url=self.url,
            ready=any(model.upstream.readiness.state is ModelState.READY for model in self._models.all),
            requests=self._requests,
            tokens=self._answers.tokens,
            running=self._answers.running,
            waiting=self._answers.waiting,
            keys=self._accounts.status,
            reason=self._models.readiness.reason,
            continue_s=self._answers.continue_seconds,
        )

    @property
    def under_way(self) -> int:
        """Count the requests for models that run or wait."""
        return len(self._places)

    @property
    def key_digests(self) -> Sequence[bytes]:
        """Return the digests of the accepted API keys."""
        return self._api.keys.digests

    async def take(self, connection: socket.socket, member: MemberCaller) -> None:
        """Answer on a member's connection. Raises Broken while the API is starting or stopping."""
        connection.setblocking(False)
        if (server := self._server) is None:
            connection.close()
            raise Broken("the API is starting or stopping")
        await adopt(connection, lambda: server(member))

    async def serve(self) -> None:
        """Answer until cancelled; return when all connections and the port are closed.

        Raises UserError if the log of answers cannot be read.
        """
        try:
            await self._accounts.open()
            await self._run()
        finally:
            self._accounts.close()
            self._api.close()

    async def _run(self) -> None:
        server = ApiServer(self._connections, self._handle, idle=IDLE_CONNECTION_SECONDS)
        try:
            async with listening(server, self._api.sockets, end_seconds=SHUTDOWN_SECONDS):
                self._server = server
                try:
                    await self._work()
                finally:
                    self.started.clear()
                    self._server = None
                    self._answers.end_all("meshd is stopping")
                    self._router.end()
                    self.console.close()
        finally:
            if self._tracing is not None:
                await self._tracing.close()

    async def _work(self) -> None:
        """Run what goes beside the requests, until cancelled."""
        async with Owner() as owner:
            owner.start(self._connections.serve(), name="api connections")
            owner.start(self.console.serve(), name="page of the mesh")
            if self._tracing is not None:
                owner.start(self._tracing.serve(), name="traces")
            _log.info("api_listening", url=self.url)
            self.started.set()

    def requests_of(self, model: str) -> int:
        """Count the requests for a model that are under way."""
        return sum(count for upstream, count in self._uses.items() if upstream.model_name == model)

    @contextmanager
    def _use_of(self, upstream: Upstream) -> Iterator[None]:
        """Count a request to `upstream` until the block is left, and report the count to it."""
        self._uses[upstream] += 1
        upstream.requested(self._uses[upstream])
        try:
            yield
        finally:
            self._uses[upstream] -= 1
            upstream.requested(self._uses[upstream])
            if not self._uses[upstream]:
                del self._uses[upstream]  # another node's API may be one for each request

    @contextmanager
    def _use_by(self, key: bytes, upstream: Upstream) -> Iterator[None]:
        """Hold the place of a request of `key` for `upstream`. Raises HttpRefusal if there is none."""
        with self._place(key), self._accounts.request(key), self._use_of(upstream):
            yield

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all requests, and the queue of each model now."""
        yield from self._answers.metrics.collect()
        running, waiting, names = Counter[str](), Counter[str](), self._answers.metrics.models
        for name, of_model, in_queue in self._answers.queues:
            running[names[name]] += of_model
            waiting[names[name]] += in_queue
        yield gauge("meshd_requests_running", "Requests whose turn has come.", running, "model")
        yield gauge("meshd_requests_waiting", "Requests that wait for their turn.", waiting, "model")

    def shows(self, metrics: Exposition) -> None:
        """Answer `/metrics` with these from now on, instead of the metrics of requests alone."""
        self._exposition = metrics

    async def _own_metrics(self) -> str:
        return exposition(self.collect())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, and count it."""
        metrics, path = self._answers.metrics, self._path_label(request.path)
        record = request[RECORD] = RequestRecord(asyncio.get_running_loop().time())
        status = int(HTTPStatus.INTERNAL_SERVER_ERROR)  # if it ends by a bug
        try:
            response = await self._respond(request)
            status = record.status or response.status
            return response
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        finally:
            seconds = asyncio.get_running_loop().time() - record.began
            metrics.requests.labels(path, _status_label(status)).inc()
            metrics.request_seconds.labels(path).observe(seconds)
            if self._tracing is not None and record.trace is not None:
                self._tracing.end(record.trace, status)

    def _path_label(self, path: str) -> str:
        """Return a path that the API has, as a label of metrics: others would be without number."""
        if path.startswith(MODEL_PREFIX):
            return f"{MODEL_PREFIX}NAME"
        if path in self._page:
            return PAGE_PATH
        if path.startswith(MESH_PATH) and self.console.answers(path):
            return self.console.label(path)
        return path if path in _KNOWN_PATHS else OTHER_PATH

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; write every refusal in its dialect."""
        origin = request.headers.get("Origin")
        # only for an allowed origin: no other page may read an answer, not even a refusal
        foreign = origin is not None and self._api.guard.is_foreign_but_allowed(origin)
        extra = {**ANSWER_HEADERS, **(foreign_headers(origin) if origin and foreign else {})}
        try:
            check_framing(request.headers)
            opens_page = request.path in self._page or request.path in LINKED_PATHS
            if request.path != SIGNAL_PATH:  # a page of anywhere, which proves itself in what it sends
                self._api.guard.check(request.headers, opens_page=opens_page)
            if request.method == "OPTIONS":
                return _preflight(request, extra, allowed=foreign)
            return await self._answer(request, extra)
        except HttpRefusal as refusal:
            response = refused(request, refusal, extra)
            if QUIET_HEADER in request.headers and request.method == "GET":
                request[RECORD].status = response.status
                make_quiet(response)
            return response

    async def _answer(self, request: web.BaseRequest, extra: dict[str, str]) -> web.StreamResponse:
        """Answer without llama-server if possible, else pass the request on. Raises HttpRefusal."""
        method = "GET" if request.method == "HEAD" else request.method
        path = request.path

        # 1. The page and health need no key; the page of the mesh has rules of its own.
        page_file = self._page.get(path)
        if page_file is not None or path in HEALTH_PATHS:
            demand_method(method, "GET")
            if not self._api.keys:
                self._check_key(request)  # lets the connection stay
            if page_file is not None:
                return await page_file.response(request.headers, extra)
            return self._own.health(request.query.get("model", ""), extra)
        if path.startswith(MESH_PATH) and self.console.answers(path):
            return await self.console.answer(request, extra)

        # 2. With a key: what is known of the models here, metrics, or one of the paths that are passed on.
        key = self._check_key(request)
        route = ROUTES.get(path)
        if path in ASKED_BY_PAGE and self._router.answers(request):
            demand_method(method, ROUTER_PATHS.get(path, "GET"))
            if method == "POST":
                _demand_type(request.headers, form=False)
            return await self._router.answer(request, key, extra)
        if path == METRICS_PATH and "model" not in request.query and member_of(request) is None:
            demand_method(method, "GET")
            with self._accounts.request(key) if self._api.keys else nullcontext():
                text = await self._exposition()
            return web.Response(body=text.encode(), headers={**extra, "Content-Type": METRICS_TYPE})
        if route is None and self._own.answers(path):
            demand_method(method, "GET")
            return web.json_response(self._own.about(path), headers=extra)
        if (lacking := LACKING.get(path)) is not None:
            demand_method(method, *lacking)
            async with self._bodies.read(request, key):
                answer = lacking[method]
            return web.json_response(answer, headers=extra) if answer is not None else _nothing(extra)
        if route is None:
            raise HttpRefusal(Failure(404, unknown_path(path), code="unknown_path"))
        demand_method(method, route.method)
        if method == "POST":
            _demand_type(request.headers, form=route.is_form)
        if path == SHOW_PATH:
            async with self._bodies.read(request, key) as body:
                return self._own.show(parse_object(body), extra)
        return await self._pass_on(request, path, route, extra, key)

    def _check_key(self, request: web.BaseRequest) -> bytes:
        """Return the key's digest; empty if no key is required. Raises HttpRefusal."""
        member = member_of(request)
        key = self._api.keys.match(request.headers) if member is None else member.key
        if key is None:
            given = "Authorization" in request.headers or "x-api-key" in request.headers
            wrong = "this is not a key of this API: send" if given else "this API needs a key: send"
            message = f"{wrong} `Authorization: Bearer KEY`"
            raise HttpRefusal(Failure(401, message, type="authentication_error", code="invalid_api_key"))
        self._connections.admit_request(request, key)
        return key

    async def _pass_on(
        self, request: web.BaseRequest, path: str, route: Route, extra: dict[str, str], key: bytes
    ) -> web.StreamResponse:
        """Have a model answer, within the limits of the node and of the key. Raises HttpRefusal."""
        if not self._models.on_demand and not (route.computes and self._holds):
            check_ready(self._models.readiness)  # models on demand say it themselves
        with ExitStack() as held:
            # 1. Take a place among the requests under way; the model is told how many are for it.
            held.enter_context(self._place(key))
            if (only := self._models.only) is not None:
                held.enter_context(self._use_of(only.upstream))

            # 2. What a llama-server tells of itself needs no body, and nothing is loaded for it.
            if route.method == "GET":
                model = find_model(self._models, request.query.get("model"), given_keys(request.headers))
                self._requests += 1
                asked = UpstreamRequest(path, None, False, PassedOn(), query=_query_of(model.upstream))
                at_once = PlainModel(model.upstream)
                return await Answer(self._answers, request, asked, route, at_once, headers=extra).run()

            # 3. Begin a request of the key, unless its quota is used up.
            if route.computes:
                held.enter_context(self._accounts.request(key))
                if self._tracing is not None:
                    record = request[RECORD]
                    record.trace = self._tracing.begin(request.method, path, request.headers, record.began)

            # 4. Read and translate the body, and find its model; the body's memory counts until the end.
            async with self._bodies.read(request, key) as body:
                asked, model = await self._read(request, path, route, body, key)
                del body
                if route.computes:
                    self._accounts.add_answers(key, asked.answers)
                    self._answers.counts.add_request(asyncio.get_running_loop().time())
                if only is None or only.upstream is not model.upstream:  # the models came meanwhile
                    held.enter_context(self._use_of(model.upstream))
                if route.computes and self._models.on_demand and (name := model.upstream.model_name):
                    self._users.setdefault(name, {})[key] = asyncio.get_running_loop().time()
                if not self._models.on_demand and not (self._holds and route.computes):
                    check_ready(model.upstream.readiness)  # a slow body may have outlived the model
                self._requests += 1

                # 5. Answer it; what takes a slot of llama-server waits for its turn.
                answer = Answer(self._answers, request, asked, route, model, headers=extra, caller=key)
                if not route.computes:
                    return await answer.run()
                if answer.served is None:  # who answers has a queue
                    with self._accounts.counted_answer(key, model.upstream.model_name, path, answer.meter):
                        return await answer.run()
                turns = answer.served.turns
                if asked.parts is not None:
                    return await self._answer_parts(answer, asked.parts, turns, key)
                return await self._answer_in_turn(answer, turns, key)

    @contextmanager
    def _place(self, key: bytes) -> Iterator[None]:
        """Hold a place among the requests under way. Raises HttpRefusal if there is none."""
        if self.drains:
            raise unavailable("this node is about to restart", "stopping", 5)
        release = self._places.take(key)
        if release is None:
            raise unavailable(f"{len(self._places)} requests are already in progress")
        try:
            yield
        finally:
            release()

    async def _read(
        self, request: web.BaseRequest, path: str, route: Route, body: bytes, key: bytes
    ) -> tuple[UpstreamRequest, NamedModel]:
        """Return the request in llama-server's form, and its model. Raises HttpRefusal."""
        keys = given_keys(request.headers)
        if route.is_form:
            asked, named = read_form(path, body, request.headers["Content-Type"])
            return asked, find_model(self._models, named, keys)
        # a large one may take a second: links and answers continue meanwhile, and no small one waits for it
        is_large = len(body) > _READ_AT_ONCE
        turns = self._large_bodies if is_large else self._small_bodies
        async with turns.turn(key or request.remote):
            await asyncio.sleep(0)  # however many bodies are there: the loop goes on between two
            fields = await in_thread(partial(parse_object, body)) if is_large else parse_object(body)
            model = find_model(self._models, fields.get("model"), keys)
            name = model.upstream.model_name or text_of(fields, "model")
            facts = RequestFacts(secrets.token_hex(_ID_BYTES), int(self._wall()), name)

            def judge() -> UpstreamRequest:
                return upstream_request(route.dialect.read(fields, facts))

            return (await in_thread(judge) if is_large else judge()), model

    async def _answer_in_turn(self, answer: Answer, turns: Turns, key: bytes) -> web.StreamResponse:
        """Run `answer` when its turn has come; account for it, also if it fails."""
        path, meter = answer.request.path, answer.meter
        with (
            turns.enter(key) as turn,
            self._accounts.counted_answer(key, answer.upstream.model_name, path, meter, turn),
        ):
            response = await answer.run(turn)
            meter.status = meter.status or response.status
            return response

    async def _answer_parts(
        self, answer: Answer, parts: Parts, turns: Turns, key: bytes
    ) -> web.StreamResponse:
        """Answer each part in its own turn, and join the answers. Raises HttpRefusal.

        As many parts run at a time as there are slots; a part that is a group fills them all.
        """
        bodies, ended = [b""] * len(parts), list[web.StreamResponse | HttpRefusal]()
        numbers = iter(range(len(parts)))  # shared: each task takes the next part

        async def some() -> None:
            for number in numbers:
                try:
                    self._accounts.check_tokens(key)
                    response = await self._answer_in_turn(answer.part(number), turns, key)
                    body = response.body if isinstance(response, web.Response) else None
                    if response.status != 200 or not isinstance(body, bytes | bytearray):
                        ended.append(response)
                        break
                    bodies[number] = bytes(body)
                    if sum(map(len, bodies)) > MOST_JOINED_BYTES:
                        message = f"the answers together have more than {MOST_JOINED_BYTES >> 20} MiB"
                        raise HttpRefusal(Failure(413, f"{message}: ask for fewer", code="answers_too_large"))
                except HttpRefusal as refusal:
                    ended.append(refusal)
                    break
            if ended:
                owner.cancel()  # nobody needs the others

        # run the tasks until all parts are answered, or one has failed
        at_once = 1 if parts.is_grouped else answer.upstream.slots or 1
        async with Owner() as owner:
            for _ in range(min(len(parts), at_once)):
                owner.start(some(), name="answers of a request")
        for end in ended:
            if isinstance(end, HttpRefusal):
                raise end
            return end
        # thousands of embeddings take seconds: links and answers continue meanwhile
        async with self._joining.turn(key or answer.request.remote):
            joined = await in_thread(partial(_joined, answer, parts, bodies))
        return web.Response(body=joined, headers={"Content-Type": JSON_TYPE, **answer.headers})


def _status_label(status: int) -> str:
    """Return a status code as a label of metrics; another node may answer with any number."""
    return str(status) if status in _STATUSES else "other"


def _joined(answer: Answer, parts: Parts, bodies: Sequence[bytes]) -> bytes:
    """Join the answers to the parts, and translate the result for the client. Raises HttpRefusal."""
    try:
        whole = joined_answer(parts, bodies)
    except PartsError as error:
        raise HttpRefusal(Failure(502, f"llama-server: {error}", code="upstream_error")) from error
    return encoded_in_pieces(answer.translated(whole))


def _query_of(upstream: Upstream) -> str:
    """Return the query that names a model to another node, which may have several."""
    is_elsewhere = upstream.slots is None and upstream.model_name
    return f"?model={quote(upstream.model_name, safe='')}" if is_elsewhere else ""


def _nothing(extra: Mapping[str, str]) -> web.Response:
    return web.Response(status=204, headers=extra)


def _demand_type(headers: Mapping[str, str], *, form: bool) -> None:
    """Refuse a body of a type that the path does not take, or a compressed one. Raises HttpRefusal."""
    coding = headers.get("Content-Encoding", IDENTITY)
    if coding.strip().lower() != IDENTITY:
        message = f"the body must not be compressed (`{coding[:50]}`): leave `Content-Encoding` out"
        raise HttpRefusal(Failure(415, message, code="unsupported_encoding"))
    if not (is_form(headers.get("Content-Type")) if form else may_be_json(headers)):
        wanted, kind = ("a form", FORM_TYPE) if form else ("JSON", JSON_TYPE)
        message = f"the body must be {wanted}: send `Content-Type: {kind}`"
        raise HttpRefusal(Failure(415, message, code="unsupported_media_type"))


def _preflight(request: web.BaseRequest, extra: Mapping[str, str], *, allowed: bool) -> web.Response:
    if not allowed:
        message = "this origin is not allowed to call the API"
        raise HttpRefusal(Failure(403, message, type="permission_error", code="cors_denied"))
    headers = preflight_headers(
        request.headers["Origin"],
        asked=request.headers.get("Access-Control-Request-Headers"),
        private_network=request.headers.get("Access-Control-Request-Private-Network") == "true",
    )
    return web.Response(status=204, headers={**extra, **headers})
