"""A server on a thread of its own for a control that is made for tests."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from meshd.admin.server import AdminServer

from tests.unit.admin.fake import FakeControl

DEADLINE = 20.0


@contextlib.contextmanager
def running(home: Path, control: FakeControl) -> Iterator[AdminServer]:
    """The server of `home` answers while the block runs."""
    server = AdminServer(home=home, control=control, environ=dict(os.environ))
    server.open()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []
    ready = threading.Event()

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        loops.append((asyncio.get_running_loop(), task))
        ready.set()
        with contextlib.suppress(asyncio.CancelledError):  # the end of the block asks for it
            await server.serve()

    thread = threading.Thread(target=lambda: asyncio.run(work()), name="admin server")
    thread.start()
    try:
        assert ready.wait(DEADLINE)
        yield server
    finally:
        loop, task = loops[0]
        loop.call_soon_threadsafe(task.cancel)
        thread.join(DEADLINE)
        assert not thread.is_alive()
