"""Browsers that were let in, and lie, flood or take more than their share."""

import asyncio
import json
import tracemalloc
from contextlib import aclosing
from pathlib import Path

import pytest
from meshd.base.peer_limits import BROWSER_SENT_KIB, BROWSER_STATES
from meshd.gateway.browser_bridge import BrowserApi, _Answer
from meshd.gateway.browser_frames import Hello, Place, Welcome, decode_from_node, encode
from meshd.gateway.console import MOST_STREAMS

from tests.process.console_fake import FakeSource
from tests.process.gateway_fake import DONE, chunk, says, streams, world
from tests.unit.gateway.test_browser_bridge import BROWSER, MemoryChannel, Page, pair, served, two_states
from tests.unit.gateway.virtual_gateway import LONG, timed

pytestmark = pytest.mark.virtual
SESSION = b"s" * 16
STATUS = Path(__file__).parent.parent / "admin" / "status.json"


async def test_a_page_that_claims_what_was_not_sent_is_forgotten_with_its_requests() -> None:
    """Its lie takes the place of a channel that was alive: neither is left, and the page's time begins."""
    hangs = timed((0.1, chunk("a")), (1000.0, DONE))
    async with world(hangs, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner, session=SESSION)
        page.connect()
        number = page.chat()
        await page.until_got(number, b'"a"')
        ours, theirs = pair()
        owner.start(api.serve_browser(theirs), name="channel")
        await ours.send(encode(Hello(SESSION, (Place(number, 1 << 40, 0),))))
        assert b"what was not sent" in await ours.receive()
        await here.server.until(lambda: here.server.cancelled == 1)
        await asyncio.sleep(61.0)
        assert api._browsers == {}


async def test_a_page_is_forgotten_although_its_new_channel_was_cut_while_the_old_one_closed() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner, session=SESSION)
        page.connect()
        await page.answer(page.chat())
        old = api._browsers[BROWSER].pages[SESSION]._channel
        assert isinstance(old, MemoryChannel)
        old.close = asyncio.Event().wait  # type: ignore[assignment]  # a pipe that takes its time
        ours, theirs = pair()
        second = owner.start(api.serve_browser(theirs), name="channel")
        await ours.send(encode(Hello(SESSION)))
        await asyncio.sleep(1.0)
        second.cancel()  # as at a revocation
        await MemoryChannel.close(old)
        await asyncio.sleep(61.0)
        assert api._browsers == {}


async def test_the_session_of_another_browser_leads_to_nothing_of_it() -> None:
    hangs = timed((0.1, chunk("secret")), (1000.0, DONE))
    async with world(hangs, seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner, session=SESSION)
        page.connect()
        number = page.chat()
        await page.until_got(number, b"secret")
        ours, theirs = pair(b"o" * 32)
        owner.start(api.serve_browser(theirs), name="channel")
        await ours.send(encode(Hello(SESSION, (Place(number, 0, 1 << 20),))))
        assert decode_from_node(await ours.receive()) == Welcome(is_new=True, highest=0)
        await asyncio.sleep(5.0)
        assert ours._came.empty() and page.client.asked[number].failure is None


async def test_a_banned_browser_gives_its_slots_back_at_once_and_others_keep_theirs() -> None:
    hangs = timed((0.1, chunk("a")), (1000.0, DONE))
    async with world(hangs, seconds=LONG) as here, served(here) as (api, owner):
        banned, other = Page(api, owner), Page(api, owner, key=b"o" * 32)
        for page in (banned, other):
            page.connect()
            await page.until_got(page.chat(), b'"a"')
        api.forget(BROWSER)
        banned.chat()  # before its channel ends
        await asyncio.sleep(1.0)
        assert here.server.cancelled == 1 and len(here.server.asked()) == 2
        assert list(api._browsers) == [b"o" * 32]


async def test_small_pieces_that_nobody_reads_take_no_more_memory_than_large_ones() -> None:
    pieces = [number.to_bytes(4, "big") for number in range((BROWSER_SENT_KIB.most << 10) // 4)]
    answer = _Answer(None, 1)  # type: ignore[arg-type]  # it uses no page to keep bytes
    tracemalloc.start()
    try:
        for piece in pieces:
            answer.arrived(bytes(bytearray(piece)), False)  # a copy, as of each message
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * BROWSER_SENT_KIB.most << 10


async def test_a_browser_has_few_streams_of_the_state_and_others_have_theirs() -> None:
    async with world(streams(DONE), seconds=LONG) as here, served(here, two_states) as (api, owner):
        greedy, other = Page(api, owner), Page(api, owner, key=b"o" * 32)
        greedy.connect()
        other.connect()
        numbers = [greedy.ask("GET", "/mesh/state") for _ in range(BROWSER_STATES.most + 1)]
        answer = await greedy.answer(numbers[-1])
        assert (answer.status, answer.error["code"]) == (503, "busy")
        await other.until_got(other.ask("GET", "/mesh/state"), b'"number":1')
        greedy.forget(numbers[0])
        await asyncio.sleep(1.0)
        await greedy.until_got(greedy.ask("GET", "/mesh/state"), b'"number":1')


async def test_browsers_far_away_leave_the_places_of_windows_alone() -> None:
    source = FakeSource()
    async with world(says(200, {}), seconds=LONG, console=source) as here:
        console = here.gateway.console
        api = BrowserApi(here.gateway, console.states)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(api.serve())
            streams_far = [console.states() for _ in range(MOST_STREAMS)]
            for far in streams_far:
                assert b'"number":0' in await anext(far)
            with console._watching():  # a window
                assert source.watching == 1
            for far in streams_far:
                async with aclosing(far):
                    pass
            serving.cancel()


async def test_the_state_that_goes_far_names_nothing_that_is_for_the_nodes_user_alone() -> None:
    status = json.loads(STATUS.read_text(encoding="utf-8"))
    # of what a later version says, nothing goes far until somebody has decided so
    status |= {"later": ["secret"], "also_later": {"a": "secret"}}
    status["node"] |= {"later": "secret", "later_number": 4711}
    request = {"id": 1, "model": "SmolLM2", "key": "anna", "tok_s": 2.0}
    event = {"at": 1.0, "level": "info", "text": "shed was banned: it lied"}
    source = FakeSource({"status": status, "requests": [request], "events": [event], "can": ["ping"]})
    async with world(says(200, {}), seconds=LONG, console=source) as here:
        console = here.gateway.console
        near, far = console._events(lambda: True), console.states()
        told = json.loads((await anext(far)).partition(b"data: ")[2])
        for word in (
            "anna",
            "/home/",
            "127.0.0.1:4000",
            "llama-server",
            "mesh-server",
            "it lied",
            "secret",
            "4711",
        ):
            assert word not in json.dumps(told), word
        assert [peer["name"] for peer in told["status"]["peers"]] == [
            peer["name"] for peer in status["peers"]
        ]
        assert told["requests"] == [{**request, "key": ""}] and told["status"]["api"]["tokens"] == 42
        assert json.loads((await anext(near)).partition(b"data: ")[2]) == source.state  # a window's
        await near.aclose()
        await far.aclose()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../metrics",
        "/v1/models/%2e%2e/%2e%2e/metrics",
        "/v1/models/..\\..\\metrics",
        "/v1/models/../../mesh/open?once=x",
        "/v1/models/#/../../metrics",
        "/v1/models/x HTTP/1.1",
        "/v1/models/%0d%0aX-Api-Key:%20k",
        "/v1/models//evil.example/",
        "/v1/models/[",
        "/v1/models/%ff%00",
        "/v1/models/" + "x" * 40_000,
        "//evil.example/v1/models",
        "@evil.example/v1/models",
        "http://evil.example/v1/models",
        "/v1/../metrics",
        "/v1/models?x=/../../metrics#",
    ],
)
async def test_no_spelling_of_a_path_leads_to_another_one(path: str) -> None:
    async with world(says(200, {}), seconds=LONG) as here, served(here) as (api, owner):
        page = Page(api, owner)
        page.connect()
        answer = await page.answer(page.ask("GET", path))
        if path.startswith("/v1/models?"):
            assert b'"object": "list"' in answer.body
        else:
            assert answer.status in (400, 404, 431)
        assert here.server.seen == []
