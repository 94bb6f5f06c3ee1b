"""Two sessions driven over the simulated network, with small applications on top.

The driver does what peer/ does with real links: events are acted on, links with room are given what
`transmit` has, one timer follows `next_timeout`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.base.errors import Closed
from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import DataReceived, Event, LinkDead, PongReceived, StreamEnded, StreamOpened, Writable
from meshd.mux.session import Session

from tests.sim.network import Path, Pipe

_BUDGET = 256 << 10


class Peer:
    """One side."""

    def __init__(self, side: Side, config: MuxConfig, budget: NodeBudget | None = None) -> None:
        self.session = Session(side=side, session_id=bytes(16), config=config, budget=budget)
        self.pipes: dict[int, Pipe] = {}
        self.events: list[tuple[float, Event]] = []  # all but data
        self.received: dict[int, bytearray] = {}
        self.counts: dict[int, int] = {}  # bytes received by stream
        self.keep = True  # remember the bytes themselves
        self.reads = True
        self.rtts: list[tuple[float, float]] = []
        self.on_link_dead: Callable[[int], None] = lambda link_id: None
        self.on_data: Callable[[int, bytes], None] = lambda stream_id, data: None
        self.most_buffered = 0
        self._feeds: dict[int, Feed] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._pumping = False
        self._again = False

    # applications

    def open(self, priority: Priority = Priority.BULK) -> int:
        """A stream to the other side."""
        stream_id = self.session.open("sim", {}, priority)
        self.pump()
        return stream_id

    def feed(self, stream_id: int, data: bytes, *, times: int = 1, eof: bool = False) -> None:
        """Write `data` so many times, as fast as the stream takes it."""
        self._feeds[stream_id] = Feed(data, times, eof)
        self._refill(stream_id)
        self.pump()

    def write(self, stream_id: int, data: bytes) -> None:
        """A small message."""
        assert self.session.write(stream_id, data) == len(data)
        self.pump()

    async def ping_for(self, seconds: float, link_id: int, *, every: float = 0.1) -> None:
        """Ping for so long; `rtts` has the answers."""
        end = self._loop.time() + seconds
        while self._loop.time() < end:
            try:
                self.session.ping(link_id, self._loop.time())
            except Closed:
                return
            self.pump()
            await asyncio.sleep(every)

    # driver

    def attach(self, link_id: int, pipe: Pipe) -> None:
        """A link, by its sending direction."""
        self.pipes[link_id] = pipe
        pipe.on_room = self.pump
        self._take(self.session.link_up(link_id, self._loop.time()))
        self.pump()

    def detach(self, link_id: int) -> None:
        """A link is gone."""
        if self.pipes.pop(link_id, None) is not None:
            self._take(self.session.link_down(link_id, self._loop.time()))
            self.pump()

    def arrive(self, link_id: int, data: bytes) -> None:
        """Bytes from a link."""
        self._take(self.session.receive(link_id, data, self._loop.time()))
        self.pump()

    def pump(self) -> None:
        """Send what there is to send, and set the timer."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        self._again = True
        while self._again:
            self._again = False
            for link_id, pipe in list(self.pipes.items()):
                while not pipe.full:
                    buffers = self.session.transmit(link_id, self._loop.time(), _BUDGET)
                    if not buffers:
                        break
                    pipe.write(b"".join(buffers))
        self._pumping = False
        status = self.session.status()
        self.most_buffered = max(self.most_buffered, status.send_buffered + status.receive_buffered)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.session.next_timeout()
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._take(self.session.handle_timeout(self._loop.time()))
        self.pump()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                self._got(event.stream_id, bytes(event.data))
                continue
            self.events.append((self._loop.time(), event))
            match event:
                case StreamOpened(stream_id):
                    self.session.accept(stream_id)
                case Writable(stream_id):
                    self._refill(stream_id)
                case PongReceived(_, _, rtt):
                    self.rtts.append((self._loop.time(), rtt))
                case LinkDead(link_id):
                    self.pipes.pop(link_id, None)
                    self.on_link_dead(link_id)
                case _:
                    pass

    def _got(self, stream_id: int, data: bytes) -> None:
        if self.keep:
            self.received.setdefault(stream_id, bytearray()).extend(data)
        self.counts[stream_id] = self.counts.get(stream_id, 0) + len(data)
        if self.reads:
            self.session.consumed(stream_id, len(data))
        self.on_data(stream_id, data)

    def _refill(self, stream_id: int) -> None:
        feed = self._feeds.get(stream_id)
        while feed is not None and feed.times:
            rest = feed.data[feed.at :]
            count = self.session.write(stream_id, rest)
            if count < len(rest):
                feed.at += count
                return
            feed.at = 0
            feed.times -= 1
        if feed is not None and feed.eof:
            feed.eof = False
            self.session.write_eof(stream_id)

    def ended(self, stream_id: int) -> bool:
        """Has the other side's direction come to its end?"""
        return any(event == StreamEnded(stream_id) for _, event in self.events)

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()


@dataclass
class Feed:
    """An application's bytes that are still to be written."""

    data: bytes
    times: int
    eof: bool
    at: int = field(default=0)


class Network:
    """Two peers and the links between them; `budget` is the leader's."""

    def __init__(self, config: MuxConfig | None = None, *, budget: NodeBudget | None = None) -> None:
        self.leader = Peer("leader", config or MuxConfig(), budget)
        self.follower = Peer("follower", config or MuxConfig())
        self.links: dict[int, tuple[Pipe, Pipe]] = {}
        self._next = 1

    def link(self, path: Path, *, back: Path | None = None) -> int:
        """A new link; `back` if the follower's direction differs."""
        link_id = self._next
        self._next += 1
        there = Pipe(path, lambda data: self.follower.arrive(link_id, data))
        here = Pipe(back or path, lambda data: self.leader.arrive(link_id, data))
        self.links[link_id] = (there, here)
        self.follower.attach(link_id, here)
        self.leader.attach(link_id, there)
        return link_id

    def cut(self, link_id: int) -> None:
        """Both sides notice at once; data under way are lost."""
        for pipe in self.links.pop(link_id, ()):
            pipe.cut = True
        self.leader.detach(link_id)
        self.follower.detach(link_id)

    def close(self) -> None:
        """Stop."""
        for link_id in list(self.links):
            self.cut(link_id)
        self.leader.close()
        self.follower.close()
