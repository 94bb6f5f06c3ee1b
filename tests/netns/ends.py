"""Two nodes inside namespaces, in one process: an event loop in a thread of its own for each.

Threads, because a network namespace belongs to one; sockets, address lists and look-ups made by the loop's
code are the namespace's. The nodes' signals cross from loop to loop, after `delay` seconds.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from meshd.identity.keys import PeerId

from tests.netns.world import Host

T = TypeVar("T")

SECONDS = 60.0  # until a test that hangs is ended


class Crossing:
    """Signals between nodes in different threads."""

    def __init__(self, *, delay: float = 0.0) -> None:
        self.delay = delay
        self._boxes: dict[PeerId, CrossingSignals] = {}
        self._there = threading.Condition()

    def signals(self, owner: PeerId) -> "CrossingSignals":
        """Of the node `owner`; to be made in its own loop."""
        made = CrossingSignals(self, owner)
        with self._there:
            self._boxes[owner] = made
            self._there.notify_all()
        return made

    def box(self, owner: PeerId) -> "CrossingSignals":
        with self._there:
            self._there.wait_for(lambda: owner in self._boxes, SECONDS)
            return self._boxes[owner]


class CrossingSignals:
    """One node's Signals."""

    def __init__(self, crossing: Crossing, owner: PeerId) -> None:
        self._crossing = crossing
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue(64)

    async def send(self, peer: PeerId, payload: bytes) -> None:
        self._crossing.box(peer).take(self._owner, payload)

    async def receive(self) -> tuple[PeerId, bytes]:
        return await self._queue.get()

    def take(self, sender: PeerId, payload: bytes) -> None:
        """From any thread."""
        delay = self._crossing.delay

        def put() -> None:
            self._loop.call_later(delay, self._queue.put_nowait, (sender, payload))

        try:
            self._loop.call_soon_threadsafe(put)
        except RuntimeError:
            return  # that node is gone


class Inside(threading.Thread):
    """Runs `work()` in a loop of its own inside a host's namespace; `result` waits for it."""

    def __init__(self, host: Host, work: Callable[[], Coroutine[object, object, T]]) -> None:
        super().__init__(name=f"inside {host.space.label}", daemon=True)
        self._host = host
        self._work = work
        self._results: list[object] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        async def bounded() -> object:
            async with asyncio.timeout(SECONDS):
                return await self._work()

        try:
            self._results.append(self._host.space.call(lambda: asyncio.run(bounded())))
        except BaseException as error:
            self._error = error

    def result(self) -> object:
        """What `work` returned. Raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._results[0]
