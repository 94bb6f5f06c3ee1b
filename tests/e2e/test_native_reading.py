"""How the patched programs read from their connections: in few calls, whatever pieces the bytes come in."""

import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.rpc import protocol as rpc

from tests.e2e.models import patched, smollm2, text_alone
from tests.e2e.native_rig import Head, Worker
from tests.e2e.rpc_client import Entry, RpcClient

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

F32 = 0
AHEAD = 16 << 10  # AHEAD_SIZE of transport.cpp
# floats of tensors that are set one after the other: around what is read ahead, and far beyond it
FLOATS = (1, 2, 576, AHEAD // 4 - 100, AHEAD // 4, AHEAD // 4 + 1, 3 * AHEAD, 5, 4)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1 << 20, AHEAD + 1, AHEAD, 1009, 7])
def test_requests_mean_the_same_in_whatever_pieces_they_come(tmp_path: Path, size: int) -> None:
    server = patched().binaries[RPC_SERVER]
    with Worker(server, tmp_path) as worker, RpcClient(worker.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.hello()
        buffer = client.alloc(4 * sum(FLOATS) + 4096)
        base = client.base(buffer)
        said, contents, at = b"", [], base
        for number, floats in enumerate(FLOATS):
            entry = Entry(buffer, at, 4 * floats, F32, (floats, 1, 1, 1), b"")
            at += (4 * floats + 63) // 64 * 64
            content = struct.pack(f"<{floats}f", *(number + n / 7 for n in range(floats)))
            contents.append(content)
            body = entry.tensor() + b"\0" + struct.pack("<Q", 0) + content
            said += struct.pack("<BQ", rpc.SET_TENSOR, len(body)) + body
            wanted = entry.tensor() + struct.pack("<QQ", 0, entry.size)
            said += struct.pack("<BQ", rpc.GET_TENSOR, len(wanted)) + wanted
        for piece in _pieces(said, size):
            client.say(piece)
        for content in contents:
            (length,) = struct.unpack("<Q", client.receive(8))
            assert client.receive(length) == content


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_on_a_unix_socket_sleeps_once_a_token(tmp_path: Path) -> None:
    """In recv() it would also wake when the head takes the answer, in the middle of its own part."""
    few, many = 8, 72
    with (
        tempfile.TemporaryDirectory() as name,
        Worker(patched().binaries[RPC_SERVER], tmp_path, sockets=Path(name)) as worker,
        Head(
            patched().binaries[LLAMA_SERVER], tmp_path, smollm2(), [worker.endpoint], sockets=Path(name)
        ) as head,
    ):
        assert head.complete() == text_alone(smollm2())
        slept = [_sleeps(worker)]
        for tokens in (few, many):
            head.complete(tokens=tokens)
            slept.append(_sleeps(worker))
        each = ((slept[2] - slept[1]) - (slept[1] - slept[0])) / (many - few)
        assert each < 1.5


def _sleeps(worker: Worker) -> int:
    """How often its threads have waited so far."""
    total = 0
    for task in Path(f"/proc/{worker.process.pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total
