"""The link of `meshd ui` in a real Chromium: cookies, redirects and origins as a browser takes them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from meshd.base.sockets import LOOPBACK_HOST
from meshd.cli.ui import redirecting
from meshd.gateway.pages import MESH_FOLDER

from tests.e2e.browser import chromium, expect, needs_chromium, tab
from tests.process import mesh_page_states as states
from tests.process.console_fake import FakeSource
from tests.process.gateway_fake import World, says, world

pytestmark = [pytest.mark.timeout(300), needs_chromium]
STATE = """async () => {
    const answer = await fetch('/mesh/state');
    const read = answer.ok ? await answer.body.getReader().read() : {value: new Uint8Array()};
    return [answer.status, new TextDecoder().decode(read.value)];
}"""
ACT = """name => fetch('/mesh/do/' + name, {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'
}).then(answer => answer.status)"""
ATTACK = """async base => {
    const headers = {'Content-Type': 'text/plain'};
    const post = {method: 'POST', credentials: 'include', headers, body: '{}'};
    for (const mode of ['no-cors', 'cors']) {
        await fetch(base + '/mesh/do/invite', {mode, ...post}).catch(() => null);
        await fetch(base + '/mesh/state', {mode, credentials: 'include'}).catch(() => null);
    }
    const form = document.createElement('form');
    Object.assign(form, {action: base + '/mesh/do/invite', method: 'post', enctype: 'text/plain'});
    form.append(Object.assign(document.createElement('input'), {name: '{"uses": 1, "x": "', value: '"}'}));
    document.body.append(form);
    form.submit();
}"""


def look(see: Callable[[World, str], None]) -> FakeSource:
    """Look, in a thread, at the page of a node; `see` also gets a link. Return what the node was asked."""
    source = FakeSource()

    async def scenario() -> None:
        async with world(says(200, {}), console=source, seconds=200) as here:
            here.gateway.console._page = {}  # no script of ours moves on
            link = here.url + here.gateway.console.link().path
            await asyncio.to_thread(see, here, link)

    asyncio.run(scenario())
    return source


def test_the_file_leads_to_a_session_that_shows_and_acts(tmp_path: Path) -> None:
    def see(here: World, link: str) -> None:
        with redirecting(tmp_path, link) as file, chromium() as browser, tab(browser) as opened:
            opened.page.goto(file.as_uri())
            opened.page.wait_for_url(f"{here.url}/mesh")
            status, text = opened.page.evaluate(STATE)
            assert status == 200 and '"number":0' in text
            assert opened.page.evaluate(ACT, "invite") == 200
            assert opened.page.evaluate("document.cookie") == ""  # no script can read it
            # The link is spent: the same browser keeps its session, another one gets none.
            opened.page.goto(link)
            opened.page.wait_for_url(f"{here.url}/mesh#refused")
            assert opened.page.evaluate(STATE)[0] == 200
            with tab(browser) as another:
                another.page.goto(link)
                another.page.wait_for_url(f"{here.url}/mesh#refused")
                assert another.page.evaluate(STATE)[0] == 401

    assert [name for name, _ in look(see).done] == ["invite"]


@pytest.mark.parametrize("host", [LOOPBACK_HOST, "evil.example"])
def test_another_page_of_the_same_browser_can_do_nothing(host: str) -> None:
    """From another port of the same host, the cookie comes along: browsers call that the same site."""

    async def evil(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="<p>evil", content_type="text/html")

    source = FakeSource()

    async def scenario() -> None:
        async with world(says(200, {}), console=source, seconds=200) as here:
            runner = web.ServerRunner(web.Server(evil))
            await runner.setup()
            site = web.TCPSite(runner, LOOPBACK_HOST, 0)
            await site.start()
            port = runner.addresses[0][1]
            here.gateway.console._page = {}
            link = here.url + here.gateway.console.link().path
            try:
                await asyncio.to_thread(see, here, link, f"http://{host}:{port}/")
            finally:
                await runner.cleanup()

    def see(here: World, link: str, evil_url: str) -> None:
        with chromium() as browser, tab(browser) as opened:
            opened.page.goto(link)
            opened.page.wait_for_url(f"{here.url}/mesh")
            opened.page.goto(evil_url)
            with opened.page.expect_navigation():
                opened.page.evaluate(ATTACK, here.url)
            assert "origin_not_allowed" in opened.page.content() or "not allowed" in opened.page.content()
            opened.page.goto(f"{here.url}/mesh")
            assert opened.page.evaluate(ACT, "ping") == 200

    asyncio.run(scenario())
    assert [name for name, _ in source.done] == ["ping"]
    assert source.watching == 0


@pytest.mark.skipif(not MESH_FOLDER.exists(), reason="`make chat` has not built the page")
def test_a_session_is_ended_on_the_page_in_all_its_windows() -> None:
    source = FakeSource(state=dict(states.split()))

    async def scenario() -> None:
        async with world(says(200, {}), console=source, seconds=200) as here:
            link = here.url + here.gateway.console.link().path
            await asyncio.to_thread(see, here.url, link)
            assert here.gateway.console._sessions._sessions == {}

    def see(url: str, link: str) -> None:
        with chromium() as browser, tab(browser) as opened:
            page = opened.page
            page.goto(link)
            page.get_by_role("heading", name="4 machines").wait_for()
            other = page.context.new_page()
            with other.expect_response("**/mesh/do/logs"):
                other.goto(f"{url}/mesh#logs")
            assert [cookie["path"] for cookie in page.context.cookies()] == ["/mesh"]
            page.evaluate("sessionStorage.setItem('meshd-api-key', 'k')")
            end = page.get_by_role("button", name="End session")
            end.focus()
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="The session has ended").wait_for()
            expect(page.locator("#content")).to_be_focused()
            expect(page.get_by_text("desk")).to_have_count(0)
            expect(end).to_have_count(0)
            opened.keep("session-ended")
            assert opened.errors == []
            assert page.evaluate("sessionStorage.length") == 0 and page.context.cookies() == []
            other.get_by_role("heading", name="Open this page with a one-time link").wait_for()
            assert page.evaluate(STATE)[0] == page.evaluate(ACT, "ping") == 401
            page.reload()
            page.get_by_role("heading", name="Open this page with a one-time link").wait_for()

    asyncio.run(scenario())
    assert [name for name, _ in source.done] == ["logs"]
