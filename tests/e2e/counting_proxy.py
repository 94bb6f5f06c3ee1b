"""A proxy between a head and a stock rpc-server that passes all bytes and counts them."""

import socket
from threading import Lock

from tests.e2e.threaded_proxy import ThreadedProxy, Way


class CountingProxy(ThreadedProxy):
    """To the rpc-server at `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.passed = 0  # bytes, both ways
        self._lock = Lock()
        super().__init__(target_port, self._ways_of_one)

    def _ways_of_one(self) -> tuple[Way, Way]:
        return self._pass_on, self._pass_on

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(1 << 16):
            with self._lock:
                self.passed += len(data)
            target.sendall(data)
