"""Workers that can be lost in every way, each behind a proxy that a test breaks."""

import os
import signal
import socket
import threading
import time
from functools import partial
from types import TracebackType
from typing import Self

from tests.e2e.cutter import Counts, Cutter, Rules
from tests.e2e.loop_thread import LoopThread
from tests.e2e.native_rig import DEADLINE, Worker, wait_until

KILLED, RESET, STOPPED, SILENT = "kill -9", "reset", "STOP, closed", "silent, closed"
KINDS = (KILLED, RESET, STOPPED, SILENT)
QUIET = (STOPPED, SILENT)  # nobody is told: the worker's watcher has to close its connection
NOTICED_AFTER = 1.0  # seconds: then this closes the connection, for nothing else here would


class Lossy:
    """A worker and the proxy before it. Context manager; the worker is its caller's."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        self._rules, self.counts = Rules(), Counts()
        self._cutter = Cutter(
            listener,
            partial(socket.create_connection, ("127.0.0.1", worker.port)),
            rules=self._rules,
            counts=self.counts,
            seed=0,
        )
        self._loop = LoopThread(lambda _owner: self._cutter.serve())
        self._threads: list[threading.Thread] = []
        self._quiet = threading.Event()  # which nobody ends
        self._told_at: float | None = None

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.join(DEADLINE)
        self._loop.__exit__(kind, error, trace)

    @property
    def told_at(self) -> float:
        """When the connection was closed, or the worker gone; of time.monotonic()."""
        wait_until(lambda: self._told_at is not None, "the worker is lost")
        assert self._told_at is not None
        return self._told_at

    def lose(self, kind: str) -> None:
        """From any thread; returns at once."""
        thread = threading.Thread(target=self._lose, args=(kind,))
        thread.start()
        self._threads.append(thread)

    def _lose(self, kind: str) -> None:
        if kind == KILLED:
            self._worker.process.kill()
        elif kind == STOPPED:
            os.kill(self._worker.process.pid, signal.SIGSTOP)
        elif kind == SILENT:
            self._loop.call(self._rules.flowing.clear)
        if kind in QUIET:
            self._quiet.wait(NOTICED_AFTER)
        if kind != KILLED:
            self._loop.call(self._close)
        self._told_at = time.monotonic()

    def _close(self) -> None:
        self._rules.outage = True
        self._cutter.cut_all()
