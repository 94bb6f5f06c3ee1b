"""A path in virtual time: a slow part with a queue, delay, random loss, and flows that share it.

What a congestion window does can be told only from what comes back to it; this is the smallest thing that
it can be tried on, alone and beside a flow like Cubic. A simulated second takes a fraction of a real one.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from meshd.link.bbr import ModelWindow

SEGMENT = 1452
LUMP_SECONDS = 0.001  # for which the receiver waits before it acknowledges


class Control(Protocol):
    """A control of how much may be on its way."""

    @property
    def window(self) -> int: ...
    @property
    def pacing_rate(self) -> float: ...
    def acked(self, now: float, size: int, rtt: float | None) -> None: ...
    def lost(self, now: float, size: int, sent_at: float) -> None: ...


class Cubic:
    """TCP's, as RFC 9438 has it, with slow start left when the round trip grows (RFC 9406)."""

    pacing_rate = 0.0

    def __init__(self) -> None:
        self._segments = 10.0
        self._slow_start = True
        self._most = 0.0
        self._rtt = self._shortest = 1.0
        self._epoch: float | None = None
        self._wait = 0.0
        self._cut_at = -1.0

    @property
    def window(self) -> int:
        return int(self._segments * SEGMENT)

    def acked(self, now: float, size: int, rtt: float | None) -> None:
        self._rtt = rtt or self._rtt
        self._shortest = min(self._shortest, self._rtt)
        count = size / SEGMENT
        if self._slow_start:
            self._segments += count
            grown = self._rtt - self._shortest
            self._slow_start = grown < max(0.004, min(0.016, self._shortest / 8)) or self._segments < 16
            return
        if self._epoch is None:
            self._epoch = now
            self._most = max(self._most, self._segments)
            self._wait = ((self._most - self._segments) / 0.4) ** (1 / 3)
        goal = 0.4 * (now - self._epoch + self._rtt - self._wait) ** 3 + self._most
        step = min((goal - self._segments) / self._segments, 0.5) if goal > self._segments else 0.01
        self._segments += max(step, 0.53 / self._segments) * count

    def lost(self, now: float, size: int, sent_at: float) -> None:
        if sent_at <= self._cut_at:
            return
        self._cut_at, self._epoch, self._slow_start = now, None, False
        self._most = self._segments if self._segments >= self._most else 0.85 * self._segments
        self._segments = max(0.7 * self._segments, 2.0)


class Flow:
    """A sender with `limit` bytes to send; `done` is when all had arrived."""

    def __init__(self, control: Control, *, start: float = 0.0, limit: float = float("inf")) -> None:
        self.control = control
        self.start = start
        self.limit = limit
        self.arrived = 0
        self.done: float | None = None
        self.sent: dict[int, float] = {}
        self.next = 0
        self.flight = 0
        self.highest = -1
        self.waiting: list[int] = []  # received, not acknowledged yet
        self.budget = 0.0
        self.budget_at = 0.0
        self.sleeps = False


class Path:
    """`rate` in bytes a second, `rtt` there and back without a queue; both may be changed on the way."""

    def __init__(self, flows: Sequence[Flow], *, rtt: float, loss: float = 0.0, seed: int = 1) -> None:
        self.flows = flows
        self.rtt = rtt
        self.loss = loss
        self.rate = 12.5e6
        self.queue_bytes = 512 << 10
        self.now = 0.0
        self.queues: list[float] = []  # seconds, every 10 ms
        self._rng = random.Random(seed)
        self._free = 0.0
        self._count = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for flow in flows:
            self._at(flow.start, lambda flow=flow: self._send(flow))  # type: ignore[misc]
            self._at(flow.start, lambda flow=flow: self._time_out(flow))  # type: ignore[misc]

    def run(self, until: float) -> None:
        """Go on to this time, or until every flow is done."""
        while self._events and self._events[0][0] <= until and not all(flow.done for flow in self.flows):
            self.now, _, act = heapq.heappop(self._events)
            if self.now >= 0.01 * len(self.queues):
                self.queues.append(max(0.0, self._free - self.now))
            act()

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), act))

    def _send(self, flow: Flow) -> None:
        flow.sleeps = False
        control = flow.control
        while flow.flight + SEGMENT <= control.window and flow.arrived + flow.flight < flow.limit:
            rate = control.pacing_rate
            if rate:
                most = max(0.008 * rate, 10 * SEGMENT)
                flow.budget = min(flow.budget + (self.now - flow.budget_at) * rate, most)
                flow.budget_at = self.now
                if flow.budget <= 0:
                    if not flow.sleeps:
                        flow.sleeps = True
                        wait = max(0.001, (SEGMENT - flow.budget) / rate)
                        self._at(self.now + wait, lambda: self._send(flow))
                    return
                flow.budget -= SEGMENT
            number, flow.next = flow.next, flow.next + 1
            flow.sent[number] = self.now
            flow.flight += SEGMENT
            full = max(0.0, self._free - self.now) * self.rate + SEGMENT > self.queue_bytes
            if not full and self._rng.random() >= self.loss:
                self._free = max(self.now, self._free) + SEGMENT / self.rate
                self._at(self._free + self.rtt / 2, lambda number=number: self._receive(flow, number))  # type: ignore[misc]

    def _receive(self, flow: Flow, number: int) -> None:
        flow.waiting.append(number)
        if len(flow.waiting) == 1:
            self._at(self.now + LUMP_SECONDS, lambda: self._acknowledge(flow))

    def _acknowledge(self, flow: Flow) -> None:
        numbers, flow.waiting = flow.waiting, []
        self._at(self.now + self.rtt / 2, lambda: self._take(flow, numbers))

    def _take(self, flow: Flow, numbers: Sequence[int]) -> None:
        sent = [flow.sent.pop(number) for number in numbers if number in flow.sent]
        if sent:
            size = len(sent) * SEGMENT
            flow.flight -= size
            flow.arrived += size
            flow.highest = max(flow.highest, *numbers)
            flow.control.acked(self.now, size, self.now - sent[-1])
            for number in list(itertools.takewhile(lambda one: one < flow.highest - 3, flow.sent)):
                self._lose(flow, number)
        if flow.arrived >= flow.limit and flow.done is None:
            flow.done = self.now
        self._send(flow)

    def _lose(self, flow: Flow, number: int) -> None:
        flow.flight -= SEGMENT
        flow.control.lost(self.now, SEGMENT, flow.sent.pop(number))

    def _time_out(self, flow: Flow) -> None:
        for number in [number for number, at in flow.sent.items() if at < self.now - 1.0]:
            self._lose(flow, number)
        self._send(flow)
        self._at(self.now + 0.3, lambda: self._time_out(flow))


def model() -> ModelWindow:
    """A fresh window."""
    return ModelWindow(SEGMENT)
