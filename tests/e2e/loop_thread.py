"""An event loop in a thread of its own, for what is asynchronous beside a test that is not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

from meshd.base.tasks import Owner

_DEADLINE = 60.0


class LoopThread:
    """Context manager; runs `work`, which gets an owner for more tasks, until it is left."""

    def __init__(self, work: Callable[[Owner], Coroutine[object, object, None]]) -> None:
        self._work = work
        self._loop = asyncio.new_event_loop()
        self._owner = Owner()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call(self._owner.cancel)
        self._thread.join(_DEADLINE)

    def call(self, work: Callable[[], None]) -> None:
        """In the loop, soon."""
        self._loop.call_soon_threadsafe(work)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with self._owner as owner:
            owner.start(self._work(owner), name="work")
