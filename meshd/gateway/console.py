"""The page of the mesh, its state and its actions: every path at `/mesh`.

The files of the page hold nothing secret. State and actions need a session: the cookie of a browser that
opened a link of `meshd ui` (sessions.py). Any program on this machine can reach the port, and any web page
can make a browser send requests here. So

- an action is a POST of JSON with our own Origin, which no page of another site or port can send;
- a session begun on loopback is for the user whose program opened the link, where the system tells (Linux):
  a browser sends cookies to every port of a host (RFC 6265, 8.5), so another user's program may get one;
- a request from another machine, or to another name than loopback's, needs an API key as well; a member's
  needs none, as the mesh knows who it is.

All browsers see one state, which is made while there are any. A browser that reads slowly skips states.
"""

import asyncio
import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from aiohttp import web

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.fault_boundary import Fault, contained, ended
from meshd.base.hosts import is_loopback
from meshd.base.socket_owners import ConnectionOwners
from meshd.base.tasks import Owner, boot_seconds, in_thread
from meshd.gateway.access import JSON_TYPE, KeyRing, parse_authority, same_origin
from meshd.gateway.browser_socket import BrowserSocket
from meshd.gateway.client_connections import demand_method, member_of
from meshd.gateway.failure import Failure, HttpRefusal, unavailable
from meshd.gateway.interface import ConsoleSource
from meshd.gateway.pages import MESH_POLICY, Page, mesh_page
from meshd.gateway.paths import unknown_path
from meshd.gateway.request import Bodies, parse_object
from meshd.gateway.sessions import (
    SECRET_BYTES,
    LinkState,
    Session,
    Sessions,
    cookie_name,
    cookie_values,
    drop_cookie,
    is_secret,
    set_cookie,
)
from meshd.link.interface import LetIn, WelcomeBrowser
from meshd.wire.browser import SIGNAL_PATH

MESH_PATH = "/mesh"
OPEN_PATH = "/mesh/open"
# Any site may link to these: the file that `meshd ui` has a browser open is of another site than ours.
LINKED_PATHS = frozenset({MESH_PATH, OPEN_PATH})
STATE_PATH = "/mesh/state"
END_PATH = "/mesh/end"
DO_PREFIX = "/mesh/do/"
# Actions that need a session which has just begun, and why.
FRESH_ACTIONS: Mapping[str, str] = {
    **dict.fromkeys(("revoke", "invite_revoke", "forget", "model_remove"), "cannot be undone"),
    "expose": "opens a service to other nodes",  # what they did with it cannot be undone either
}
MOST_BODY_BYTES = 64 << 10
_MOST_BODIES_BYTES = 1 << 20
MOST_STREAMS = 16
MOST_ACTIONS = 16  # under way
COMMENT_SECONDS = 15.0  # of silence, after which a stream gets a comment
_AGAIN_SECONDS = 1.0  # after the source of states failed
_ACTION = re.compile(r"[a-z][a-z_]{0,39}")
_REFUSED_PLACE = f"{MESH_PATH}#refused"
_NO_PAGE = "This build has no page of the mesh. Run `make chat` in the source, or install meshd's wheel.\n"
_PRIVATE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
# What pages far away see of the status, by field: all of it, or named fields of it. All else is blank there.
_WHOLE: frozenset[str] = frozenset()
_SEEN_BY_MEMBERS: Mapping[str, frozenset[str]] = {
    "node": frozenset({"id", "name", "role", "version", "uptime_s", "rss_bytes", "listen", "paused"}),
    "api": frozenset({"url", "ready", "requests", "tokens", "running", "waiting", "reason", "continue_s"}),
    "store": frozenset({"bytes", "limit", "tensors", "problem"}),
    "storage": frozenset({"free_bytes", "cache_room_bytes", "models", "models_bytes"}),
    **dict.fromkeys(("mesh", "peers", "model", "models", "mdns", "warnings"), _WHOLE),
    **dict.fromkeys(("devices", "lent", "fetching", "schema"), _WHOLE),
}
_FAILED = "meshd failed at this request: its log says where (`meshd logs`)"
_SOURCE = "page of the mesh"  # in the log
LOG = log.get("gateway")

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Entrance:
    """The checks of a port. `check_key` returns the digest of a request's API key; `admit` lets a connection
    stay that has shown who it is. Both raise HttpRefusal.
    """

    check_key: Callable[[web.BaseRequest], bytes]
    admit: Callable[[web.BaseRequest, bytes], None]


@dataclass(frozen=True, slots=True)
class ConsoleLink:
    """A link that opens the page once. `path` has the secret; `name` is for questions about the link."""

    path: str
    name: str


class ConsoleRefusal(HttpRefusal):
    """A refusal with a hint for the user."""

    def __init__(self, status: int, message: str, code: str, hint: str = "") -> None:
        super().__init__(Failure(status, message, code=code))
        self.hint = hint


class Console:
    """The page of the mesh of one node, at one port."""

    def __init__(
        self,
        port: int,
        keys: KeyRing,
        entrance: Entrance,
        source: ConsoleSource | None = None,
        *,
        page: Page | None = None,
    ) -> None:
        """`keys`: the API's; `source`: see `shows`; `page` None: the one that is installed."""
        self._cookie = cookie_name(port)
        self._keys = keys
        self._entrance = entrance
        self._page = page
        self._clock: Callable[[], float] = boot_seconds  # a link does not outlive a suspend
        self._source = source
        # browsers on data channels
        self._welcome: WelcomeBrowser | None = None
        self._visits = Owner()
        # who may use it
        self._sessions = Sessions()
        self._owners = ConnectionOwners()
        self._users: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()  # by connection
        self._used = self._clock()
        # the state, and who watches it
        self._streams = Counter[bool]()  # by whether they go over data channels
        self._watched, self._unwatched = asyncio.Event(), asyncio.Event()
        self._latest: Mapping[str, object] = {}
        self._events_of: dict[bool, bytes] = {}  # of that state, by whether it goes over data channels
        self._changed = asyncio.Event()
        self._closed = False
        # actions
        self._bodies = Bodies(most_each=MOST_BODY_BYTES, most_together=_MOST_BODIES_BYTES)
        self._actions = 0

    def welcomes(self, welcome: WelcomeBrowser) -> None:
        """Let `welcome` have the browsers that come to SIGNAL_PATH, from now on."""
        self._welcome = welcome

    def shows(self, source: ConsoleSource) -> None:
        """Show and do what `source` says, from now on."""
        self._source = source

    def link(self) -> ConsoleLink:
        """Make a link that opens the page once, within a minute."""
        self._used = self._clock()
        secret = secrets.token_urlsafe(SECRET_BYTES)
        name = self._sessions.add_link(secret, self._clock())
        return ConsoleLink(f"{OPEN_PATH}?once={secret}", name)

    def link_state(self, name: str) -> LinkState:
        """Return what became of a link."""
        return self._sessions.link_state(name, self._clock())

    @property
    def unused_seconds(self) -> float:
        """Return for how long no session has been used, and no link made."""
        return 0.0 if self._streams.total() else self._clock() - self._used

    @staticmethod
    def answers(path: str) -> bool:
        """Return True if `path` is the page's, or below it."""
        return path == MESH_PATH or path.startswith(f"{MESH_PATH}/")

    @staticmethod
    def label(path: str) -> str:
        """Return the label of metrics for one of our paths."""
        if path.startswith(DO_PREFIX):
            return f"{DO_PREFIX}NAME"
        return path if path == STATE_PATH else MESH_PATH

    async def serve(self) -> None:
        """Have states made while browsers watch, and keep browsers on data channels, until cancelled."""
        async with self._visits:
            while True:
                await self._watched.wait()
                async with Owner() as owner:
                    owner.start(self._follow(), name="state of the page")
                    await self._unwatched.wait()
                    owner.cancel()
                self._events_of.clear()

    def close(self) -> None:
        """End the streams of states."""
        self._closed = True
        self._changed.set()

    async def answer(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        """Answer a request to one of our paths; `extra`: headers of every answer."""
        private = {**extra, **_PRIVATE}
        try:
            if request.path == STATE_PATH:
                return await self._stream(request, private)
            if request.path.startswith(DO_PREFIX):
                return await self._do(request, private)
            if request.path == OPEN_PATH:
                return await self._open(request, private)
            if request.path == END_PATH:
                return await self._end(request, private)
            if request.path == SIGNAL_PATH:
                return await self._browse(request)
            return await self._file(request, extra)
        except HttpRefusal as refusal:
            response = _refusal(refusal, private)
            if not request.content.is_eof():
                response.force_close()  # the client need not send the rest of its body
            return response

    # --- the page and its link --------------------------------------------------------------------------

    async def _file(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        demand_method(request.method, "GET", "HEAD")
        if not self._keys:
            self._entrance.check_key(request)  # lets the connection stay
        if self._page is None:
            self._page = await in_thread(mesh_page)
        if self._page is not None and (file := self._page.get(request.path)) is not None:
            return await file.response(request.headers, dict(extra))
        if request.path == f"{MESH_PATH}/":
            return web.Response(status=308, headers={**extra, "Location": MESH_PATH})
        if request.path == MESH_PATH:
            return web.Response(
                status=404, text=_NO_PAGE, headers={**extra, "Content-Security-Policy": MESH_POLICY}
            )
        raise HttpRefusal(Failure(404, unknown_path(request.path), code="unknown_path"))

    async def _open(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        """Spend a link, and begin a session. A GET, as a browser can open nothing else from outside."""
        demand_method(request.method, "GET")
        if "prefetch" in request.headers.get("Sec-Purpose", "").lower():  # nobody has opened it yet
            raise unavailable("a link is opened, not fetched before")
        secret = request.query.get("once", "")
        if not (is_secret(secret) and self._sessions.spend(secret, self._clock())):
            return web.Response(status=303, headers={**extra, "Location": _REFUSED_PLACE})
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions.begin(cookie, self._clock(), await self._user_of(request))
        self._used = self._clock()
        LOG.info("page_opened", remote=request.remote or "a member")
        headers = {**extra, "Location": MESH_PATH, "Set-Cookie": set_cookie(self._cookie, cookie)}
        return web.Response(status=303, headers=headers)

    async def _end(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        """End a session in all windows of its browser, which drops the cookie. Raises HttpRefusal."""
        demand_method(request.method, "POST")
        _demand_own_page(request, acts=True)
        session = await self._session_of(request)
        self._sessions.end(session)
        self._wake()
        LOG.info("page_session_ended", remote=request.remote or "a member")
        return web.Response(status=204, headers={**extra, "Set-Cookie": drop_cookie(self._cookie)})

    async def _browse(self, request: web.BaseRequest) -> web.StreamResponse:
        """Pass a browser's sealed bytes to and fro, until it has gone."""
        if self._welcome is None or request.headers.get("Upgrade", "").lower() != "websocket":
            raise HttpRefusal(Failure(404, unknown_path(request.path), code="unknown_path"))

        def let_in(key: bytes) -> None:
            self._entrance.admit(request, hashlib.sha256(key).digest())

        socket, place = BrowserSocket(), request.remote or "a member"
        await socket.open(request)
        # the request is cancelled when its browser hangs up, which may go on over WebRTC
        visit = _visit(self._welcome, socket, place, let_in)
        await asyncio.wait([self._visits.start_for(place, visit, name="browser")])
        return socket.response

    # --- who asks ---------------------------------------------------------------------------------------

    async def _session_of(self, request: web.BaseRequest) -> Session:
        """Return the session of a request, and let its connection stay. Raises HttpRefusal."""
        values = cookie_values(request.headers.getall("Cookie", []), self._cookie)
        session = self._sessions.find(values, self._clock())
        if session is None or not await self._is_of_its_user(session, request):
            message = "this browser has no session, or its session has ended"
            raise ConsoleRefusal(401, message, "session", "run `meshd ui` on the node's machine")
        if _is_elsewhere(request):
            if not self._keys and member_of(request) is None:
                message = "from elsewhere, the page needs an API key, and this node has none"
                hint = "start the node with `--api-key-file FILE`"
                raise ConsoleRefusal(401, message, "invalid_api_key", hint)
            self._entrance.check_key(request)
        else:
            self._entrance.admit(request, session.digest)
        self._used = self._clock()
        return session

    async def _is_of_its_user(self, session: Session, request: web.BaseRequest) -> bool:
        # One that began elsewhere, or whose user the system did not tell, is for no user's programs here.
        return await self._user_of(request) in (session.uid, 0)

    async def _user_of(self, request: web.BaseRequest) -> int | None:
        """Return the user whose program made the connection; None: unknown, or it comes from elsewhere."""
        connection, transport = request.protocol, request.transport
        if transport is None or member_of(request) is not None:
            return None
        ends = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        client, server = (tuple(end[:2]) if isinstance(end, tuple) else ("", 0) for end in ends)
        if not is_loopback(str(client[0])):
            return None
        if connection not in self._users:
            self._users[connection] = await self._owners.user_of(
                (str(client[0]), int(client[1])), (str(server[0]), int(server[1]))
            )
        return self._users[connection]

    # --- state ------------------------------------------------------------------------------------------

    async def _stream(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        """Send each state as an event, until the client or the session ends."""
        demand_method(request.method, "GET")
        _demand_own_page(request)
        session = await self._session_of(request)
        headers = {**extra, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        events = self._events(lambda: self._sessions.is_open(session, self._clock()))
        with suppress(ConnectionError), self._watching():  # the client has gone
            await response.prepare(request)
            async with aclosing(events):
                async for event in events:
                    await response.write(event)  # waits until the client has read most of the earlier ones
        return response

    async def states(self) -> AsyncGenerator[bytes, None]:
        """Yield events for a browser on a data channel. Raises HttpRefusal if too many watch already."""
        with self._watching(far=True):
            async with aclosing(self._events(lambda: True, far=True)) as events:
                async for event in events:
                    yield event

    @contextmanager
    def _watching(self, *, far: bool = False) -> Iterator[None]:
        """Count a stream until the block is left; all share one watch. Raises HttpRefusal without room.

        `far`: it goes over a data channel. Those have as many places of their own: no browser far away keeps
        the node's user from the page.
        """
        if self._source is None or self._closed:
            raise unavailable("this node is starting or stopping")
        if self._streams[far] >= MOST_STREAMS:
            raise unavailable(f"{MOST_STREAMS} windows show this page already: close one")
        self._streams[far] += 1
        self._unwatched.clear()
        self._watched.set()
        try:
            yield
        finally:
            self._streams[far] -= 1
            self._used = self._clock()
            if not self._streams.total():
                self._watched.clear()
                self._unwatched.set()

    async def _events(
        self, may_go_on: Callable[[], bool], *, far: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the newest state each time it has changed, and comments in a silence."""
        sent = b""
        while not self._closed and may_go_on():
            changed = self._changed
            if self._events_of and (event := self._event(far=far)) is not sent:
                sent = event
                yield sent
                continue
            try:
                async with asyncio.timeout(COMMENT_SECONDS):
                    await changed.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def _event(self, *, far: bool) -> bytes:
        """Return the latest state, which there must be, as an event; the same object for all."""
        if far not in self._events_of:
            self._events_of[far] = _as_event(for_members(self._latest) if far else self._latest)
        return self._events_of[far]

    def _wake(self) -> None:
        """Have each stream look at the state and its session again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _follow(self) -> None:
        while True:
            await ended(self._take_states(), source=_SOURCE, name="state")
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _take_states(self) -> None:
        assert self._source is not None
        states = self._source.watch()
        try:
            async for state in states:
                event = _as_event(state)
                self._latest, self._events_of = state, {False: event}
                self._wake()
        finally:
            if isinstance(states, AsyncGenerator):  # it is told now that nobody watches
                await states.aclose()

    # --- actions ----------------------------------------------------------------------------------------

    async def _do(self, request: web.BaseRequest, extra: Headers) -> web.StreamResponse:
        """Do what the page asks for, and report the result. Raises HttpRefusal."""
        # 1. Who asks, and whether it is our own page.
        demand_method(request.method, "POST")
        _demand_own_page(request, acts=True)
        session = await self._session_of(request)

        # 2. What is asked for.
        name = request.path.removeprefix(DO_PREFIX)
        if not _ACTION.fullmatch(name):
            raise HttpRefusal(Failure(404, unknown_path(request.path), code="unknown_path"))
        if name in FRESH_ACTIONS and not session.is_fresh(self._clock()):
            message = f"this {FRESH_ACTIONS[name]}, so it needs a session that began in the last 10 minutes"
            raise ConsoleRefusal(403, message, "fresh_link", "run `meshd ui` again")
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON_TYPE:
            message = f"the body must be JSON: send `Content-Type: {JSON_TYPE}`"
            raise HttpRefusal(Failure(415, message, code="unsupported_media_type"))

        # 3. Do it, within limits.
        if self._source is None:
            raise unavailable("this node is starting or stopping")
        if self._actions >= MOST_ACTIONS:
            raise unavailable(f"{MOST_ACTIONS} actions are under way already")
        self._actions += 1
        try:
            async with self._bodies.read(request, session.digest) as body:
                fields = parse_object(body)
            result = await contained(self._source.act(name, fields), source=_SOURCE, name=name)
        except Fault as fault:  # it is in the log
            raise ConsoleRefusal(500, _FAILED, "internal_error") from fault
        except HttpRefusal:
            raise
        except MeshdError as error:
            raise ConsoleRefusal(_status(error), error.what, _code(error), error.hint) from error
        finally:
            self._actions -= 1
        return web.Response(body=_encoded({"result": result}), content_type=JSON_TYPE, headers=extra)


async def _visit(welcome: WelcomeBrowser, socket: BrowserSocket, place: str, let_in: LetIn) -> None:
    await welcome(socket, place, let_in)


def for_members(state: Mapping[str, object]) -> Mapping[str, object]:
    """Return a state without what only the node's user may know: the log's words, API keys by name, folders,
    processes, tunnels, and any field of the status of which nothing is said here.
    """
    status = {
        field: _seen(part, _SEEN_BY_MEMBERS.get(field))
        for field, part in _mapping(state.get("status")).items()
    }
    shown = {**state, **({"status": status} if status else {})}
    if isinstance(requests := shown.get("requests"), list):
        shown["requests"] = [{**_mapping(request), "key": ""} for request in requests]
    return {**shown, **({"events": []} if "events" in shown else {})}


def _seen(part: object, fields: frozenset[str] | None) -> object:
    """Return a field of the status as members see it. `fields`: its parts that they see; None: none."""
    if fields == _WHOLE:
        return part
    if fields is None or not isinstance(part, Mapping):
        return _blank(part)
    return {name: value if name in fields else _blank(value) for name, value in part.items()}


def _blank(value: object) -> object:
    """Return the value of its kind that says nothing."""
    if isinstance(value, str):
        return ""
    if isinstance(value, bool | int | float):
        return type(value)()
    return [] if isinstance(value, list | tuple) else None


def _as_event(state: Mapping[str, object]) -> bytes:
    return b"event: state\ndata: " + _encoded(state) + b"\n\n"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _encoded(value: object) -> bytes:
    """Return JSON in ASCII, without line ends."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _refusal(refusal: HttpRefusal, extra: Headers) -> web.Response:
    failure = refusal.failure
    error = {"message": failure.message, "hint": refusal.hint, "code": failure.code}
    headers = {**failure.headers(), **extra}
    return web.json_response({"error": error}, status=failure.status, headers=headers)


def _status(error: MeshdError) -> int:
    if isinstance(error, UserError | RemoteProtocolError):
        return 400
    return 409 if isinstance(error, Refused) else 500


def _code(error: MeshdError) -> str:
    """Return the code of an error as on the control socket."""
    if isinstance(error, Refused | RemoteProtocolError):
        return error.code
    return "user" if isinstance(error, UserError) else "failed"


def _demand_own_page(request: web.BaseRequest, *, acts: bool = False) -> None:
    """Refuse requests of any other page, also of those that may call the API. Raises HttpRefusal.

    Browsers send Origin with each POST (WHATWG Fetch 3.2), so an action must have one.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "same-origin")
    is_ours = same_origin(origin, request.headers["Host"]) if origin is not None else not acts
    if not is_ours or site.strip().lower() != "same-origin":
        message = "only the page of the mesh itself may ask for this"
        raise HttpRefusal(Failure(403, message, type="permission_error", code="origin_not_allowed"))


def _is_elsewhere(request: web.BaseRequest) -> bool:
    """Return True if a request comes from another machine, perhaps through a proxy that keeps its Host."""
    if member_of(request) is not None or not is_loopback(request.remote or ""):
        return True
    host = parse_authority(request.headers["Host"])
    return host is None or not is_loopback(host.host)
