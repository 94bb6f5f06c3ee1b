"""Pages far away: what they ask for reaches the gateway, and its answer reaches them over lost channels."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import pytest
from meshd.base.errors import Closed
from meshd.base.tasks import Owner
from meshd.gateway.browser_bridge import BrowserApi, States
from meshd.gateway.browser_frames import Hello, encode, with_length
from meshd.gateway.failure import unavailable
from meshd.gateway.interface import ApiKey, GatewayConfig

from tests.process.gateway_fake import DONE, HI, World, chunk, pours, says, streams, world
from tests.unit.gateway.page_client import FORGOTTEN, PageClient
from tests.unit.gateway.virtual_gateway import CHAT, LONG, timed

pytestmark = pytest.mark.virtual
KEY = "k-0123456789abcdef"
BROWSER = b"b" * 32
STORY = tuple(chunk(f"word {number} ") for number in range(30))
WHOLE = b"".join(STORY) + DONE


class MemoryChannel:
    """One end of a channel within this process. Implements BrowserChannel."""

    def __init__(self, key: bytes = BROWSER) -> None:
        self.peer_key = key
        self.other: MemoryChannel
        self.ended = asyncio.Event()
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def send(self, message: bytes) -> None:
        await asyncio.sleep(0)
        if self.ended.is_set():
            raise Closed("the channel has ended")
        self.other._came.put_nowait(message)

    async def receive(self) -> bytes:
        message = await self._came.get()
        if message is None:
            raise Closed("the channel has ended")
        return message

    async def close(self) -> None:
        for end in (self, self.other):
            end.ended.set()
            end._came.put_nowait(None)


def pair(key: bytes = BROWSER) -> tuple[MemoryChannel, MemoryChannel]:
    ours, theirs = MemoryChannel(key), MemoryChannel(key)
    ours.other, theirs.other = theirs, ours
    return ours, theirs


async def two_states() -> AsyncGenerator[bytes, None]:
    yield b'event: state\ndata: {"number":1}\n\n'
    await asyncio.sleep(1.0)
    yield b'event: state\ndata: {"number":2}\n\n'
    await asyncio.Event().wait()


async def no_room(*, is_full: bool = True) -> AsyncGenerator[bytes, None]:
    if is_full:
        raise unavailable("16 windows show this page already: close one")
    yield b""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.body)["error"]
        return found


class Page:
    """A page that asks over channels to `api`, which `cut` ends."""

    def __init__(
        self, api: BrowserApi, owner: Owner, *, session: bytes = b"s" * 16, key: bytes = BROWSER
    ) -> None:
        self.client = PageClient(session)
        self._api = api
        self._owner = owner
        self._key = key
        self._end: MemoryChannel | None = None
        self._moved = asyncio.Event()
        self._changed = asyncio.Condition()

    def connect(self) -> None:
        """Open a channel, whatever became of the last one."""
        self._end, theirs = pair(self._key)
        self.client.connect()
        self._owner.start(self._api.serve_browser(theirs), name="channel")
        self._owner.start(self._send(self._end), name="page sends")
        self._owner.start(self._receive(self._end), name="page receives")

    async def cut(self) -> None:
        """Lose the channel, and what is under way."""
        assert self._end is not None
        end, self._end = self._end, None
        self.client.disconnect()
        await end.close()

    async def _send(self, end: MemoryChannel) -> None:
        with contextlib.suppress(Closed):
            while self._end is end:
                if (message := self.client.transmit()) is not None:
                    await end.send(message)
                    continue
                self._moved.clear()
                await self._moved.wait()

    async def _receive(self, end: MemoryChannel) -> None:
        with contextlib.suppress(Closed):
            while True:
                message = await end.receive()
                if self._end is not end:
                    return
                self.client.receive(message)
                self._moved.set()
                async with self._changed:
                    self._changed.notify_all()

    def ask(self, method: str, path: str, body: bytes = b"", *, key: str = "", reads: bool = True) -> int:
        headers = [["Content-Type", "application/json"], ["Host", "evil.example"], ["Cookie", "meshd=x"]]
        headers += [["Authorization", f"Bearer {key}"]] if key else []
        head = with_length({"method": method, "path": path, "headers": headers})
        number = self.client.open(head + body, reads=reads)
        self._moved.set()
        return number

    def chat(self, **fields: object) -> int:
        return self.ask("POST", CHAT, json.dumps({**HI, "stream": True, **fields}).encode())

    def forget(self, number: int) -> None:
        self.client.forget(number)
        self._moved.set()

    def read(self, number: int) -> None:
        self.client.read(number)
        self._moved.set()

    async def until_got(self, number: int, part: bytes) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: part in self.client.asked[number].got)

    async def answer(self, number: int) -> Answer:
        """Wait for the whole answer."""
        asked = self.client.asked[number]
        async with self._changed:
            await self._changed.wait_for(lambda: asked.is_whole or asked.failure is not None)
        assert asked.failure is None, asked.failure
        length = int.from_bytes(asked.got[:4], "big")
        head = json.loads(asked.got[4 : 4 + length])
        return Answer(head["status"], dict(head["headers"]), bytes(asked.got[4 + length :]))

    async def failure(self, number: int) -> str:
        asked = self.client.asked[number]
        async with self._changed:
            await self._changed.wait_for(lambda: asked.failure is not None)
        return str(asked.failure)

    async def refusal(self) -> str:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self.client.refused))
        return self.client.refused


@contextlib.asynccontextmanager
async def served(here: World, states: States | None = None) -> AsyncIterator[tuple[BrowserApi, Owner]]:
    api = BrowserApi(here.gateway, states)
    async with Owner() as owner:
        owner.start(api.serve(), name="browsers")
        await asyncio.sleep(0)
        yield api, owner
        owner.cancel()


async def test_a_chat_comes_in_pieces() -> None:
    async with world(streams(*STORY, DONE), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        answer = await page.answer(page.chat())
        assert (answer.status, answer.body) == (200, WHOLE)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        [(method, _path, headers, _)] = [row for row in here.server.seen if row[1] == CHAT]
        assert method == "POST" and "Cookie" not in headers


async def test_a_stream_survives_ten_seconds_without_a_channel() -> None:
    slow = timed(*((0.5, piece) for piece in (*STORY, DONE)))
    async with world(slow, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        number = page.chat()
        await page.until_got(number, b"word 3 ")
        await page.cut()
        before = bytes(page.client.asked[number].got)
        await asyncio.sleep(10.0)
        page.connect()
        answer = await page.answer(number)
        assert b"word 20" not in before and answer.body == WHOLE
        assert len(here.server.asked()) == 1 and here.server.cancelled == 0


async def test_a_page_that_stays_away_gives_its_slot_back() -> None:
    slow = timed(*((3.0, piece) for piece in (*STORY, DONE)))
    async with world(slow, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        number = page.chat()
        await page.until_got(number, b"word 1 ")
        await page.cut()
        await asyncio.sleep(59.0)
        assert here.server.cancelled == 0
        await here.server.until(lambda: here.server.cancelled == 1)
        page.connect()
        assert await page.failure(number) == FORGOTTEN
        assert len(here.server.asked()) == 1  # it is not run again


async def test_a_request_that_nobody_wants_is_stopped() -> None:
    async with (
        world(timed((0.1, chunk("a")), (1000.0, DONE)), seconds=LONG) as here,
        served(here) as (api, owner),
    ):
        page = Page(api, owner)
        page.connect()
        number = page.chat()
        await page.until_got(number, b'"a"')
        page.forget(number)
        await here.server.until(lambda: here.server.cancelled == 1)


async def test_a_page_that_reads_slowly_slows_the_model() -> None:
    least = 8 << 20
    async with (
        world(pours(chunk("x" * 2000), least=least), seconds=LONG) as here,
        served(here) as (api, owner),
    ):
        page = Page(api, owner)
        page.connect()
        body = json.dumps({"prompt": "x", "stream": True}).encode()
        number = page.ask("POST", "/v1/completions", body, reads=False)
        assert await here.server.held_up() < 3 << 20
        page.read(number)
        answer = await page.answer(number)
        assert len(answer.body) >= least


async def test_a_long_request_comes_whole() -> None:
    async with world(says(200, {"content": "ok"}), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        pad = "x" * 900_000
        number = page.ask("POST", "/v1/completions", json.dumps({"prompt": pad}).encode())
        assert (await page.answer(number)).status == 200
        assert here.server.asked()[0]["prompt"] == pad


async def test_where_a_key_is_needed_a_page_shows_one() -> None:
    config = GatewayConfig(port=0, api_keys=(ApiKey(KEY),))
    async with world(streams(DONE), config=config, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        for key, status in (("", 401), ("k-wrong-wrong", 401), (KEY, 200)):
            number = page.ask("POST", CHAT, json.dumps({**HI, "stream": True}).encode(), key=key)
            assert (await page.answer(number)).status == status


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/metrics", 404, "unknown_path"),
        ("GET", "/metrics?model=tiny", 404, "unknown_path"),
        ("POST", "/api/chat", 404, "unknown_path"),
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/mesh/open?once=x", 404, "unknown_path"),
        ("GET", "/mesh/state", 404, "unknown_path"),  # this node shows none
        ("POST", "/mesh/do/revoke", 403, "session"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
    ],
)
async def test_other_paths_are_refused(method: str, path: str, status: int, code: str) -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        answer = await page.answer(page.ask(method, path))
        assert (answer.status, answer.error["code"]) == (status, code)
        assert here.server.seen == []


async def test_health_models_and_props_are_answered() -> None:
    async with world(says(200, {"n_ctx": 1}), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        for path in ("/health", "/v1/models", "/v1/models/tiny", "/props"):
            assert (await page.answer(page.ask("GET", path))).status == 200, path


async def test_the_state_of_the_mesh_comes_as_events() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here, two_states) as (api, owner):
        page = Page(api, owner)
        page.connect()
        number = page.ask("GET", "/mesh/state")
        await page.until_got(number, b'event: state\ndata: {"number":1}\n\n')
        await page.cut()
        await asyncio.sleep(5.0)
        page.connect()
        await page.until_got(number, b'event: state\ndata: {"number":2}\n\n')


async def test_without_room_the_state_of_the_mesh_is_refused() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here, no_room) as (api, owner):
        page = Page(api, owner)
        page.connect()
        answer = await page.answer(page.ask("GET", "/mesh/state"))
        assert (answer.status, answer.error["code"]) == (503, "busy")


async def test_a_second_channel_of_a_page_takes_over() -> None:
    slow = timed(*((0.5, piece) for piece in (*STORY, DONE)))
    async with world(slow, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        number = page.chat()
        await page.until_got(number, b"word 3 ")
        page.connect()  # the node has not noticed that the first one is dead
        assert (await page.answer(number)).body == WHOLE


async def test_a_silent_channel_ends_and_its_page_goes_on() -> None:
    slow = timed(*((1.5, piece) for piece in (*STORY, DONE)))
    async with world(slow, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        number = page.chat()
        await page.until_got(number, b"word 3 ")
        end = page._end
        assert end is not None
        await end.ended.wait()
        page.connect()
        assert (await page.answer(number)).body == WHOLE


async def test_what_is_no_hello_is_refused_in_words() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here) as (api, owner):
        for first in (b"GET / HTTP/1.1", encode(Hello(bytes(16))).replace(b"\x01\x01", b"\x01\x09", 1)):
            ours, theirs = pair()
            owner.start(api.serve_browser(theirs), name="channel")
            await ours.send(first)
            assert (await ours.receive())[0] == 9
            with pytest.raises(Closed):
                await ours.receive()


async def test_a_fifth_page_takes_the_place_of_one_that_is_away() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here) as (api, owner):
        pages = [Page(api, owner, session=bytes([number]) * 16) for number in range(5)]
        for page in pages[:4]:
            page.connect()
            await page.answer(page.chat())
        pages[4].connect()
        assert "close one" in await pages[4].refusal()
        await pages[1].cut()
        await asyncio.sleep(1.0)
        pages[4].connect()
        await pages[4].answer(pages[4].chat())


async def test_browsers_are_bounded_and_forgotten() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here) as (api, owner):
        pages = [Page(api, owner, key=bytes([number]) * 32) for number in range(17)]
        for page in pages[:16]:
            page.connect()
            await page.answer(page.chat())
        pages[16].connect()
        assert "try later" in await pages[16].refusal()
        for page in pages[:16]:
            await page.cut()
        await asyncio.sleep(61.0)
        assert api._browsers == {}
        pages[16].connect()
        await pages[16].answer(pages[16].chat())


async def test_bad_requests_are_refused_one_by_one() -> None:
    async with (
        world(timed((0.1, chunk("a")), (1000.0, DONE)), seconds=LONG) as here,
        served(here) as (api, owner),
    ):
        page = Page(api, owner)
        page.connect()
        number = page.ask("POST", CHAT, b"{")
        assert (await page.answer(number)).status == 400
        bad = page.client.open(b"\x00\x00\x00\x02[]")
        page._moved.set()
        assert "a head cannot be read" in await page.failure(bad)
