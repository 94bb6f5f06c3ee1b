"""A TCP proxy in threads, between a head and a worker; what its owner gives it carries the bytes."""

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

Way = Callable[[socket.socket, socket.socket], None]
"""Carries one direction, from the first socket to the second, until it returns. EOFError, OSError: an end."""

_DEADLINE = 60.0


class ThreadedProxy:
    """To `target_port`, from a port of its own. Context manager.

    `ways` is asked for each connection: who carries what its client sends, and who what the server sends.
    The end of a direction is passed on.
    """

    def __init__(self, target_port: int, ways: Callable[[], tuple[Way, Way]]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target_port = target_port
        self._ways = ways
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
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

    def _spawn(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)  # a program that ends does not wait for it
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
            up, down = self._ways()
            self._spawn(partial(_carry, up, near, far))
            self._spawn(partial(_carry, down, far, near))


def _carry(way: Way, source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, EOFError):
        way(source, target)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
