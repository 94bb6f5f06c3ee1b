"""A proxy between a head and a worker that passes all bytes and counts them by RPC command."""

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

ALLOC_BUFFER, SET_TENSOR, SET_TENSOR_HASH, HELLO, SET_TENSOR_GGUF = 0, 6, 7, 14, 64
_DEADLINE = 60.0


@dataclass(slots=True)
class Counts:
    """What went through a proxy. `sent` and `calls` by command, head to worker; bytes with their headers."""

    connections: int = 0
    received: int = 0
    sent: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)


class CountingProxy:
    """Between a head and a worker: passes all bytes, counts them by RPC command."""

    def __init__(self, target_port: int, *, secret_bytes: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target_port = target_port
        self._secret_bytes = secret_bytes
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.counts = Counts()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._accepting = self._spawn(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(_DEADLINE)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_DEADLINE)
        for sock in self._sockets:
            sock.close()

    def _spawn(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        self._threads.append(thread)
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target_port))
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(sock)
            self.counts.connections += 1
            self._spawn(partial(self._up, near, far))
            self._spawn(partial(self._down, near, far))

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        parser = self._parse()
        next(parser)
        for data in _chunks(near, far):
            parser.send(data)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        for data in _chunks(far, near):
            with self._lock:
                self.counts.received += len(data)

    def _parse(self) -> Generator[None, bytes, None]:
        """A coroutine that is sent the head's bytes."""
        pending = bytearray()
        skip, command = self._secret_bytes, -1
        while True:
            data = yield
            pending += data
            while pending:
                if skip:
                    taken = min(skip, len(pending))
                    del pending[:taken]
                    skip -= taken
                    with self._lock:
                        self.counts.sent[command] += taken
                elif len(pending) >= 9:
                    command, skip = struct.unpack_from("<BQ", pending)
                    del pending[:9]
                    with self._lock:
                        self.counts.sent[command] += 9
                        self.counts.calls[command] += 1
                else:
                    break


def _chunks(source: socket.socket, target: socket.socket) -> Iterator[bytes]:
    """Copy until the end of either; yields what was copied."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
            yield data
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
