"""A data channel as browsers and aiortc have it, in memory: messages, no back-pressure of its own.

What a link over it has to cope with: a message has at most 16 KiB; `send` never waits, it only counts in
`buffered_amount` and calls `on_low` when that has fallen; whatever arrives goes to `on_message` at once,
whether anybody wants it or not; the two ends find each other by an offer and an answer that travel some
other way (`Signals`); and who is there is known by a fingerprint inside those.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from meshd.identity.keys import PeerId

MAX_MESSAGE_BYTES = 16 << 10
TURN_BYTES = 64 << 10  # what the network takes at each turn of the loop


class DataChannel:
    """One end."""

    def __init__(self, fabric: "Fabric", direction: str) -> None:
        self._fabric = fabric
        self._direction = direction
        self._queue: deque[bytes] = deque()
        self._scheduled = False
        self.other: DataChannel | None = None
        self.is_open = True
        self.buffered_amount = 0
        self.low_threshold = 0
        self.on_low: Callable[[], None] = lambda: None
        self.on_message: Callable[[bytes], None] = lambda message: None
        self.on_close: Callable[[], None] = lambda: None

    def send(self, message: bytes) -> None:
        """Queue a message; never waits."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {len(message)} bytes")
        if not self.is_open:
            raise ConnectionError("the channel is closed")
        self._queue.append(message)
        self.buffered_amount += len(message)
        self.schedule()

    def schedule(self) -> None:
        if not self._scheduled and self._queue and not self._fabric.stalled[self._direction]:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        left = TURN_BYTES
        high = self.buffered_amount
        while self._queue and left > 0 and not self._fabric.stalled[self._direction]:
            message = self._queue.popleft()
            left -= len(message)
            self.buffered_amount -= len(message)
            if self.other is not None and self.other.is_open:
                self.other.on_message(message)
        if high > self.low_threshold >= self.buffered_amount:
            self.on_low()
        self.schedule()

    def close(self) -> None:
        """Drop the queue; the other end is told, unless the network is dead."""
        if not self.is_open:
            return
        self.is_open = False
        self._queue.clear()
        self.buffered_amount = 0
        self._fabric.channels.discard(self)
        if self.other is not None and not self._fabric.stalled[self._direction]:
            asyncio.get_running_loop().call_soon(self.other.close)
        self.on_close()


class Fabric:
    """The network between: makes channels once an answer has met its offer. A Wire."""

    def __init__(self) -> None:
        self.stalled = {"up": False, "down": False}
        self.channels: set[DataChannel] = set()
        self._rooms: dict[bytes, asyncio.Future[DataChannel]] = {}

    async def meet_as_offerer(self, attempt: bytes) -> DataChannel:
        """Wait for the other side to come with the same attempt id."""
        room: asyncio.Future[DataChannel] = asyncio.get_running_loop().create_future()
        self._rooms[attempt] = room
        try:
            return await room
        finally:
            del self._rooms[attempt]

    def meet_as_answerer(self, attempt: bytes) -> DataChannel:
        """The answerer's end. Raises ConnectionError when the offerer has given up."""
        room = self._rooms.get(attempt)
        if room is None or room.done():
            raise ConnectionError("nobody waits for this attempt")
        near, far = DataChannel(self, "up"), DataChannel(self, "down")
        near.other, far.other = far, near
        self.channels |= {near, far}
        room.set_result(near)
        return far

    def cut(self) -> None:
        for channel in list(self.channels):
            channel.close()

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        self.stalled["up"] |= up
        self.stalled["down"] |= down

    def flow(self) -> None:
        self.stalled = {"up": False, "down": False}
        for channel in self.channels:
            channel.schedule()


class Post:
    """Carries signals between nodes; `tamper` may change them on the way."""

    def __init__(self) -> None:
        self._boxes: dict[PeerId, asyncio.Queue[tuple[PeerId, bytes]]] = {}
        self.tamper: Callable[[bytes], bytes] = lambda payload: payload

    def signals(self, owner: PeerId) -> "PostSignals":
        return PostSignals(self, owner)

    def box(self, owner: PeerId) -> "asyncio.Queue[tuple[PeerId, bytes]]":
        return self._boxes.setdefault(owner, asyncio.Queue(64))


class PostSignals:
    """Signals of one node."""

    def __init__(self, post: Post, owner: PeerId) -> None:
        self._post = post
        self._owner = owner

    async def send(self, peer: PeerId, payload: bytes) -> None:
        await self._post.box(peer).put((self._owner, self._post.tamper(payload)))

    async def receive(self) -> tuple[PeerId, bytes]:
        return await self._post.box(self._owner).get()
