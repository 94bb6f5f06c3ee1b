"""An rpc-server whose device lacks operations: a real one behind a proxy that changes what it says of itself.

Only the answers to what the device can do are changed, so that all else is as with a real half able device:
the questions, what the head makes of the answers, and the words that reach the user. Started as a program it
is a `ggml-rpc-server` for meshd, with the descriptors of docs/native.md; see `install`.
"""

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.build.interface import RPC_SERVER, NativeInfo
from meshd.rpc import protocol as rpc

from tests.e2e.threaded_proxy import ThreadedProxy, Way

ADD, MUL, RMS_NORM, MUL_MAT, SET_ROWS, ROPE, FLASH_ATTN = 2, 7, 25, 29, 42, 48, 74
ANY_TYPE = -1
Q8_0 = 8
_TABLE = -1  # the messages behind HELLO are answers to nothing; this is the second one's name here
Change = Callable[[int, bytes], bytes]
"""What becomes of the answer to a command."""

_ROOT = Path(__file__).resolve().parents[2]


def _same(_command: int, body: bytes) -> bytes:
    return body


@dataclass(frozen=True, slots=True)
class Lack:
    """An operation that is not there, with tensors of this type only if one is given."""

    operation: int
    kind: int = ANY_TYPE


class _Talk:
    """One connection: which answer belongs to which request."""

    def __init__(self, lacks: Sequence[Lack], *, secret_bytes: int, crash: bool, change: Change) -> None:
        self._lacks = lacks
        self._change = change
        self._secret_bytes = secret_bytes
        self._crash = crash
        self._lock = threading.Lock()
        self._expected: deque[tuple[int, bytes]] = deque()

    def up(self, near: socket.socket, far: socket.socket) -> None:
        """A Way: requests."""
        far.sendall(_read(near, self._secret_bytes))
        while True:
            head = _read(near, rpc.REQUEST.size)
            command, size = rpc.REQUEST.unpack(head)
            body = _read(near, size)
            self._asked(command, body)
            far.sendall(head + body)

    def down(self, far: socket.socket, near: socket.socket) -> None:
        """A Way: answers."""
        while True:
            (size,) = rpc.ANSWER.unpack(_read(far, rpc.ANSWER.size))
            near.sendall(rpc.ANSWER.pack(size) + self._answered(_read(far, size)))

    def _asked(self, command: int, body: bytes) -> None:
        if self._crash and command == rpc.GRAPH_COMPUTE:
            os.kill(os.getpid(), signal.SIGABRT)
        known = rpc.COMMANDS.get(command)  # none: another server, which pushes to this one
        with self._lock:
            if command == rpc.PEER_HELLO or (known is not None and known.answer != rpc.NO_ANSWER):
                self._expected.append((command, body if command == rpc.SUPPORTED_OPS else b""))
            if command == rpc.HELLO:
                self._expected += [(_TABLE - 1, b""), (_TABLE, b"")]

    def _answered(self, body: bytes) -> bytes:
        with self._lock:
            command, question = self._expected.popleft()
        if command == _TABLE:
            rows = struct.iter_unpack("<IIQQ", body)
            return b"".join(struct.pack("<IIQQ", *row[:3], self._less(row[0], row[3])) for row in rows)
        if command == rpc.SUPPORTED_OPS:
            return bytes(
                yes and not self._is_lacking(operation, kinds)
                for yes, (operation, kinds) in zip(body, _questions(question), strict=True)
            )
        return self._change(command, body)

    def _less(self, operation: int, types: int) -> int:
        for lack in self._lacks:
            if lack.operation == operation:
                types &= 0 if lack.kind == ANY_TYPE else ~(1 << lack.kind)
        return types

    def _is_lacking(self, operation: int, kinds: Sequence[int]) -> bool:
        return any(
            lack.operation == operation and (lack.kind == ANY_TYPE or lack.kind in kinds)
            for lack in self._lacks
        )


def _questions(body: bytes) -> list[tuple[int, list[int]]]:
    """Operation, and the types of its tensors."""
    _device, count, total, _ = rpc.ASKED_HEAD.unpack_from(body)
    entries = body[rpc.ASKED_HEAD.size : rpc.ASKED_HEAD.size + count * rpc.ASKED_OP.size]
    tensors = body[len(body) - total * rpc.ASKED_TENSOR_BYTES :]
    kinds = [struct.unpack_from("<I", tensors, n * rpc.ASKED_TENSOR_BYTES)[0] for n in range(total)]
    questions = []
    for operation, sources in rpc.ASKED_OP.iter_unpack(entries):
        needed = 1 + sources.bit_count()
        questions.append((operation, kinds[:needed]))
        kinds = kinds[needed:]
    return questions


def half_able(
    target_port: int,
    lacks: Sequence[Lack],
    *,
    listener: socket.socket | None = None,
    secret_bytes: int = 0,
    crash: bool = False,
    change: Change = _same,
) -> ThreadedProxy:
    """A proxy to the rpc-server at `target_port`; `crash`: this process aborts at the first graph.

    `change` makes other answers of those that are not about operations.
    """

    def ways() -> tuple[Way, Way]:
        talk = _Talk(lacks, secret_bytes=secret_bytes, crash=crash, change=change)
        return talk.up, talk.down

    return ThreadedProxy(target_port, ways, listener=listener)


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# As a program.


def install(native: NativeInfo, folder: Path, lacks: Sequence[Lack], *, crash: bool = False) -> Path:
    """A folder for `--native-bin` with these binaries, and this in place of the rpc-server."""
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True)
    for path in native.binaries.values():
        (bin_dir / path.name).symlink_to(path)
    real = native.binaries[RPC_SERVER]
    program = bin_dir / real.name
    program.unlink()
    words = [f"{lack.operation}:{lack.kind}" for lack in lacks] + (["crash"] if crash else [])
    start = f"PYTHONPATH='{_ROOT}' exec '{sys.executable}' -m {__name__} '{real}' '{' '.join(words)}'"
    program.write_text(f'#!/bin/sh\n{start} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    stamp = json.loads((native.bin_dir.parent / "stamp.json").read_text())
    stamp["binaries"] = {
        name: [path.name, (bin_dir / path.name).stat().st_size] for name, path in native.binaries.items()
    }
    (folder / "stamp.json").write_text(json.dumps(stamp))
    return bin_dir


def main(real: str, words: str, *argv: str) -> None:
    arguments = list(argv)
    if "--listen-fd" not in arguments:
        os.execv(real, [real, *arguments])
    at = arguments.index("--listen-fd") + 1
    listener = socket.socket(fileno=int(arguments[at]))
    inner = socket.create_server(("127.0.0.1", 0))
    inner.set_inheritable(True)
    arguments[at] = str(inner.fileno())
    server = subprocess.Popen([real, *arguments], close_fds=False)
    port = inner.getsockname()[1]
    inner.close()
    lacks = [Lack(*map(int, word.split(":"))) for word in words.split() if word != "crash"]
    half_able(
        port,
        lacks,
        listener=listener,
        secret_bytes=32 if "--auth-fd" in arguments else 0,
        crash="crash" in words.split(),
    )
    sys.exit(server.wait())


if __name__ == "__main__":
    main(*sys.argv[1:])
