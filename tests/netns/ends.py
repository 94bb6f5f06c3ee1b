"""Two nodes inside namespaces, in one process: an event loop in a thread of its own for each.

Threads, because a network namespace belongs to one; sockets, address lists and look-ups made by the loop's
code are the namespace's. The nodes' signals cross from loop to loop, after `delay` seconds.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import Link, Signals
from meshd.wire.dialable import Dialable

from tests.conformance.nodes import Node, TestMesh
from tests.netns.world import Host

T = TypeVar("T")

SECONDS = 60.0  # until a test that hangs is ended
BLOCK = bytes(range(256)) * 4000  # a megabyte


class Crossing:
    """Signals between nodes in different threads."""

    def __init__(self, *, delay: float = 0.0) -> None:
        self.delay = delay
        self._boxes: dict[PeerId, CrossingSignals] = {}
        self._there = threading.Condition()

    def signals(self, owner: PeerId) -> "CrossingSignals":
        """Return the signals of the node `owner`; to be made in its own loop."""
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
        """Return what `work` returned. Raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._results[0]


class Both(Protocol):
    """A kind of link that dials and listens in one object, over signals."""

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable] = ()) -> Link: ...

    async def serve(self, accept: Callable[[Link], Awaitable[None]]) -> None: ...


Make = Callable[[Node, Signals], Both]


@dataclass(slots=True)
class Tries:
    """The results of dials from near to far."""

    paths: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def dial_often(near: tuple[Host, Make], far: tuple[Host, Make], *, tries: int, delay: float = 0.0) -> Tries:
    """Dial again and again; the last link carries a megabyte there, each a word there and back."""
    mesh = TestMesh()
    here, there = mesh.node(), mesh.node()
    crossing = Crossing(delay=delay)
    over = threading.Event()
    seen = Tries()
    answering = Inside(far[0], lambda: _answer(there, crossing, far[1], over.is_set))
    dialling = Inside(near[0], lambda: _dial(here, there.peer, crossing, near[1], tries, seen))
    try:
        dialling.result()
    finally:
        over.set()
        answering.result()
    return seen


async def _answer(node: Node, crossing: Crossing, make: Make, is_over: Callable[[], bool]) -> None:
    links = make(node, crossing.signals(node.peer))

    async def accept(link: Link) -> None:
        first = await link.receive()  # four bytes come in one piece, and perhaps more with them
        left = int.from_bytes(first[:4], "big") - len(first[4:])
        while left:
            left -= len(await link.receive())
        await link.send([b"all here"])
        await link.receive()  # until the other side ends it

    async with Owner() as owner:
        owner.start(links.serve(accept), name="serve")
        while not is_over():  # noqa: ASYNC110 - another thread tells
            await asyncio.sleep(0.01)
        owner.cancel()


async def _dial(node: Node, peer: PeerId, crossing: Crossing, make: Make, tries: int, seen: Tries) -> None:
    links = make(node, crossing.signals(node.peer))

    async def refuse(link: Link) -> None:
        raise AssertionError("nobody dials this side")

    async with Owner() as owner:
        owner.start(links.serve(refuse), name="serve")
        for number in range(tries):
            try:
                link = await links.dial(peer)
            except MeshdError as error:
                seen.errors.append(error.what)
                continue
            data = BLOCK if number == tries - 1 else b""
            await link.send([len(data).to_bytes(4, "big"), data])
            assert await link.receive() == b"all here"
            seen.paths.append(link.info.path)
            await link.aclose()
        owner.cancel()
