"""A head that is no llama.cpp: it says what a test says to a mesh-server, with nothing between the two."""

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from meshd.rpc import mesh_protocol as wire

from tests.e2e.hostile_frames import right_sum
from tests.e2e.hostile_stage import BUFFER, ROOM, message
from tests.e2e.mesh_rig import BarePair, MeshServer
from tests.e2e.mesh_server_scene import found_build
from tests.e2e.native_rig import DEADLINE

LENT = 64 << 20


@cache
def _release() -> bytes:
    said = subprocess.run([found_build().server, "--describe"], capture_output=True, check=True).stdout
    release: str = json.loads(said)["ggml"]
    return release.encode()


class BareHead:
    """Its connection with a server, which has welcomed it."""

    def __init__(self, server: MeshServer, sock: socket.socket) -> None:
        self.server, self.socket = server, sock
        sock.settimeout(DEADLINE)
        self.say(message(wire.HELLO, wire.VERSION, rest=_release()))
        self.hear(wire.WELCOME)
        assert self.allocate(BUFFER, ROOM)
        self.say(message(wire.FILL, BUFFER, 0, 0, ROOM))

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def allocate(self, buffer: int, size: int) -> bool:
        self.say(message(wire.ALLOCATE, buffer, 0, size))
        return bool(self.hear(wire.ALLOCATED)[0])

    def hear(self, expected: int) -> bytes:
        """The body of the next message, which is of this kind; of PROGRESS there may be more before."""
        while True:
            size, kind, _zero, _identity = wire.HEADER.unpack(self._exactly(wire.HEADER.size))
            body = self._exactly(size)
            if kind != wire.PROGRESS:
                assert kind == expected, (kind, body)
                return body

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def refusal(self, said: bytes) -> str:
        """Why the server ends for this."""
        try:
            self.say(said)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it did not read to the end
        assert self.server.process.wait(DEADLINE) == 1, self.server.output
        assert self.server.report is not None
        self.server.report.join()
        (line,) = [line for line in self.server.report.lines if line.startswith("failed ")]
        return line.removeprefix("failed ")

    def answers_right(self) -> None:
        """Another request is computed."""
        self.say(right_sum())
        assert struct.unpack("<4f", self.hear(wire.DATA)) == (11, 22, 33, 44)

    def most_memory(self) -> int:
        """Bytes that the server has had at most."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


@contextmanager
def bare_head(folder: Path) -> Iterator[BareHead]:
    """One with a server of its own."""
    pair = BarePair()
    with closing(pair), MeshServer(found_build(), folder, pair, memory=str(LENT)) as server:
        yield BareHead(server, pair.head)
