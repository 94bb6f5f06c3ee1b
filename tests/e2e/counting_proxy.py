"""A proxy between a head and a worker that passes all bytes and counts them by RPC command."""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from meshd.fleet.rpc_count import RpcCounts, RpcListener

from tests.e2e.threaded_proxy import ThreadedProxy, Way

_SECRET_BYTES = 32  # that a client shows first, where there is one
_TCP_INFO, _TCP_INFO_BYTES, _DATA_SEGS_IN = 11, 192, 152  # struct tcp_info, linux/tcp.h


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


class CountingProxy(ThreadedProxy):
    """To the rpc-server at `target_port`."""

    def __init__(
        self,
        target_port: int,
        *,
        secret: bool = False,
        on_command: Callable[[int], None] = lambda command: None,
    ) -> None:
        """`on_command` is called with each command before its message is passed on."""
        self._secret = secret
        self._on_command = on_command
        self.counts = Counts()
        self._lock = threading.Lock()
        super().__init__(target_port, self._listen)

    def segments(self) -> int:
        """TCP segments with data that have come from the head, by the kernel's own count (Linux)."""
        total = 0
        for client in self.clients:
            info = client.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES)
            total += struct.unpack_from("=I", info, _DATA_SEGS_IN)[0]
        return total

    def _listen(self) -> tuple[Way, Way]:
        listener = RpcListener(self.counts.rpc, on_request=self._on_request)
        return partial(self._up, listener), partial(self._down, listener)

    def _on_request(self, command: int, size: int) -> None:
        self.counts.calls[command] += 1
        self.counts.sent[command] += size
        self._on_command(command)

    def _up(self, listener: RpcListener, near: socket.socket, far: socket.socket) -> None:
        not_rpc = _SECRET_BYTES if self._secret else 0
        while data := near.recv(1 << 16):
            with self._lock:
                listener.sent(data[not_rpc:])
            not_rpc = max(0, not_rpc - len(data))
            far.sendall(data)

    def _down(self, listener: RpcListener, far: socket.socket, near: socket.socket) -> None:
        while data := far.recv(1 << 16):
            with self._lock:
                self.counts.received += len(data)
                listener.answered(data)
            near.sendall(data)
