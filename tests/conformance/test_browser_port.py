"""Browsers at the mesh port: a page and a WebSocket are there; what else may come ends its own connection."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from meshd.base.peer_limits import CALLS_FAILED
from meshd.base.unproven_connections import MAX_UNPROVEN_OF_ONE
from meshd.identity.keys import PeerId
from meshd.identity.membership import Chain, Role, issue
from meshd.link.browser import port as port_module
from meshd.link.browser.entrance import Browsers
from meshd.link.browser.port import BrowserPort, page_place
from meshd.link.interface import BrowserChannel, Link
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.wire.address import Candidate
from meshd.wire.browser import DATA, SIGNAL_PATH, BrowserWelcome
from meshd.wire.dialable import trusted
from meshd.wire.hello import NotAdmitted, Welcome
from meshd.wire.limits import MAX_UNPROVEN_BYTES

from tests.conformance.browsers import KEYS, OPENED, Page
from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh, fresh_key
from tests.conformance.run import run, until
from tests.conformance.test_caller_rates import Frozen
from tests.unit.wire.test_websocket import BINARY, masked

LOOPBACK = "127.0.0.1"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\nConnection: close\r\n\r\n" + os.urandom(60_000)
GET = b"GET / HTTP/1.1\r\nHost: 192.168.1.5:17430\r\n\r\n"


@dataclass
class Scene:
    """A node at a port of loopback that awaits browsers, and one of its members."""

    mesh: TestMesh
    node: Node
    member: Node
    listener: TcpListener
    port: BrowserPort
    links: "asyncio.Queue[Link]"
    callers: Frozen

    @property
    def place(self) -> str:
        return f"{LOOPBACK}:{self.listener.port}"

    async def ask(self, *pieces: bytes) -> bytes:
        """Send the pieces; return all that comes until the end."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.listener.port)
        try:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            answer = bytearray()
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(1 << 16):
                    answer += chunk
            return bytes(answer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def still_takes_links(self) -> None:
        """A member connects: whatever strangers do ends their own connections only."""
        dialled = await TcpDialer(self.member.now).dial(
            self.node.peer, trusted([Candidate(LOOPBACK, self.listener.port)])
        )
        taken = await self.links.get()
        await dialled.aclose()
        await taken.aclose()


@contextlib.asynccontextmanager
async def scene(*, awaited: bool = True) -> AsyncIterator[Scene]:
    mesh = TestMesh()
    node, member = mesh.node(), mesh.node()
    callers = Frozen()
    node.handshake = replace(node.handshake, callers=callers)

    async def echo(channel: BrowserChannel) -> None:
        while True:
            await channel.send(await channel.receive())

    async def page() -> bytes:
        return PAGE

    def admit(peer: PeerId, invite_id: bytes) -> Welcome | NotAdmitted:
        certificate = issue(
            signer=mesh.root,
            mesh=mesh.mesh,
            node=peer,
            roles={Role.USE},
            serial=bytes(16),
            invite=invite_id,
            issued_at=0,
        )
        return Welcome(Chain((certificate,), mesh.root.peer).encode(), (), ())

    browsers = Browsers(
        key=node.now().credentials.key,
        name="ann",
        invites=lambda invite_id: KEYS if invite_id == KEYS.invite_id else None,
        admit=admit,
        why_banned=lambda _chain: None,
        stun=tuple,
        meetings=None,
        random=secrets.token_bytes,
    )
    browsers.serve_channel = echo
    port = BrowserPort(browsers, lambda: awaited)
    port.read_page = page
    listener = TcpListener(node.now, host=LOOPBACK)
    listener.visitors = port
    listener.open()
    try:
        async with serving(listener) as (accepted, _):
            yield Scene(mesh, node, member, listener, port, accepted, callers)
    finally:
        listener.close()
        while OPENED:
            await OPENED.pop().gone()


def request(path: str, *fields: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", "Host: x", *fields, "")).encode()


async def test_the_page_is_there_in_one_piece_or_several() -> None:
    async with scene() as here:
        assert await here.ask(GET) == PAGE
        assert await here.ask(request("/?from=qr")) == PAGE
        assert await here.ask(GET[:1], GET[1:9], GET[9:]) == PAGE
        await here.still_takes_links()


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "//",
        "/mesh/remote.html",
        "/mesh",
        "/../../etc/passwd",
        "/%2e%2e/",
        "*",
        "http://x/",
        "",
    ],
)
async def test_nothing_else_is_there(path: str) -> None:
    async with scene() as here:
        here.port.read_page = _unasked
        assert b"404" in await here.ask(request(path))
        await here.still_takes_links()


async def _unasked() -> bytes:
    raise AssertionError("the page is not at that path")


@pytest.mark.parametrize(
    "asked",
    [
        b"POST / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"G\0\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GETX / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 80 + b"\r\n",
        b"GET / HTTP/1.1\r\nCookie: " + b"x" * 4 * MAX_UNPROVEN_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nCookie: " + b"x" * 40 * MAX_UNPROVEN_BYTES,
        request(SIGNAL_PATH),
        request(SIGNAL_PATH, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
    ],
)
async def test_what_is_no_request_for_it_ends_its_own_connection(asked: bytes) -> None:
    async with scene() as here:
        assert b"200 OK" not in await here.ask(asked)
        await until(lambda: here.listener.unproven == 0)
        assert await here.ask(GET) == PAGE
        await here.still_takes_links()


async def test_a_request_that_comes_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "REQUEST_SECONDS", 0.3)
    async with scene() as here:
        assert await here.ask(GET[:-2]) == b""
        await here.still_takes_links()


async def test_a_page_that_is_not_taken_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "ANSWER_SECONDS", 0.3)

    async def endless() -> bytes:
        return PAGE + bytes(64 << 20)

    async with scene() as here:
        here.port.read_page = endless
        _reader, writer = await asyncio.open_connection(LOOPBACK, here.listener.port, limit=1)
        writer.write(GET)
        await until(lambda: here.listener.unproven == 1)
        await until(lambda: here.listener.unproven == 0)
        await here.still_takes_links()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_many_connections_have_the_places_of_strangers_and_a_browser_still_gets_in() -> None:
    async with scene() as here:
        opened = [
            await asyncio.open_connection(LOOPBACK, here.listener.port)
            for _ in range(3 * MAX_UNPROVEN_OF_ONE)
        ]
        for _, writer in opened:
            writer.write(GET[:-2])
        await until(lambda: sum(reader.at_eof() for reader, _ in opened) == 2 * MAX_UNPROVEN_OF_ONE)
        assert here.listener.unproven == MAX_UNPROVEN_OF_ONE
        page = await Page.open(here.place, here.node.peer, fresh_key(), path=SIGNAL_PATH)
        assert isinstance(page.answer, BrowserWelcome)
        await here.still_takes_links()
        for _, writer in opened:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_an_address_that_only_asks_for_pages_is_ignored_for_a_while() -> None:
    async with scene() as here:
        now = asyncio.get_running_loop().time
        asked = 0
        while here.callers.hears(LOOPBACK, now()):
            assert await here.ask(GET) == PAGE
            asked += 1
        assert asked >= CALLS_FAILED.burst
        assert await here.ask(GET) == b""


def test_a_browser_talks_over_its_websocket_and_takes_no_strangers_place() -> None:
    async def work() -> None:
        async with scene() as here:
            key = fresh_key()
            page = await Page.open(here.place, here.node.peer, key, path=SIGNAL_PATH)
            assert isinstance(page.answer, BrowserWelcome)
            assert here.listener.unproven == 0
            for size in (1, 16 << 10):
                await page.put(DATA, bytes(size))
                assert await page.take() == (DATA, bytes(size))
            await here.still_takes_links()
            page.close()
            assert here.callers.hears(LOOPBACK, asyncio.get_running_loop().time())

    run(work())


@pytest.mark.parametrize("payload", [bytes(4) + bytes(64), (1 << 20).to_bytes(4, "big"), os.urandom(4000)])
async def test_a_websocket_without_an_invite_is_ended_and_counted(payload: bytes) -> None:
    opening = request(
        SIGNAL_PATH,
        *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    async with scene() as here:
        answered = 0
        while here.callers.hears(LOOPBACK, asyncio.get_running_loop().time()):
            answered += b"101 Switching" in await here.ask(opening, masked(BINARY, payload))
        assert answered >= CALLS_FAILED.burst


async def test_without_a_browser_to_come_no_http_is_answered() -> None:
    async with scene(awaited=False) as here:
        assert b"HTTP" not in await here.ask(GET)
        await here.still_takes_links()


async def test_only_the_own_network_is_answered() -> None:
    async with scene() as here:
        assert here.port.expects("192.168.1.5", "192.168.1.7")
        assert here.port.expects("2001:db8::5", "2001:db8::7")
        for local, remote in (("192.168.1.5", "203.0.113.9"), ("203.0.113.5", "203.0.113.9"), ("", "x")):
            assert not here.port.expects(local, remote)
        here.port.read_page = None
        assert not here.port.expects("192.168.1.5", "192.168.1.7")


@pytest.mark.parametrize(
    ("hosts", "place"),
    [
        (["fd00::5", "192.168.1.5", "10.0.0.1", "127.0.0.1", "::1"], "192.168.1.5:17430"),
        (["fd00::5", "203.0.113.9", "127.0.0.1"], "[fd00::5]:17430"),
        (["169.254.7.7", "127.0.0.1"], "169.254.7.7:17430"),
        (["203.0.113.9", "127.0.0.1"], ""),
        (["127.0.0.1"], "127.0.0.1:17430"),
        ([], ""),
    ],
)
def test_the_place_of_the_page_is_one_in_this_network(hosts: list[str], place: str) -> None:
    assert page_place([Candidate(host, 17430) for host in hosts]) == place
    assert page_place([Candidate(host, 17430, "udp") for host in hosts]) == ""
