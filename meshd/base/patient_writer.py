"""Writes to a pipe or terminal that may block forever, without waiting for it.

A thread writes from a bounded buffer. Data that does not fit is dropped and counted. The thread does not keep
the process alive: at the end it gets a moment for the rest.
"""

import io
import os
import threading
from collections import deque

MAX_UNWRITTEN_BYTES = 256 << 10


class PatientWriter:
    """Writes to `descriptor`, which stays the caller's, until `close`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that wait, with those that are being written
        self._lost = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue whole lines, or drop them if too much is waiting. Returns at once."""
        with self._changed:
            if self._closing or self._bytes + len(data) > MAX_UNWRITTEN_BYTES:
                self._lost += 1
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify()

    def take_lost(self) -> int:
        """Return how many writes were dropped, once half of the room is free again; 0 before and after."""
        with self._changed:
            if self._bytes > MAX_UNWRITTEN_BYTES // 2:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def close(self, seconds: float) -> None:
        """Take nothing more, and wait at most `seconds` for what is left."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                data = self._waiting.popleft()
            self._write(data)
            with self._changed:
                self._bytes -= len(data)

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError:
                return  # the terminal has gone: that is no reason to end


class PatientText(io.TextIOBase):
    """Text written to a PatientWriter, instead of `sys.stderr`."""

    def __init__(self, writer: PatientWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Queue the text. Returns at once."""
        self._writer.write(text.encode(errors="replace"))
        return len(text)

    def fileno(self) -> int:
        """Return the descriptor that the thread writes to."""
        return self._writer.descriptor
