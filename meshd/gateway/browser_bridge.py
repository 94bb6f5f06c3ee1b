"""The API for pages in browsers far away: requests over data channels become connections to the gateway.

A page calls the API as a member of the mesh does, with the paths of the chat alone, and may see the state of
the mesh. It can change nothing: an action needs a session of `meshd ui`, which a page elsewhere cannot have.

An answer outlives its channel (browser_requests.py): it waits for the page's next one while its buffer has
room, and is cancelled when the page stays away.
"""

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from meshd.base.errors import Broken, Closed, MeshdError, RemoteProtocolError
from meshd.base.log import get
from meshd.base.peer_limits import (
    BROWSER_SILENT_SECONDS,
    BROWSER_STATES,
    BROWSER_TABS,
    BROWSERS_ANSWERED,
)
from meshd.base.tasks import Owner
from meshd.gateway.access import JSON_TYPE, given_keys
from meshd.gateway.browser_frames import (
    ChannelRefused,
    HeadReader,
    Hello,
    RequestHead,
    answer_head,
    decode_from_browser,
    encode,
)
from meshd.gateway.browser_requests import Arrived, Begun, BrowserShare, PageRequests, RequestEvent
from meshd.gateway.failure import HttpRefusal, unavailable
from meshd.gateway.interface import MemberCaller, MemberGate
from meshd.gateway.paths import PROPS_PATH, ROUTES
from meshd.gateway.upstream import open_session
from meshd.link.interface import BrowserChannel

HELLO_SECONDS = 10.0
STATE_PATH = "/mesh/state"
DO_PREFIX = "/mesh/do/"
_API_PREFIX = "/v1/"
_ASKED = {path: route.method for path, route in ROUTES.items() if path.startswith(_API_PREFIX)} | {
    **dict.fromkeys(("/health", "/v1/health", "/v1/models", PROPS_PATH), "GET")
}
_MODEL_PREFIX = "/v1/models/"
_PASSED_ON = frozenset({"content-type", "accept", "authorization", "x-api-key"})  # headers of a request
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"})
_NOT_OURS = ("User-Agent", "Accept-Encoding", "Accept", "Content-Type")  # what aiohttp would make up
_log = get("gateway")

States = Callable[[], AsyncGenerator[bytes, None]]
"""Returns a stream of events, each a state of the mesh; its start raises HttpRefusal if there is no room."""


class BrowserApi:
    """The pages of all browsers. `serve` runs what they ask for; `serve_browser` serves one channel."""

    def __init__(self, gate: MemberGate, states: States | None) -> None:
        """`states` None: this node shows no state of the mesh."""
        self._gate = gate
        self._states = states
        self._browsers: dict[bytes, _Browser] = {}
        self._moved = asyncio.Event()  # a page has lost its channel
        self._owner = Owner()

    async def serve(self) -> None:
        """Answer requests, and forget pages that stay away, until cancelled."""
        async with self._owner:
            while True:
                self._moved.clear()
                due = self._forget_late()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._moved.wait()

    async def serve_browser(self, channel: BrowserChannel) -> None:
        """Serve one channel until it ends, or another one of the same page takes its place."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = decode_from_browser(await channel.receive())
            if not isinstance(hello, Hello):
                raise RemoteProtocolError("browser: it did not say hello", code="browser")
            page = self._page(channel.peer_key, hello.session)
            await page.carry(channel, hello)
        except (RemoteProtocolError, _NoRoom) as error:
            with suppress(MeshdError):
                await channel.send(encode(ChannelRefused(error.what)))
        except (Broken, Closed, TimeoutError):
            pass  # the page comes back, or it is forgotten
        finally:
            self._moved.set()
            await channel.close()

    def _page(self, key: bytes, session: bytes) -> "_Page":
        """Return the page with this session, a new one if it is not known. Raises _NoRoom."""
        browser = self._browsers.get(key)
        if browser is None:
            if len(self._browsers) >= BROWSERS_ANSWERED.most:
                raise _NoRoom("this node serves as many browsers as it may: try later")
            browser = self._browsers[key] = _Browser()
        if (page := browser.pages.get(session)) is None:
            if len(browser.pages) >= BROWSER_TABS.most:
                self._drop(browser, _longest_away(browser.pages))
            page = browser.pages[session] = _Page(self, browser, key)
        return page

    def _forget_late(self) -> float | None:
        """Forget pages whose time has come; return when the next one's comes."""
        now, due = _now(), list[float]()
        for key, browser in tuple(self._browsers.items()):
            for session, page in tuple(browser.pages.items()):
                if (expires := page.requests.expires) is not None and expires <= now:
                    self._drop(browser, session)
                elif expires is not None:
                    due.append(expires)
            if not browser.pages:
                del self._browsers[key]
        return min(due, default=None)

    def forget(self, key: bytes) -> None:
        """Cancel what a browser has asked for: it is banned, and its channels end."""
        if (browser := self._browsers.get(key)) is not None:
            for session in tuple(browser.pages):
                self._drop(browser, session)
            self._moved.set()

    @staticmethod
    def _drop(browser: "_Browser", session: bytes) -> None:
        page = browser.pages.pop(session)
        page.end_channel()
        page.take(page.requests.close())

    def start(self, page: "_Page", number: int) -> None:
        """Start to answer a request."""
        answer = page.answers[number] = _Answer(page, number)
        work = self._answer(answer)
        answer.task = self._owner.start_for("browser", work, name="request of a browser")

    async def _answer(self, answer: "_Answer") -> None:
        try:
            head = await answer.read_head()
            path = head.path.partition("?")[0]
            if path == STATE_PATH and self._states is not None and head.method == "GET":
                await self._show(answer, self._states)
            elif (refused := _refusal(head.method, path)) is not None:
                await answer.give(refused[0], [("Content-Type", JSON_TYPE)], refused[1])
            else:
                await self._ask(answer, head)
        except (aiohttp.ClientError, OSError, MeshdError) as error:
            answer.page.requests.fail(answer.number, f"the answer ended early: {_why(error)}")
        except BaseException:
            answer.page.requests.fail(answer.number, "meshd failed at this request, or is stopping")
            raise
        finally:
            answer.page.answers.pop(answer.number, None)
            answer.page.wake()

    async def _ask(self, answer: "_Answer", head: RequestHead) -> None:
        """Have the gateway answer, over a connection as a member's."""
        headers = CIMultiDict((name, value) for name, value in head.headers if name.lower() in _PASSED_ON)
        caller = MemberCaller(self._caller_key(answer.page.key, headers))

        async def connect() -> socket.socket:
            ours, theirs = socket.socketpair()
            try:
                await self._gate.take(theirs, caller)
            except BaseException:
                ours.close()
                raise
            ours.setblocking(False)
            return ours

        body = answer.body() if head.method == "POST" else None
        headers["Accept-Encoding"] = "identity"
        url = URL(f"http://localhost{head.path}", encoded=True)
        async with (
            open_session(connect) as session,
            session.request(
                head.method,
                url,
                data=body,
                headers=headers,
                skip_auto_headers=_NOT_OURS,
                allow_redirects=False,
            ) as got,
        ):
            kept = [(name, value) for name, value in got.headers.items() if name.lower() not in _HOP_BY_HOP]
            await answer.begin(got.status, kept)
            async for data in got.content.iter_any():
                await answer.write(data)
            answer.end()

    def _caller_key(self, browser: bytes, headers: CIMultiDict[str]) -> bytes | None:
        """Return whose share of the API a request uses; None: a key is required, and it has shown none."""
        digests = self._gate.key_digests
        if not digests:
            return hashlib.sha256(browser).digest()
        given = given_keys(headers)
        return next((digest for digest in digests for own in given if hmac.compare_digest(digest, own)), None)

    async def _show(self, answer: "_Answer", states: States) -> None:
        """Send each state of the mesh as an event."""
        try:
            with answer.page.watching():
                async with aclosing(states()) as events:
                    first = await anext(events)
                    kind = ("Content-Type", "text/event-stream")
                    await answer.begin(200, [kind, ("Cache-Control", "no-store")])
                    await answer.write(first)
                    async for event in events:
                        await answer.write(event)
        except HttpRefusal as refusal:
            failure = refusal.failure
            body = _error(failure.message, failure.code)
            await answer.give(failure.status, [("Content-Type", JSON_TYPE)], body)
            return
        answer.end()


class _NoRoom(MeshdError):
    """There are as many browsers as there may be."""


class _Browser:
    """The pages of one browser."""

    def __init__(self) -> None:
        self.share = BrowserShare()
        self.states = 0  # streams of the mesh's state
        self.pages: dict[bytes, _Page] = {}


class _Page:
    """One page: its requests, its channel if it has one, and what answers them."""

    def __init__(self, api: BrowserApi, browser: _Browser, key: bytes) -> None:
        self.key = key
        self.requests = PageRequests(browser.share, _now())
        self.answers: dict[int, _Answer] = {}
        self._api = api
        self._browser = browser
        self._channel: BrowserChannel | None = None
        self._ready = asyncio.Event()  # there may be something to send

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a stream of the mesh's state until the block is left. Raises HttpRefusal without room."""
        browser = self._browser
        if browser.states >= BROWSER_STATES.most:
            raise unavailable(f"this browser watches the mesh {browser.states} times already: close a page")
        browser.states += 1
        try:
            yield
        finally:
            browser.states -= 1

    async def carry(self, channel: BrowserChannel, hello: Hello) -> None:
        """Carry messages until the channel ends. Raises Broken, Closed, RemoteProtocolError, TimeoutError."""
        before, self._channel = self._channel, channel
        try:
            # 1. This channel takes the place of an earlier one, whose end we have not noticed yet.
            if before is not None:
                await before.close()
            if self._channel is not channel:
                return  # a third one came meanwhile
            self.take(self.requests.connect(hello))

            # 2. Carry messages in both directions; silence is an end.
            raised: BaseException | None = None
            async with Owner() as owner:
                owner.start(self._send(channel), name="messages to a browser")
                try:
                    await self._receive(channel)
                except (MeshdError, TimeoutError) as error:
                    raised = error
                owner.cancel()
            if raised is not None:
                try:
                    raise raised
                finally:
                    del raised  # it would keep this frame alive
        finally:
            # 3. The requests go on without a channel, unless a newer one has taken over.
            if self._channel is channel:
                self._channel = None
                self.requests.disconnect(_now())

    def end_channel(self) -> None:
        """Take nothing more from the channel."""
        self._channel = None

    async def _receive(self, channel: BrowserChannel) -> None:
        while self._channel is channel:
            async with asyncio.timeout(BROWSER_SILENT_SECONDS.most):
                message = await channel.receive()
            if self._channel is not channel:
                return
            self.take(self.requests.receive(message))

    async def _send(self, channel: BrowserChannel) -> None:
        with suppress(Broken, Closed):  # receiving ends as well
            while self._channel is channel:
                if (message := self.requests.transmit()) is not None:
                    await channel.send(message)
                    continue
                self._ready.clear()
                await self._ready.wait()

    def wake(self) -> None:
        """Look whether there is something to send."""
        self._ready.set()

    def take(self, events: Sequence[RequestEvent]) -> None:
        """Do what the browser wants; let all answers see whether there is room now."""
        for event in events:
            match event:
                case Begun(number):
                    self._api.start(self, number)
                case Arrived(number, data, is_last):
                    if (answer := self.answers.get(number)) is None:
                        self.requests.read(number, len(data))  # it has its answer already
                    else:
                        answer.arrived(data, is_last)
                case dropped:
                    if (answer := self.answers.get(dropped.number)) is not None and answer.task is not None:
                        answer.task.cancel()
        for page in self._browser.pages.values():
            for answer in page.answers.values():
                answer.has_room.set()
        self.wake()


class _Answer:
    """One request while it is answered: the bytes that came for it, and the way for its answer."""

    def __init__(self, page: _Page, number: int) -> None:
        self.page = page
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.has_room = asyncio.Event()  # perhaps
        self._came = bytearray()  # not the pieces: a browser may send them as small as it likes
        self._is_whole = False
        self._more = asyncio.Event()

    def arrived(self, data: bytes, is_last: bool) -> None:
        """Take bytes of the request, as many as the window allows."""
        self._came += data
        self._is_whole = self._is_whole or is_last
        self._more.set()

    async def read_head(self) -> RequestHead:
        """Return the head of the request. Raises RemoteProtocolError."""
        reader = HeadReader()
        while (data := await self._next()) is not None:
            found = reader.feed(data)
            rest = b"" if found is None else found[1]
            self._used(len(data) - len(rest))
            self._came[:0] = rest
            if found is not None:
                return found[0]
        raise RemoteProtocolError("browser: a request without a head", code="browser")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the request as they come, until its end."""
        while (data := await self._next()) is not None:
            self._used(len(data))
            yield data

    async def _next(self) -> bytes | None:
        """Return the next bytes that came, whose room is not free yet; None at the end."""
        while not self._came:
            if self._is_whole:
                return None
            self._more.clear()
            await self._more.wait()
        came = bytes(self._came)
        self._came.clear()
        return came

    def _used(self, count: int) -> None:
        self.page.requests.read(self.number, count)
        self.page.wake()

    async def give(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """Write a whole answer."""
        await self.begin(status, headers)
        await self.write(body)
        self.end()

    async def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """Write the head of the answer."""
        await self.write(answer_head(status, headers))

    async def write(self, data: bytes) -> None:
        """Write bytes of the answer, as there is room for them."""
        view = memoryview(data)
        while view:
            if room := self.page.requests.room(self.number):
                self.page.requests.write(self.number, bytes(view[:room]))
                view = view[room:]
                self.page.wake()
                continue
            self.has_room.clear()
            await self.has_room.wait()

    def end(self) -> None:
        """End the answer."""
        self.page.requests.end(self.number)


def _refusal(method: str, path: str) -> tuple[int, bytes] | None:
    """Return status and body of the answer to a request that a page may not make; None if it may."""
    if path.startswith(DO_PREFIX):
        message, hint = "a page over a data channel changes nothing", "run `meshd ui` on the node's machine"
        return 403, _error(message, "session", hint)
    wanted = "GET" if path.startswith(_MODEL_PREFIX) else _ASKED.get(path)
    if wanted is None:
        return 404, _error(f"there is no path `{path[:200]}` for a page over a data channel", "unknown_path")
    if method != wanted:
        return 405, _error(f"use {wanted} for this path", "method_not_allowed")
    return None


def _error(message: str, code: str, hint: str = "") -> bytes:
    return json.dumps({"error": {"message": message, "hint": hint, "code": code}}).encode()


def _longest_away(pages: dict[bytes, _Page]) -> bytes:
    """Return the session without a channel for longest. Raises _NoRoom if each has one."""
    away = {session: due for session, page in pages.items() if (due := page.requests.expires) is not None}
    if not away:
        raise _NoRoom(f"{len(pages)} pages of this browser are open already: close one")
    return min(away, key=lambda session: away[session])


def _why(error: BaseException) -> str:
    return error.what if isinstance(error, MeshdError) else type(error).__name__


def _now() -> float:
    return asyncio.get_running_loop().time()
