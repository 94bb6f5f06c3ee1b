"""The server around the API: its port, its start, its end."""

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, first_error
from meshd.gateway.access import ApiPort
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.request import OneModel
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    Answer,
    FakeServer,
    FakeUpstream,
    begin_stream,
    chunk,
    gateway_of,
    listening,
    open_files,
    pours,
    raw_post,
    says,
    serving,
    small_window,
    world,
)


def start_error(config: GatewayConfig) -> UserError:
    """The error with which an API ends at its start."""

    async def scenario() -> UserError:
        with pytest.raises(UserError) as caught:
            async with asyncio.timeout(10):
                await ApiPort.claim(config)
        return caught.value

    return asyncio.run(scenario())


def test_a_taken_port_is_named_with_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = start_error(GatewayConfig(port=port))
        assert error.what.startswith(f"port `{port}` on `127.0.0.1` is taken by `")
        assert error.what.endswith(f"(pid {os.getpid()})")
        assert "--port" in error.hint


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_keys_are_demanded(host: str) -> None:
    error = start_error(GatewayConfig(host=host, port=0))
    assert "api-key-file" in error.hint


async def test_beyond_loopback_with_keys_it_listens_and_knows_addresses() -> None:
    config = GatewayConfig(host="0.0.0.0", port=0, api_keys=(ApiKey("a-long-key"),))

    async with world(says(200, {}), config=config) as here:
        assert here.url == f"http://127.0.0.1:{here.port}"
        for host, status in (("192.168.7.7", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            async with here.http.get(f"{here.url}/health", headers={"Host": host}) as answer:
                assert answer.status == status


@pytest.mark.parametrize("host", ["no such host", "203.0.113.9", "", "a" * 300])
def test_a_host_that_is_not_ours_is_an_error(host: str) -> None:
    config = GatewayConfig(host=host, port=0, api_keys=(ApiKey("a-long-key"),))
    assert start_error(config).hint


@pytest.mark.parametrize(
    "config", [GatewayConfig(allowed_hosts=("http://x",)), GatewayConfig(allowed_origins=("x",))]
)
def test_allowed_names_are_checked_at_the_start(config: GatewayConfig) -> None:
    assert "is not a" in start_error(config).what


async def test_localhost_listens_on_every_loopback_address_with_one_port() -> None:
    async with world(says(200, {}), config=GatewayConfig(host="localhost", port=0)) as here:
        assert here.url == f"http://localhost:{here.port}"
        async with here.http.get(f"http://127.0.0.1:{here.port}/health") as answer:
            assert answer.status == 200


async def test_it_listens_at_once_while_the_model_is_away() -> None:
    upstream = FakeUpstream(
        Path("/nowhere/s"), readiness=Readiness(ModelState.WAITING, "waiting for workers")
    )
    gateway = await gateway_of(GatewayConfig(port=0), OneModel(upstream))
    async with asyncio.timeout(10), serving(gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"waiting for workers" in answer


async def stop_with_a_stream(
    answer: Answer, client: Callable[[FakeServer, int], Awaitable[None]]
) -> FakeUpstream:
    """Start a gateway, let `client` begin a stream, stop; nothing of it may stay. Gives the upstream."""
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        server, upstream = FakeServer(answer), FakeUpstream(Path(folder) / "s")
        gateway = await gateway_of(GatewayConfig(port=0), OneModel(upstream))
        async with asyncio.timeout(20), listening(server, upstream.socket_path):
            before = open_files()
            async with serving(gateway):
                port = int(gateway.url.rpartition(":")[2])
                await client(server, port)
            await server.until(lambda: server.active == 0)
            for _ in range(20):
                await asyncio.sleep(0)  # turns of the loop in which transports close
            assert open_files() <= before + 1  # the client's own
            again = await gateway_of(GatewayConfig(port=port), OneModel(upstream))
            async with serving(again):
                assert again.status.url == gateway.status.url
        return upstream


async def test_stopping_ends_a_stream_with_a_reason_and_frees_port_and_files() -> None:
    async def forever(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a"))
        await server.let_go.wait()
        return response

    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def client(_server: FakeServer, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        streams.append((reader, writer))
        writer.write(raw_post(port, {"stream": True}))
        await reader.readuntil(chunk("a"))

    upstream = await stop_with_a_stream(forever, client)
    reader, writer = streams[0]
    rest = await reader.read()
    error = json.loads(rest.partition(b"data: ")[2].partition(b"\n\n")[0])["error"]
    assert (error["message"], error["code"]) == ("meshd is stopping", "stopping")
    assert upstream.broke == []
    writer.close()
    await writer.wait_closed()


def test_stopping_cuts_a_client_off_that_does_not_read() -> None:
    clients: list[socket.socket] = []

    async def client(server: FakeServer, port: int) -> None:
        loop = asyncio.get_running_loop()
        connection = small_window((socket.AF_INET, socket.SOCK_STREAM, 0))
        clients.append(connection)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, raw_post(port, {"stream": True}))
        await server.until(lambda: server.active == 1)
        await server.held_up()

    try:
        asyncio.run(stop_with_a_stream(pours(chunk("x" * 8000), least=1 << 30), client))
    finally:
        for connection in clients:
            connection.close()


async def test_the_port_is_free_when_the_start_fails() -> None:
    """An error beside the gateway cancels it before or while it starts: nothing stays bound."""

    gateway = await gateway_of(GatewayConfig(port=0), OneModel(FakeUpstream(Path("/nowhere/s"))))

    async def fail() -> None:
        await gateway.started.wait()
        raise UserError("elsewhere")

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(10), Owner() as owner:
            owner.start(gateway.serve(), name="gateway")
            owner.start(fail(), name="fails")
    assert str(first_error(caught.value)) == "elsewhere"
    assert not gateway.started.is_set()
    port = int(gateway.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async with world(says(200, {})) as here:
        head, _, body = raw_post(here.port, {}).partition(b"\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
        await writer.wait_closed()
