"""A browser comes to a node through a relay: over WebRTC, over the sealed pipe, or not at all."""

import asyncio
from dataclasses import replace

import pytest
from meshd.base.errors import Closed
from meshd.identity.invite import derive
from meshd.identity.keys import KeyPair, to_base32
from meshd.relay.switchboard import SMALL
from meshd.wire.browser import DATA, BrowserRefused, BrowserWelcome
from meshd.wire.hello import NotAdmitted

from tests.conformance.browsers import KEYS, Page, PageLinks, WebSocket, anywhere, desk, with_browsers
from tests.conformance.nodes import fresh_key
from tests.conformance.relays import House
from tests.conformance.run import until


def phone() -> KeyPair:
    return fresh_key()


def test_a_browser_without_webrtc_talks_through_the_relay() -> None:
    """More bytes than a joiner may send, and the relay sees none of them."""
    message = b"what no relay may read " * 500

    async def work(home: House) -> None:
        home.start(limits=SMALL)
        ann, key = await desk(home), phone()
        page = await Page.open(home.hint.place, ann.party.node.peer, key)
        assert isinstance(page.answer, BrowserWelcome)
        for _ in range(40):
            await page.put(DATA, message)
            assert await page.take() == (DATA, message)
        assert ann.channels[0].peer_key == key.peer.raw
        page.close()
        await until(lambda: len(ann.ended) == 1 and not ann.browsers.connected)

    with_browsers(work)


def test_a_browser_talks_over_webrtc_and_its_websocket_may_end() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        ann, key = await desk(home), phone()
        page = await Page.open(home.hint.place, ann.party.node.peer, key)
        links = PageLinks(ann.party.node.now, page, hosts=lambda: ["127.0.0.1"], may_dial=anywhere)
        serving = home.owner.start(links.serve(_none), name="page")
        channel = await links.meet(ann.party.node.peer)
        serving.cancel()
        page.close()
        await until(lambda: relay.board.circuits == 0)
        for size in (1, 16 << 10):
            await channel.send(bytes(size))
            assert await channel.receive() == bytes(size)
        assert ann.browsers.connected == {key.peer}
        await channel.close()
        await until(lambda: not ann.browsers.connected)

    with_browsers(work)


async def _none(_link: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("direct", [True, False])
def test_a_ban_ends_what_the_browser_has(direct: bool) -> None:
    async def work(home: House) -> None:
        home.start()
        ann, key = await desk(home), phone()
        page = await Page.open(home.hint.place, ann.party.node.peer, key)
        other = await Page.open(home.hint.place, ann.party.node.peer, phone())
        if direct:
            links = PageLinks(ann.party.node.now, page, hosts=lambda: ["127.0.0.1"], may_dial=anywhere)
            serving = home.owner.start(links.serve(_none), name="page")
            channel = await links.meet(ann.party.node.peer)
            serving.cancel()
        else:
            await page.put(DATA, b"hello")
            assert await page.take() == (DATA, b"hello")
        ann.banned.add(key.peer)
        ann.browsers.bans_changed()
        if direct:
            with pytest.raises(Closed):
                await channel.receive()
        await page.ended()
        await until(lambda: ann.browsers.connected == {other.key.peer})

    with_browsers(work)


def test_who_is_not_let_in_is_told_why() -> None:
    async def work(home: House) -> None:
        home.start()
        ann = await desk(home)
        ann.refusal = NotAdmitted("used_up", "this invite was valid once and is used up", "ask for a new one")
        page = await Page.open(home.hint.place, ann.party.node.peer, phone())
        refused = BrowserRefused("used_up", "this invite was valid once and is used up", "ask for a new one")
        assert page.answer == refused
        await page.ended()
        assert not ann.channels
        ann.refusal, ann.browsers.serve_channel = None, None
        page = await Page.open(home.hint.place, ann.party.node.peer, phone())
        assert isinstance(page.answer, BrowserRefused) and page.answer.code == "absent"

    with_browsers(work)


def test_without_the_secret_there_is_no_answer() -> None:
    async def work(home: House) -> None:
        home.start()
        ann = await desk(home)
        forged = replace(KEYS, browser_key=bytes(32))
        with pytest.raises(ConnectionError):
            await Page.open(home.hint.place, ann.party.node.peer, phone(), forged)
        assert not ann.browsers.connected

    with_browsers(work)


def test_a_relay_rings_only_boxes_for_browsers() -> None:
    other = derive(b"o" * 16)

    async def work(home: House) -> None:
        relay = home.start()
        ann = await desk(home)
        await ann.party.client.set_boxes(
            {KEYS.browser_box: 600.0, other.mailbox: 600.0}, frozenset({KEYS.browser_box})
        )
        await until(lambda: relay.board.boxes == 2)
        for path in (
            f"/browser/{to_base32(other.mailbox)}",
            f"/browser/{to_base32(bytes(16))}",
            "/browser/not-base-32",
            "/browser/",
            "/",
        ):
            with pytest.raises(ConnectionError, match="404"):
                await WebSocket.open(home.hint.place, path)
        await until(lambda: relay.connections == 1)  # the party's

    with_browsers(work)


def test_an_address_has_few_browsers_at_a_box_and_a_browser_few_connections() -> None:
    async def work(home: House) -> None:
        relay = home.start(limits=SMALL)
        ann, key = await desk(home), phone()
        pages = [await Page.open(home.hint.place, ann.party.node.peer, key) for _ in range(5)]
        await pages[0].ended()  # the oldest made room at the node
        await until(lambda: relay.board.circuits == 4)
        pages += [await Page.open(home.hint.place, ann.party.node.peer, phone()) for _ in range(4)]
        with pytest.raises(ConnectionError, match="404"):
            await Page.open(home.hint.place, ann.party.node.peer, phone())
        pages[1].close()
        await until(lambda: relay.board.circuits == 7)
        await Page.open(home.hint.place, ann.party.node.peer, phone())

    with_browsers(work)


def test_a_page_that_says_nothing_is_dropped() -> None:
    async def work(home: House) -> None:
        home.start()
        await desk(home)
        path = f"/browser/{to_base32(KEYS.browser_box)}"
        socket = await WebSocket.open(home.hint.place, path)
        async with asyncio.timeout(20):
            assert await socket.receive() == b""

    with_browsers(work)
