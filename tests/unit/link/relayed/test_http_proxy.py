"""Ways to a relay: straight, or through the HTTP proxy that the environment names."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from ipaddress import ip_address

import pytest
from meshd.base.errors import Broken, UserError
from meshd.link.relayed.http_proxy import HttpProxy, connect, proxy_for, read_reply
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Here, Source, dialable, trusted

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"https_proxy": ""}, None),
        ({"https_proxy": "http://proxy:3128"}, HttpProxy("proxy", 3128)),
        ({"HTTPS_PROXY": "proxy:3128"}, HttpProxy("proxy", 3128)),
        ({"https_proxy": "http://one:1", "HTTPS_PROXY": "http://two:2"}, HttpProxy("one", 1)),
        ({"https_proxy": "http://proxy"}, HttpProxy("proxy", 80)),
        ({"https_proxy": "http://[2001:db8::1]:8080/"}, HttpProxy("2001:db8::1", 8080)),
        (
            {"https_proxy": "http://me:p%40ss@proxy:1"},
            HttpProxy("proxy", 1, "Basic " + base64.b64encode(b"me:p@ss").decode()),
        ),
    ],
)
def test_the_proxy_of_the_environment(environ: Mapping[str, str], expected: HttpProxy | None) -> None:
    assert proxy_for("relay.example.org", 443, environ) == expected


@pytest.mark.parametrize(
    ("without", "direct"),
    [
        ("*", True),
        ("relay.example.org", True),
        ("RELAY.example.ORG", True),
        (".example.org", True),
        ("example.org, other", True),
        ("*.example.org", True),
        ("relay.example.org:443", True),
        ("relay.example.org:80", False),
        ("ample.org", False),
        ("10.0.0.0/8", False),
        ("", False),
    ],
)
def test_hosts_that_need_no_proxy(without: str, direct: bool) -> None:
    environ = {"https_proxy": "http://proxy:1", "no_proxy": without}
    assert (proxy_for("relay.example.org", 443, environ) is None) == direct


@pytest.mark.parametrize(("host", "direct"), [("127.0.0.1", True), ("localhost", True), ("10.1.2.3", True)])
def test_this_machine_and_its_networks_need_none(host: str, direct: bool) -> None:
    environ = {"https_proxy": "http://proxy:1", "no_proxy": "10.0.0.0/8"}
    assert (proxy_for(host, 443, environ) is None) == direct


@pytest.mark.parametrize("text", ["https://proxy:1", "socks5://proxy:1", "http://", "http://proxy:x"])
def test_a_proxy_that_cannot_be_used_is_named(text: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        proxy_for("relay.example.org", 443, {"https_proxy": text})


def test_replies_are_judged() -> None:
    read_reply(b"HTTP/1.0 200 OK\r\n\r\n", "p")
    with pytest.raises(Broken, match=r"refused: HTTP/1[.]1 407") as failed:
        read_reply(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "p")
    assert "password" in failed.value.hint
    with pytest.raises(Broken, match="not an HTTP proxy"):
        read_reply(b"SSH-2.0-x\r\n\r\n", "p")
    with pytest.raises(Broken, match="unexpected data"):
        read_reply(b"HTTP/1.1 200 OK\r\n\r\nmore", "p")


@contextlib.asynccontextmanager
async def proxy(reply: bytes, heard: list[bytes]) -> AsyncIterator[int]:
    """A server that answers the first request with `reply`, then echoes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(reply)
            if b" 200 " in reply:
                writer.write(await reader.readexactly(5))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_a_connection_through_a_proxy() -> None:
    heard: list[bytes] = []
    async with proxy(b"HTTP/1.1 200 OK\r\n\r\n", heard) as port:
        environ = {"https_proxy": f"http://me:secret@{LOOPBACK}:{port}"}
        sock = await connect("relay.example.org:443", environ, trusted)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"hello")
        assert await loop.sock_recv(sock, 100) == b"hello"
        sock.close()
    (request,) = heard
    assert request.startswith(b"CONNECT relay.example.org:443 HTTP/1.1\r\n")
    assert b"\r\nHost: relay.example.org:443\r\n" in request
    assert b"Proxy-Authorization: Basic " in request


@pytest.mark.parametrize("place", ["169.254.169.254:80", "10.0.0.5:22", "[fd00:ec2::254]:80"])
async def test_a_proxy_is_not_asked_for_what_may_not_be_dialled(place: str) -> None:
    """Check a place though the peer whose record names it need not reach it, as the proxy does."""

    def may_dial(candidates: Sequence[Candidate]) -> Sequence[Dialable]:
        return dialable(
            candidates, source=Source.RECORD, here=Here(outside=frozenset({ip_address("203.0.113.1")}))
        )

    heard: list[bytes] = []
    async with proxy(b"HTTP/1.1 200 OK\r\n\r\n", heard) as port:
        environ = {"https_proxy": f"http://{LOOPBACK}:{port}"}
        with pytest.raises(OSError, match="may be dialled"):
            await connect(place, environ, may_dial)
        assert heard == []
        sock = await connect("198.51.100.7:443", environ, lambda candidates: trusted(candidates))  # noqa: PLW0108
        sock.close()
    assert heard[0].startswith(b"CONNECT 198.51.100.7:443 HTTP/1.1\r\n")


@pytest.mark.parametrize("reply", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b"", b"x" * 9000])
async def test_a_proxy_that_does_not_want_to(reply: bytes) -> None:
    async with proxy(reply, []) as port:
        with pytest.raises(Broken):
            environ = {"https_proxy": f"http://{LOOPBACK}:{port}"}
            await connect("relay.example.org:443", environ, trusted)


async def test_a_name_is_looked_up_and_every_address_tried() -> None:
    async with proxy(b"HTTP/1.1 200 OK\r\n\r\n", []) as port:
        sock = await connect(f"localhost:{port}", {}, trusted)
        sock.close()
