"""A browser with an invite at a real node: its page, a chat over its channel, the machines, and its end."""

import asyncio
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from meshd.gateway.pages import CHAT_FOLDER

from tests.e2e.browser import WEBRTC, chromium, needs_chromium, tab
from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, cli, play

PHONE = (390, 844)
MESH_FOLDER = CHAT_FOLDER.with_name("mesh")
pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(300),
    needs_chromium,
    pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page"),
]


def test_a_browser_chats_with_an_invite_until_it_is_revoked(tmp_path: Path) -> None:
    """The page comes from the node's own port; what it asks for goes over the channel."""

    def see(url: str, invite: str, revoke: Callable[[], object]) -> None:
        with chromium(*WEBRTC) as browser, tab(browser) as opened:
            page = opened.page
            page.goto(f"{url}/mesh/remote.html")
            page.get_by_label("Invite").fill(invite)
            page.get_by_role("button", name="Connect").click()
            page.get_by_text("Connected directly").wait_for()
            page.get_by_label("Question").fill("What is the capital of France?")
            page.get_by_role("button", name="Send").click()
            page.locator(".answer").filter(has_text=re.compile(r"(\w+\W+){8}")).wait_for()
            page.get_by_role("button", name="Stop").click()  # so small a model may go on for ever
            page.get_by_text("Stopped.").wait_for()
            page.get_by_role("link", name="Machines").click()
            page.get_by_role("cell", name="head").first.wait_for()
            opened.keep("remote-real")
            paths = {asked.removeprefix(url) for asked in opened.asked if asked.startswith(url)}
            assert not any(path.startswith(("/v1/", "/mesh/state")) for path in paths), paths
            assert opened.foreign == []
            revoke()
            page.get_by_text("Not connected: ").wait_for()
            page.get_by_text("to return, get a new invite").wait_for()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with Fleet(tmp_path) as fleet:
            head = await fleet.head(smollm2(), "--min-workers", "0", "--", "--temp", "0")
            url = api_of(await fleet.ready(head)).url
            made = await cli(head.spec.home, "invite", "--browser", "phone")
            assert made.returncode == 0, made.stderr
            asked: asyncio.Future[None] = loop.create_future()
            revoke = partial(loop.call_soon_threadsafe, asked.set_result, None)
            seen = asyncio.create_task(asyncio.to_thread(see, url, made.stdout.strip(), revoke))
            await asyncio.wait({seen, asked}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                gone = await cli(head.spec.home, "revoke", "phone", "--yes")
                assert gone.returncode == 0, gone.stderr
            await seen

    play(scenario())


def test_a_phone_scans_the_invite_and_is_in(tmp_path: Path) -> None:
    """The QR code has the address of the page at the mesh port; the API is on loopback alone."""

    def see(url: str) -> None:
        with chromium(*WEBRTC) as browser, tab(browser, size=PHONE, scheme="dark") as opened:
            page = opened.page
            page.goto(url)
            page.get_by_text("Connected directly").wait_for()
            assert page.url == url.partition("#")[0]
            page.get_by_label("Question").fill("What is the capital of France? Answer in one sentence.")
            page.get_by_role("button", name="Send").click()
            page.locator(".note").filter(has_text="tokens/s").wait_for()
            page.locator(".answer").filter(has_text="Paris").wait_for()  # drawn a moment after it has come
            opened.keep("phone-chat")
            page.get_by_role("link", name="Machines").click()
            page.get_by_role("cell", name="head").first.wait_for()
            opened.keep("phone-machines")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
            assert {asked.partition("#")[0] for asked in opened.asked} == {page.url}
            assert opened.errors == []
            page.reload()  # without the invite in the address
            page.get_by_text("Connected directly").wait_for()

    async def scenario() -> None:
        async with Fleet(tmp_path) as fleet:
            head = await fleet.head(smollm2(), "--min-workers", "0", "--", "--temp", "0")
            api = api_of(await fleet.ready(head)).url
            made = await cli(head.spec.home, "invite", "--browser", "phone", "--qr", "--json")
            assert made.returncode == 0, made.stderr
            invite = json.loads(made.stdout)
            address = urlsplit(invite["url"])
            assert (address.fragment, address.path) == (invite["token"], "/")
            assert address.port not in (None, urlsplit(api).port)
            await asyncio.to_thread(see, invite["url"])

    play(scenario())


def test_a_worker_invites_no_browser(tmp_path: Path) -> None:
    """It has no chat, so the invite would lead nowhere."""

    async def scenario() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("garage")
            await worker.token()
            made = await cli(worker.spec.home, "invite", "--browser", "phone")
            assert (made.returncode, made.stdout) == (1, "")
            assert "a worker has no chat" in made.stderr
            assert "a node that serves a model" in made.stderr

    play(scenario())
