"""A node without an API opens a port for the page when it is asked for, and closes it again."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from meshd.admin.api import UiLinkRequest, UiRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.daemon.mesh_page import MeshPage
from meshd.gateway import console_server
from meshd.gateway.console_server import UNUSED_SECONDS

from tests.conformance.run import until
from tests.process.console_fake import FakeSource, next_event


@contextlib.asynccontextmanager
async def page_of(gateway: Callable[[], Any] | None = None) -> AsyncIterator[tuple[MeshPage, FakeSource]]:
    """Run the page of a node; with `gateway`, of one that has an API."""
    source = FakeSource()
    page = MeshPage(
        lan_url=lambda url: url.replace("127.0.0.1", "10.0.0.5"),
        has_api=lambda: gateway is not None,
        gateway=gateway or (lambda: None),
        make_source=lambda: source,
    )
    async with asyncio.timeout(20), Owner() as owner:
        owner.start(page.serve(), name="page")
        yield page, source
        owner.cancel()


async def opened(http: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """Open a link; return the headers of a browser with the session."""
    async with http.get(url, allow_redirects=False) as answer:
        assert answer.headers["Location"] == "/mesh"
        return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


async def test_it_opens_when_it_is_asked_for_and_has_only_the_page() -> None:
    async with page_of() as (page, _source), aiohttp.ClientSession() as http:
        link = await page.link(UiRequest())
        assert (await page.link_state(UiLinkRequest(id=link.id))).state == "waiting"
        assert link.lan_url == ""  # it is open to this machine alone
        browser = await opened(http, link.url)
        assert (await page.link_state(UiLinkRequest(id=link.id))).state == "opened"
        base = link.url.partition("/mesh")[0]
        async with http.get(f"{base}/mesh/state", headers=browser) as state:
            assert b'"number":0' in await next_event(state)
        for path in ("/", "/v1/models", "/health", "/metrics"):
            async with http.get(base + path) as answer:
                assert answer.status == 404
        async with http.get(f"{base}/mesh", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403
        again = await page.link(UiRequest())
        assert again.url.partition("/mesh")[0] == base and again.url != link.url


async def test_it_listens_on_loopback_alone() -> None:
    async with page_of() as (page, _):
        await page.link(UiRequest())
        assert page._server is not None
        assert {each.getsockname()[0] for each in page._server._api.sockets} == {"127.0.0.1"}


async def test_it_ends_when_nobody_has_used_it_and_opens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_server, "_LOOK_SECONDS", 0.01)
    async with page_of() as (page, _), aiohttp.ClientSession() as http:
        link = await page.link(UiRequest())
        server = page._server
        assert server is not None
        browser = await opened(http, link.url)
        clock, later = server.console._clock, 0.0
        server.console._clock = lambda: clock() + later
        # A window that is open is a use.
        base = link.url.partition("/mesh")[0]
        async with http.get(f"{base}/mesh/state", headers=browser) as state:
            await next_event(state)
            later = UNUSED_SECONDS
            await asyncio.sleep(0.05)
            assert not server.is_ending
        await until(lambda: not server.console._streams.total())
        assert server.console.unused_seconds < UNUSED_SECONDS
        # Half an hour after the last one it has gone.
        later = 2 * UNUSED_SECONDS
        await until(lambda: server.is_ending)
        assert all(each.fileno() < 0 for each in server._api.sockets)
        assert (await page.link_state(UiLinkRequest(id="0" * 12))).state == "ended"
        await opened(http, (await page.link(UiRequest())).url)


async def test_two_who_ask_at_once_get_one_server() -> None:
    async with page_of() as (page, _):
        first, second = await asyncio.gather(page.link(UiRequest()), page.link(UiRequest()))
        assert first.url.partition("/mesh")[0] == second.url.partition("/mesh")[0]


async def test_a_node_with_an_api_uses_its_port() -> None:
    gateway: Any = None
    async with page_of(lambda: gateway) as (page, _):
        with pytest.raises(UserError, match="is starting"):
            await page.link(UiRequest())
        link = SimpleNamespace(path="/mesh/open?once=x", name="n")
        console = SimpleNamespace(link=lambda: link, link_state=lambda _name: "waiting")
        started = SimpleNamespace(is_set=lambda: True)
        gateway = SimpleNamespace(console=console, url="http://127.0.0.1:8090", started=started)
        reply = await page.link(UiRequest())
        assert reply.url == "http://127.0.0.1:8090/mesh/open?once=x"
        assert reply.lan_url == "http://10.0.0.5:8090/mesh/open?once=x"
        assert (await page.link_state(UiLinkRequest(id=reply.id))).state == "waiting"
        assert page._server is None


async def test_the_port_is_closed_with_the_daemon() -> None:
    async with page_of() as (page, _):
        await page.link(UiRequest())
        server = page._server
    assert server is not None
    assert all(each.fileno() < 0 for each in server._api.sockets)
    assert isinstance(server._api.sockets[0], socket.socket)
