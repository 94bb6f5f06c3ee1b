"""A service of one node used on another: real daemons, a real web server, the real command line."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
from meshd.fleet.fleet import LocalNode

from tests.e2e.nodes import Fleet, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

PAGE = bytes(range(256)) * 20_000  # 5 MB: many windows' worth
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class _Pages(BaseHTTPRequestHandler):
    """Answers every GET with the page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is for its failures."""


@contextmanager
def web_server() -> Iterator[int]:
    """Its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def raw_server(heard: list[str]) -> AsyncIterator[int]:
    """Its port. Answers what it got, after the client's end; a client that begins with `R` is reset."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(1)
            heard.append("begun")
            if first == b"R":
                sock = writer.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            else:
                writer.write((first + await reader.read()).upper())
                await writer.drain()
                heard.append("end")
        except ConnectionResetError:
            heard.append("reset")
        finally:
            writer.transport.abort() if first == b"R" else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def said(node: LocalNode, *words: str) -> str:
    """Return what a verb prints."""
    done = await cli(node.spec.home, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def refused(node: LocalNode, *words: str) -> str:
    """Return what a verb says when it fails."""
    done = await cli(node.spec.home, *words)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


async def fetch(listen: str) -> bytes:
    def get() -> bytes:
        with urlopen(f"http://{listen}/", timeout=30) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(get)


async def all_connected(*nodes: LocalNode) -> None:
    for node in nodes:
        await node.until(
            lambda status: sum(peer.state == "connected" for peer in status.peers) == len(nodes) - 1
        )


def test_a_web_server_of_another_node_and_who_may_not_reach_it(tmp_path: Path) -> None:
    async def check(port: int) -> None:
        async with Fleet(tmp_path) as fleet:
            _, (owner, friend, other) = await fleet.workers(None, None, None)
            await all_connected(owner, friend, other)
            target = f"127.0.0.1:{port}"
            await said(owner, "expose", "web", target, "--to", "worker-1")

            why = await refused(other, "tunnel", "open", "worker-0", "web")
            assert "no service `web` is exposed to this node" in why and "--to" in why
            assert "no service `rpc`" in await refused(friend, "tunnel", "open", "worker-0", "rpc")

            listen = await said(friend, "tunnel", "open", "worker-0", "web")
            assert await fetch(listen) == PAGE
            [shown] = json.loads(await said(friend, "status", "--json"))["tunnels"]
            assert (shown["service"], shown["listen"], shown["user"]) == ("web", listen, True)
            assert shown["received_bytes"] > len(PAGE)

            for node in (owner, friend):  # all of it is kept
                await node.stop()
                await node.start()
            await all_connected(owner, friend, other)
            assert await fetch(listen) == PAGE
            assert "worker-1" in await said(owner, "expose", "ls")

            await said(owner, "expose", "rm", "web")
            with pytest.raises(OSError):
                await fetch(listen)
            assert "no service `web`" in await said(friend, "tunnel", "ls")
            assert listen in await said(friend, "tunnel", "close", "worker-0", "web")
            with pytest.raises(OSError):
                await fetch(listen)

    with web_server() as port:
        play(check(port))


def test_half_close_and_reset_pass_through(tmp_path: Path) -> None:
    async def check() -> None:
        heard: list[str] = []
        async with raw_server(heard) as port, Fleet(tmp_path) as fleet:
            _, (owner, friend) = await fleet.workers(None, None)
            await all_connected(owner, friend)
            await said(owner, "expose", "raw", f"127.0.0.1:{port}", "--to", "worker-1")
            listen = await said(friend, "tunnel", "open", "worker-0", "raw")
            host, _, at = listen.rpartition(":")

            reader, writer = await asyncio.open_connection(host, int(at))
            writer.write(b"half a word")
            writer.write_eof()
            assert await reader.read() == b"HALF A WORD"
            writer.close()
            await writer.wait_closed()
            assert heard == ["begun", "end"]

            reader, writer = await asyncio.open_connection(host, int(at))
            writer.write(b"R")
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.transport.abort()

            _, writer = await asyncio.open_connection(host, int(at))
            writer.write(b"then gone")
            while len(heard) < 4:  # noqa: ASYNC110 - play() has a deadline
                await asyncio.sleep(0.01)
            writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
            while heard[-1] != "reset":  # noqa: ASYNC110 - play() has a deadline
                await asyncio.sleep(0.01)

    play(check())
