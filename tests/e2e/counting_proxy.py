"""A proxy between a head and a worker that passes all bytes and counts them by RPC command."""

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from meshd.fleet.rpc_count import RpcCounts, RpcListener

ALLOC_BUFFER, SET_TENSOR, SET_TENSOR_HASH, HELLO, SET_TENSOR_GGUF = 0, 6, 7, 14, 64
_DEADLINE = 60.0
_TCP_INFO_BYTES, _DATA_SEGS_IN = 192, 152  # struct tcp_info, linux/tcp.h


@dataclass(slots=True)
class Counts:
    """What went through a proxy; head to worker unless it says otherwise. Bytes include message headers."""

    rpc: RpcCounts = field(default_factory=RpcCounts)
    received: int = 0  # bytes, worker to head
    sent: Counter[int] = field(default_factory=Counter)  # bytes by command
    calls: Counter[int] = field(default_factory=Counter)  # messages by command

    @property
    def connections(self) -> int:
        return self.rpc.connections

    @property
    def weights(self) -> int:
        """Bytes of SET_TENSOR for tensors that are weights, by their name."""
        return self.rpc.weights


class CountingProxy:
    """Between a head and a worker: passes all bytes, counts them by RPC command."""

    def __init__(
        self,
        target_port: int,
        *,
        secret: bool = False,
        on_command: Callable[[int], None] = lambda command: None,
    ) -> None:
        """`on_command` is called with each command before its message is passed on."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target_port = target_port
        self._secret = secret
        self._on_command = on_command
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
        self.cut()
        for thread in self._threads:
            thread.join(_DEADLINE)
        for sock in self._sockets:
            sock.close()

    def cut(self) -> None:
        """End the connections that there are, both ways."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def segments(self) -> int:
        """TCP segments with data that have come from the head, by the kernel's own count (Linux)."""
        total = 0
        for near in self._sockets[::2]:
            info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            total += struct.unpack_from("=I", info, _DATA_SEGS_IN)[0]
        return total

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
            listener = RpcListener(self.counts.rpc, secret=self._secret, on_request=self._on_request)
            self._spawn(partial(self._up, near, far, listener))
            self._spawn(partial(self._down, near, far, listener))

    def _on_request(self, command: int, size: int) -> None:
        self.counts.calls[command] += 1
        self.counts.sent[command] += size
        self._on_command(command)

    def _up(self, near: socket.socket, far: socket.socket, listener: RpcListener) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                with self._lock:
                    listener.sent(data)
                far.sendall(data)
        _end(far)

    def _down(self, near: socket.socket, far: socket.socket, listener: RpcListener) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(1 << 16):
                with self._lock:
                    self.counts.received += len(data)
                    listener.answered(data)
                near.sendall(data)
        _end(near)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
