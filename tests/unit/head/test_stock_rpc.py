"""Plain rpc-servers of the LAN: asked once, checked, and every failure names the server."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
from meshd.base.errors import MeshdError
from meshd.head import survey as module
from meshd.head.survey import ask_plain
from meshd.plan.machines import PlainRpc
from meshd.wire.lease import OfferedDevice

from tests.conformance.run import run

HELLO = bytes([7, 0, 0, 0]) + bytes(24)


class Server:
    """Answers HELLO, DEVICE_COUNT and GET_DEVICE_MEMORY with what a test says, size first."""

    def __init__(self, **answers: bytes | None) -> None:
        self.answers: dict[int, bytes | None] = {
            14: answers.get("hello", HELLO),
            15: answers.get("count", struct.pack("<I", 2)),
            11: answers.get("memory", struct.pack("<QQ", 5, 9)),
        }
        self.asked: list[tuple[int, bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                command, size = struct.unpack("<BQ", await reader.readexactly(9))
                self.asked.append((command, await reader.readexactly(size)))
                answer = self.answers[command]
                if answer is None:
                    await reader.read()
                    break
                writer.write(struct.pack("<Q", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def ask(self) -> tuple[PlainRpc, ...]:
        return await with_server(self.serve, lambda place: ask_plain([place], protocol="7.0.0"))


async def with_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    use: Callable[[str], Awaitable[tuple[PlainRpc, ...]]],
) -> tuple[PlainRpc, ...]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        return await use(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await server.wait_closed()


def test_devices_and_their_memory_are_asked_in_turn() -> None:
    server = Server()
    (found,) = run(server.ask())
    assert found.devices == tuple(
        OfferedDevice(f"RPC{number}", "gpu", found.endpoint, 5, 9) for number in range(2)
    )
    assert [command for command, _ in server.asked] == [14, 15, 11, 11]
    assert server.asked[-1][1] == struct.pack("<I", 1)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"hello": bytes([6, 9, 0, 0]) + bytes(24)}, "speaks RPC protocol 6.9.0, this build 7.0.0"),
        ({"hello": bytes([7, 1, 0, 0]) + bytes(24)}, "speaks RPC protocol 7.1.0"),
        ({"hello": b""}, "HELLO has 0 bytes"),
        ({"count": struct.pack("<I", 0)}, "has 0 devices"),
        ({"count": struct.pack("<I", 17)}, "has 17 devices"),
        ({"memory": b"short"}, "GET_DEVICE_MEMORY has 5 bytes"),
        ({"memory": bytes(2000)}, "is too long"),
    ],
)
def test_what_a_server_says_wrongly_names_it(answers: dict[str, bytes | None], said: str) -> None:
    with pytest.raises(MeshdError, match=r"cannot use the rpc-server `127.0.0.1:\d+`: .*" + said):
        run(Server(**answers).ask())


def test_a_server_that_is_busy_with_another_client_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.05)
    with pytest.raises(MeshdError, match="does not answer") as caught:
        run(Server(hello=None).ask())
    assert "one at a time" in caught.value.hint


def test_something_else_or_nothing_at_the_port() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with pytest.raises(MeshdError, match=r"cannot use the rpc-server `.*`: (it closed|connection reset)"):
        run(with_server(hang_up, lambda place: ask_plain([place], protocol="7.0.0")))
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MeshdError, match=f"cannot use the rpc-server `{place}`: nothing listens there"):
            run(ask_plain([place], protocol="7.0.0"))


def test_none_are_none() -> None:
    assert run(ask_plain([], protocol="7.0.0")) == ()
