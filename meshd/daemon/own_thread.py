"""Run a download or a check in its own thread, so that a stalled connection does not delay a stop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from meshd.base.errors import Closed, MeshdError
from meshd.base.fault_boundary import Contained
from meshd.library.interface import ReportProgress, TransferProgress

T = TypeVar("T")
_STOP_SECONDS = 1.0  # for a download to end; otherwise its thread ends with the process


async def in_own_thread(
    work: Callable[[ReportProgress], T], on_progress: Callable[[TransferProgress], None]
) -> T:
    """Run blocking `work` in a thread and return its result; `on_progress` runs on the loop.

    If the caller is cancelled, `work` ends at its next report. A `work` that reports nothing, on a stalled
    connection for example, does not delay the stop: its thread ends with the process, and its written data
    stays on disk.
    """
    loop, stopped = asyncio.get_running_loop(), threading.Event()
    ended: asyncio.Future[T] = loop.create_future()
    # Marks an exception as seen, if nobody asks.
    ended.add_done_callback(lambda done: done.cancelled() or done.exception())

    def report(progress: TransferProgress) -> None:
        if stopped.is_set():
            raise Closed("the download was stopped")
        loop.call_soon_threadsafe(on_progress, progress)

    def run() -> None:
        try:
            with Contained("local client", "download"):  # the caller gets any failure
                tell = partial(ended.set_result, work(report))
        except (MeshdError, OSError) as error:
            tell = partial(ended.set_exception, error)
        with suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, daemon=True, name="download").start()
    try:
        await asyncio.wait([ended])
    finally:
        stopped.set()
        if not ended.done():
            await asyncio.wait([ended], timeout=_STOP_SECONDS)
    return ended.result()
