"""Who may see and use the page of the mesh: attacks over real HTTP, and the user's own browser."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from meshd.base.errors import Refused, UserError
from meshd.base.tasks import boot_seconds
from meshd.gateway import client_connections
from meshd.gateway import console as console_module
from meshd.gateway.console import END_PATH, FRESH_ACTIONS, MOST_BODY_BYTES, MOST_STREAMS, STATE_PATH, Console
from meshd.gateway.interface import ApiKey, GatewayConfig, MemberCaller
from meshd.gateway.sessions import (
    FRESH_SECONDS,
    LINK_SECONDS,
    MOST_LINKS,
    SESSION_SECONDS,
    cookie_name,
    cookie_values,
)
from meshd.link.net import local_addresses

from tests.conformance.run import until
from tests.process.console_fake import LINKED, OURS, Browser, FakeSource, code_of, next_event
from tests.process.gateway_fake import World, says, small_window, world

KEY = "k-0123456789abcdef"
LISTED = GatewayConfig(port=0, allowed_hosts=("box.lan",), allowed_origins=("http://app.example:3000",))
KEYED = GatewayConfig(port=0, allowed_hosts=("box.lan",), api_keys=(ApiKey(KEY),))
NO_SESSION = (401, "session")
FOREIGN = (403, "origin_not_allowed")
OTHER_USER = 65534


class Scene:
    """A node, its source, and the user's browser, which has a session unless `is_open` is False."""

    def __init__(self, here: World, source: FakeSource) -> None:
        self.here = here
        self.source = source
        self.browser = Browser(here)

    @property
    def console(self) -> Console:
        return self.here.gateway.console

    def later(self, seconds: float) -> None:
        """Let so much time pass, for links and sessions."""
        self.console._clock = lambda: boot_seconds() + seconds


@contextlib.asynccontextmanager
async def scene(*, config: GatewayConfig | None = None, is_open: bool = True) -> AsyncIterator[Scene]:
    source = FakeSource()
    async with world(says(200, {}), config=config, console=source) as here:
        made = Scene(here, source)
        made.console._page = {}  # whatever was built
        if is_open:
            assert (await made.browser.open()).headers["Location"] == "/mesh"
        yield made
        made.browser.close()


async def test_a_link_opens_the_page_and_a_session() -> None:
    async with scene(is_open=False) as here:
        answer = await here.browser.open()
        assert (answer.status, answer.headers["Location"]) == (303, "/mesh")
        [cookie] = answer.headers.getall("Set-Cookie")
        assert cookie.startswith(f"{cookie_name(here.here.port)}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/mesh", "Max-Age=43200"} <= set(cookie.split("; "))
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        state = await here.browser.state()
        assert state.headers["Content-Type"] == "text/event-stream"
        assert state.headers["Cache-Control"] == "no-store"
        assert await next_event(state) == b'event: state\ndata: {"number":0}\n\n'
        state.close()
        done = await here.browser.do("invite", {"uses": 1})
        assert (done.status, await done.json()) == (200, {"result": {"name": "invite"}})
        assert here.source.done == [("invite", {"uses": 1})]


async def test_a_slash_at_the_end_leads_to_the_page() -> None:
    async with scene(is_open=False) as here:
        answer = await here.browser.ask("GET", "/mesh/", {})
        assert (answer.status, answer.headers["Location"]) == (308, "/mesh")


async def test_a_stolen_link_that_was_opened_opens_nothing() -> None:
    async with scene(is_open=False) as here:
        link = here.console.link()
        await here.browser.open(link.path)
        thief = Browser(here.here)
        assert (await thief.open(link.path)).headers["Location"] == "/mesh#refused"
        assert thief.cookies == {}
        assert await code_of(await thief.state()) == NO_SESSION
        assert here.console.link_state(link.name) == "opened"


@pytest.mark.parametrize("secret", ["", "x", "A" * 43, "A" * 100_00, "%00", "é"])
async def test_a_guessed_link_opens_nothing(secret: str) -> None:
    async with scene(is_open=False) as here:
        answer = await here.browser.open(f"/mesh/open?once={secret}")
        assert (answer.status, answer.headers["Location"]) == (303, "/mesh#refused")
        assert here.browser.cookies == {}


async def test_a_late_link_opens_nothing() -> None:
    async with scene(is_open=False) as here:
        link = here.console.link()
        here.later(LINK_SECONDS)
        assert (await here.browser.open(link.path)).headers["Location"] == "/mesh#refused"
        assert here.console.link_state(link.name) == "ended"


async def test_of_a_thousand_links_a_few_are_kept() -> None:
    async with scene(is_open=False) as here:
        links = [here.console.link() for _ in range(1000)]
        waiting = [link for link in links if here.console.link_state(link.name) == "waiting"]
        assert waiting == links[-MOST_LINKS:]
        assert (await here.browser.open(links[0].path)).headers["Location"] == "/mesh#refused"
        assert (await here.browser.open(links[-1].path)).headers["Location"] == "/mesh"


async def test_a_prefetch_does_not_spend_the_link() -> None:
    async with scene(is_open=False) as here:
        link = here.console.link()
        answer = await here.browser.open(link.path, {"Sec-Purpose": "prefetch;prerender"})
        assert await code_of(answer) == (503, "busy")
        assert (await here.browser.open(link.path)).headers["Location"] == "/mesh"


@pytest.mark.parametrize("cookie", [None, "meshd-1=x", "NAME=" + "A" * 43, "NAME=", "NAME", ";=;" * 50])
async def test_without_a_session_nothing_is_shown_or_done(cookie: str | None) -> None:
    async with scene(is_open=False) as here:
        name = cookie_name(here.here.port)
        sent = {} if cookie is None else {"Cookie": cookie.replace("NAME", name)}
        assert await code_of(await here.browser.state({**OURS, **sent})) == NO_SESSION
        assert await code_of(await here.browser.do("invite", headers=sent)) == NO_SESSION
        assert here.source.done == [] and here.source.watching == 0


async def test_the_cookie_of_another_node_is_no_session_here() -> None:
    async with scene() as other, scene(is_open=False) as here:
        [cookie] = other.browser.cookies.values()
        for port in (here.here.port, other.here.port):
            here.browser.cookies = {cookie_name(port): cookie}
            assert await code_of(await here.browser.state()) == NO_SESSION


async def test_a_cookie_that_another_program_sets_does_not_hide_ours() -> None:
    async with scene() as here:
        [(name, cookie)] = here.browser.cookies.items()
        here.browser.cookies = {name: f"{'A' * 43}; {name}={cookie}"}
        assert (await here.browser.do("invite")).status == 200


async def test_a_session_ends_and_with_it_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "COMMENT_SECONDS", 0.05)
    async with scene() as here:
        state = await here.browser.state()
        await next_event(state)
        assert (await next_event(state)).startswith(b":")
        here.later(SESSION_SECONDS)
        while await next_event(state):
            pass
        assert await code_of(await here.browser.do("invite")) == NO_SESSION


async def test_a_browser_ends_its_session_in_all_its_windows() -> None:
    async with scene() as here:
        other = Browser(here.here)
        await other.open()
        streams = [await here.browser.state(), await here.browser.state(), await other.state()]
        for stream in streams:
            await next_event(stream)
        answer = await here.browser.ask("POST", END_PATH, {"Origin": here.here.url, **OURS})
        [cookie] = answer.headers.getall("Set-Cookie")
        assert answer.status == 204 and answer.headers["Cache-Control"] == "no-store"
        assert cookie.startswith(f"{cookie_name(here.here.port)}=;") and "Max-Age=0" in cookie
        assert [await next_event(stream) for stream in streams[:2]] == [b"", b""]
        # The copy of a cookie is worth nothing either; the other browser goes on.
        for asked in (here.browser.do("invite"), here.browser.state()):
            assert await code_of(await asked) == NO_SESSION
        again = await here.browser.ask("POST", END_PATH, {"Origin": here.here.url, **OURS})
        assert await code_of(again) == NO_SESSION and "Set-Cookie" not in again.headers
        await here.source.show({"number": 1})
        assert b'"number":1' in await next_event(streams[2])
        other.close()


ATTACKERS: Mapping[str, dict[str, str]] = {
    "another site": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    "a page of another port": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
    "an allowed page": {"Origin": "http://app.example:3000", "Sec-Fetch-Site": "cross-site"},
    "an extension": {"Origin": "chrome-extension://abcdef", "Sec-Fetch-Site": "none"},
    "a sandboxed frame": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "an old browser": {"Origin": "http://localhost:1"},
    "our origin by another scheme": {"Origin": "file://127.0.0.1"},
}


@pytest.mark.parametrize("who", ATTACKERS)
async def test_another_page_can_neither_act_nor_watch(who: str) -> None:
    async with scene(config=LISTED) as here:
        headers = {"Content-Type": "application/json", **ATTACKERS[who]}
        for method, path in (("POST", "/mesh/do/invite"), ("POST", END_PATH), ("GET", STATE_PATH)):
            answer = await here.browser.ask(method, path, headers, data=b"{}")
            assert await code_of(answer) == FOREIGN
            assert "Access-Control-Allow-Credentials" not in answer.headers
        assert here.source.done == [] and here.source.watching == 0


async def test_an_action_without_an_origin_is_refused() -> None:
    async with scene() as here:
        headers = {"Content-Type": "application/json"}
        assert (
            await code_of(await here.browser.ask("POST", "/mesh/do/invite", headers, data=b"{}")) == FOREIGN
        )
        assert here.source.done == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
@pytest.mark.parametrize("site", ["cross-site", "same-origin"])
async def test_a_form_does_nothing(kind: str, site: str) -> None:
    async with scene() as here:
        origin = here.here.url if site == "same-origin" else "https://evil.example"
        headers = {
            "Content-Type": kind,
            "Origin": origin,
            "Sec-Fetch-Site": site,
            "Sec-Fetch-Mode": "navigate",
        }
        answer = await here.browser.ask("POST", "/mesh/do/invite", headers, data=b'{"uses": 1, "x": "="}')
        assert (await code_of(answer))[0] == (415 if site == "same-origin" else 403)
        assert here.source.done == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/mesh/do/invite", END_PATH])
async def test_an_action_is_a_post(path: str, method: str) -> None:
    async with scene() as here:
        answer = await here.browser.ask(method, path, {"Origin": here.here.url, **OURS})
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert here.source.done == []
        assert (await here.browser.do("invite")).status == 200


@pytest.mark.parametrize("path", ["/mesh/open", "/mesh/state"])
@pytest.mark.parametrize("method", ["HEAD", "POST"])
async def test_link_and_state_are_read_alone(path: str, method: str) -> None:
    async with scene(is_open=False) as here:
        link = here.console.link().path
        answer = await here.browser.ask(method, link if path == "/mesh/open" else path, {})
        assert answer.status == 405
        assert (await here.browser.open(link)).headers["Location"] == "/mesh"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example"])
async def test_a_name_that_was_rebound_to_us_gets_nothing(host: str) -> None:
    async with scene() as here:
        port = str(here.here.port)
        for path in ("/mesh", "/mesh/open?once=x", "/mesh/state", "/mesh/do/invite"):
            sent = {"Host": host.replace("PORT", port), "Origin": f"http://{host.replace('PORT', port)}"}
            method = "POST" if "/do/" in path else "GET"
            answer = await here.browser.ask(method, path, {**OURS, **sent})
            assert await code_of(answer) == (403, "host_not_allowed")
        assert here.source.done == []


@pytest.mark.parametrize("dest", ["iframe", "image", "script", "object"])
async def test_another_site_can_link_to_the_page_and_not_include_it(dest: str) -> None:
    async with scene(is_open=False) as here:
        included = {**LINKED, "Sec-Fetch-Dest": dest}
        link = here.console.link().path
        for path in ("/mesh", link):
            assert await code_of(await here.browser.ask("GET", path, included)) == (403, "site_not_allowed")
            assert (await here.browser.ask("GET", path, LINKED)).status in (303, 404)  # no page was built


async def from_another_user(here: World, browser: Browser, path: str) -> tuple[int, str]:
    """Ask, with the browser's cookies, through a socket of another user of this machine."""

    def made(address: tuple[Any, ...]) -> socket.socket:
        os.seteuid(OTHER_USER)
        try:
            return socket.socket(address[0], address[1], address[2])
        finally:
            os.seteuid(0)

    connector = aiohttp.TCPConnector(socket_factory=made)
    async with aiohttp.ClientSession(connector=connector) as http:
        thief = Browser(World(here.gateway, here.upstream, here.server, http), dict(browser.cookies))
        return await code_of(await thief.ask("GET", path, OURS))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket of another user")
async def test_a_cookie_in_another_users_hands_is_worth_nothing() -> None:
    async with scene() as here:
        assert await from_another_user(here.here, here.browser, STATE_PATH) == NO_SESSION
        assert here.source.watching == 0
        (await here.browser.state()).close()  # the user's own browser goes on


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a socket of another user")
async def test_a_session_whose_user_was_not_told_is_for_no_other_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that began on another machine: its cookie went over the network, and needs a key there."""

    async def untold(*_ends: object) -> None:
        return None

    async with scene(is_open=False) as here:
        with monkeypatch.context() as patch:
            patch.setattr(here.console._owners, "user_of", untold)
            await here.browser.open()
        assert await from_another_user(here.here, here.browser, STATE_PATH) == NO_SESSION
        assert here.source.watching == 0


BAD_BODIES = {
    "too large": (b'{"x": "' + b"a" * MOST_BODY_BYTES + b'"}', 413),
    "no JSON": (b"{", 400),
    "a list": (b"[]", 400),
    "nothing": (b"", 400),
    "deep": (b'{"x":' * 5000 + b"1" + b"}" * 5000, 400),
    "another encoding": (json.dumps({}).encode("utf-16"), 400),
}


@pytest.mark.parametrize("what", BAD_BODIES)
async def test_a_body_that_is_no_small_object_is_refused(what: str) -> None:
    async with scene() as here:
        body, status = BAD_BODIES[what]
        headers = {"Origin": here.here.url, **OURS, "Content-Type": "application/json"}
        answer = await here.browser.ask("POST", "/mesh/do/invite", headers, data=body)
        assert (await code_of(answer))[0] == status
        assert here.source.done == []
        assert (await here.browser.do("invite")).status == 200


@pytest.mark.parametrize("name", ["", "a/b", "A", "x" * 41, "invite%0a", "..%2finvite"])
async def test_a_name_that_is_none_is_refused(name: str) -> None:
    async with scene() as here:
        assert (await here.browser.do(name)).status == 404
        assert here.source.done == []


@pytest.mark.parametrize("name", sorted(FRESH_ACTIONS))
async def test_what_cannot_be_undone_needs_a_new_link(name: str) -> None:
    async with scene() as here:
        assert (await here.browser.do(name)).status == 200
        here.later(FRESH_SECONDS)
        assert await code_of(await here.browser.do(name)) == (403, "fresh_link")
        assert (await here.browser.do("invite")).status == 200
        here.later(0.0)
        await here.browser.open()
        assert (await here.browser.do(name)).status == 200
        assert [done for done, _ in here.source.done].count(name) == 2


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UserError("wrong", hint="do it right"), 400, "user"),
        (Refused("no", code="denied"), 409, "denied"),
        (ZeroDivisionError("a bug"), 500, "internal_error"),
    ],
)
async def test_a_failed_action_is_explained_and_ends_nothing(
    error: Exception, status: int, code: str
) -> None:
    async with scene() as here:
        here.source.raises = error
        answer = await here.browser.do("invite")
        assert await code_of(answer) == (status, code)
        said = (await answer.json())["error"]
        assert said["hint"] == getattr(error, "hint", "")
        assert "a bug" not in said["message"]
        here.source.raises = None
        assert (await here.browser.do("invite")).status == 200


async def test_a_source_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "_AGAIN_SECONDS", 0.01)
    async with scene() as here:
        here.source.raises = ZeroDivisionError("a bug")
        state = await here.browser.state()
        here.source.raises = None
        assert b'"number":0' in await next_event(state)


async def test_a_state_that_is_no_json_leaves_no_watch_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "_AGAIN_SECONDS", 0.2)
    async with scene() as here:
        state = await here.browser.state()
        await next_event(state)
        await here.source.show({"number": float("nan")})
        await until(lambda: not here.source.watching)
        await here.source.show({"number": 2})
        assert b'"number":2' in await next_event(state)
        assert here.source.watching == 1


async def test_all_windows_see_one_state_and_the_last_one_ends_it() -> None:
    async with scene() as here:
        windows = [await here.browser.state() for _ in range(MOST_STREAMS)]
        for window in windows:
            assert b'"number":0' in await next_event(window)
        assert here.source.watching == 1
        assert await code_of(await here.browser.state()) == (503, "busy")
        await here.source.show({"number": 1})
        for window in windows:
            assert b'"number":1' in await next_event(window)
            window.close()
        while here.source.watching:
            assert (await here.browser.do("invite")).status == 200
        late = await here.browser.state()
        assert b'"number":1' in await next_event(late)


async def test_a_slow_reader_skips_states_and_holds_up_nobody() -> None:
    async with scene() as here:
        connector = aiohttp.TCPConnector(socket_factory=small_window)
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1 << 12) as http:
            gateway = here.here
            slow = Browser(
                World(gateway.gateway, gateway.upstream, gateway.server, http), dict(here.browser.cookies)
            )
            late, quick = await slow.state(), await here.browser.state()
            await next_event(quick)
            for number in range(1, 101):
                await here.source.show({"number": number, "ballast": "x" * 200_000})
                assert b'"number":%d,' % number in await next_event(quick)
            seen: list[int] = []
            while not seen or seen[-1] != 100:
                event = await next_event(late)
                seen.append(json.loads(event.partition(b"data: ")[2])["number"])
            assert seen == sorted(set(seen)) and len(seen) < 50
            slow.close()


async def test_from_elsewhere_a_key_is_needed_as_well() -> None:
    async with scene(config=KEYED) as here:
        port = here.here.port
        away = {"Host": f"box.lan:{port}", "Origin": f"http://box.lan:{port}"}
        assert (await here.browser.do("invite")).status == 200  # this machine's own browser needs none
        assert await code_of(await here.browser.do("invite", headers=away)) == (401, "invalid_api_key")
        wrong = {**away, "Authorization": "Bearer wrong-key"}
        assert await code_of(await here.browser.do("invite", headers=wrong)) == (401, "invalid_api_key")
        right = {**away, "Authorization": f"Bearer {KEY}"}
        assert (await here.browser.do("invite", headers=right)).status == 200
        here.browser.cookies.clear()
        assert await code_of(await here.browser.do("invite", headers=right)) == NO_SESSION


async def test_from_elsewhere_a_node_without_keys_refuses() -> None:
    async with scene(config=LISTED) as here:
        away = {"Host": "box.lan", "Origin": "http://box.lan"}
        assert await code_of(await here.browser.do("invite", headers=away)) == (401, "invalid_api_key")
        assert here.source.done == []


@pytest.mark.skipif(not local_addresses.hosts(), reason="this machine has no address but loopback's")
async def test_from_another_address_a_key_is_needed_whatever_it_calls_us() -> None:
    config = GatewayConfig(host="0.0.0.0", port=0, api_keys=(ApiKey(KEY),))
    async with scene(config=config) as here:
        address = next(host for host in local_addresses.hosts() if ":" not in host)
        for host in (address, "127.0.0.1"):
            place = f"{host}:{here.here.port}"
            sent = {"Host": place, "Origin": f"http://{place}", **OURS, "Content-Type": "application/json"}
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in here.browser.cookies.items())
            url = f"http://{address}:{here.here.port}/mesh/do/invite"
            # The session began on loopback, so it is for this user's programs there.
            async with here.here.http.post(url, headers=sent, data=b"{}") as answer:
                assert await code_of(answer) == NO_SESSION
            link = f"http://{address}:{here.here.port}{here.console.link().path}"
            async with here.here.http.get(link, headers={"Host": place}, allow_redirects=False) as answer:
                sent["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
            async with here.here.http.post(url, headers=sent, data=b"{}") as answer:
                assert await code_of(answer) == (401, "invalid_api_key")
            sent["Authorization"] = f"Bearer {KEY}"
            async with here.here.http.post(url, headers=sent, data=b"{}") as answer:
                assert answer.status == 200


@pytest.mark.parametrize("knows", [b"key", None])
async def test_a_member_needs_a_link_as_well(knows: bytes | None) -> None:
    """Members come over the mesh, which knows them; where there are keys, they have to know one."""
    async with scene(config=KEYED) as here:
        [(name, cookie)] = here.browser.cookies.items()

        async def ask(sent: str) -> bytes:
            ours, theirs = socket.socketpair()
            await here.here.gateway.take(theirs, MemberCaller(knows))
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            head = f"POST /mesh/do/invite HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n{sent}"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            line = await reader.readline()
            writer.close()
            return line.split()[1]

        assert await ask("") == b"401"
        assert await ask(f"Cookie: {name}={cookie}\r\n") == b"401"  # of a program on loopback
        answer = await here.browser.open()
        opened = cookie_values([answer.headers["Set-Cookie"]], name)
        session = here.console._sessions.find(opened, boot_seconds())
        assert session is not None
        here.console._sessions._sessions[session.digest] = replace(session, uid=None)  # as if from elsewhere
        assert await ask(f"Cookie: {name}={opened[0]}\r\n") == (b"200" if knows else b"401")


async def test_a_node_that_ends_ends_its_streams() -> None:
    async with scene() as here:
        state = await here.browser.state()
        await next_event(state)
        here.console.close()
        assert await next_event(state) == b""
        assert await code_of(await here.browser.state()) == (503, "busy")


async def test_a_stream_outlives_the_seconds_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene() as here:
        state = await here.browser.state()
        await next_event(state)
        monkeypatch.setattr(client_connections, "SWEEP_SECONDS", 0.01)
        monkeypatch.setattr(client_connections, "STRANGER_SECONDS", 0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.here.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""  # a younger one, of a stranger, was closed
        writer.close()
        await here.source.show({"number": 1})
        assert b'"number":1' in await next_event(state)
