"""Readiness probes for ChildSpec.probe: HTTP on a unix socket, a line of output, an open port.

Each question has a deadline of its own, answers True or False, and raises nothing but CancelledError. How
often to ask is the asker's matter. A line costs the child nothing at all: prefer it where there is one that
comes at once (a C program keeps lines for a pipe in its buffer; stock rpc-server does so with its banner).
"""

import asyncio
import re
import sys
from pathlib import Path

from meshd.base.errors import UserError
from meshd.process.interface import ReadyProbe

QUESTION_SECONDS = 2.0  # llama-server answers /health in a millisecond, whatever else it does
STATUS_LINE_BYTES = 256
SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # sun_path without the final zero


def check_socket_path(path: Path) -> None:
    """Raise UserError when `path` is too long for a unix socket on this system."""
    length = len(str(path).encode())
    if length > SOCKET_PATH_BYTES:
        raise UserError(
            f"socket path `{path}` is too long: {length} bytes, at most {SOCKET_PATH_BYTES} are allowed",
            hint="choose a home or runtime directory with a shorter path",
        )


def http_200(socket_path: Path) -> ReadyProbe:
    """Return a probe that GETs /health over the unix socket: ready when the status is 200 (RFC 9112, 4).

    llama-server answers 503 while it loads. Raises UserError at once when the socket's path is too long.
    """
    return _http_status(socket_path, "/health", re.compile(rb"HTTP/1\.[01] 200[ \r]"))


def http_answer(socket_path: Path, *, path: str) -> ReadyProbe:
    """Return a probe that GETs `path` as http_200 does; any status will do."""
    return _http_status(socket_path, path, re.compile(rb"HTTP/1\.[01] \d{3}"))


def _http_status(socket_path: Path, path: str, wanted: re.Pattern[bytes]) -> ReadyProbe:
    check_socket_path(socket_path)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()

    async def ask() -> bool:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                reader, writer = await asyncio.open_unix_connection(socket_path, limit=STATUS_LINE_BYTES)
                try:
                    writer.write(request)
                    line = await reader.readuntil(b"\r\n")
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return False
        return wanted.match(line) is not None

    return ask


def port_open(port: int) -> ReadyProbe:
    """Return a probe that is ready when something accepts a connection at this port of 127.0.0.1, and closes
    it.
    """

    async def ask() -> bool:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        return True

    return ask


class LineSeen:
    """Be ready when a line of output matches. Give `see` as ChildSpec.on_line and the object itself as probe.

    One object serves one start: make it in the function that makes the spec. `line` is the one that matched.
    """

    def __init__(self, pattern: str) -> None:
        """Search `pattern` in each line; a question waits at most QUESTION_SECONDS for it."""
        self._pattern = re.compile(pattern)
        self._seen = asyncio.Event()
        self.line = ""

    def see(self, line: str) -> None:
        """Search one more line of output."""
        if not self._seen.is_set() and self._pattern.search(line):
            self.line = line
            self._seen.set()

    async def __call__(self) -> bool:
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                await self._seen.wait()
        except TimeoutError:
            return False
        return True
