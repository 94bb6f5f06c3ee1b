"""A wide area line as a program: two TUN devices in two namespaces, and what happens to packets between.

    emulator.py FILE-A DEVICE-A FILE-B DEVICE-B

FILE is a namespace (/run/netns/…). Each line on standard input is a JSON object of changes, answered by one
line on standard output, which begins when the devices are there; the program ends with its input.

| key | value |
|---|---|
| `a`, `b` | settings of the direction that leaves A or B: the fields of `Way` in wan.py |
| `cable_out` | seconds from now in which both directions lose everything |
| `seed` | starts the chance of loss and jitter again |

The answer counts what went each way: `{"a": [packets, bytes, lost, queue_full, too_big], "b": […]}`.

Nothing is imported but the standard library and nothing of this repository: it starts in 30 ms.
"""

import ctypes
import fcntl
import gc
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Callable, Mapping

_CLONE_NEWNET = 0x40000000  # sched.h
_TUNSETIFF = 0x400454CA  # if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
BATCHES_BEFORE_ORDERS = (
    200  # what was sent before a change is treated as before it; a flood does not delay it
)
BATCH = 64  # packets read from one device before the other has its turn
TICK = 0.0002  # seconds; what is due within one is sent with it, or each packet would cost a wake-up
HELD_BYTES = 64 << 20  # under way in one direction, whatever the settings say
MAX_SLEEP = 3600.0


class Direction:
    """Packets one way: dropped, or held until they are due."""

    def __init__(self, source: int, sink: int, seed: int) -> None:
        self.source, self.sink = source, sink
        self.counts = [0, 0, 0, 0, 0]
        self._held: list[tuple[float, int, bytes]] = []
        self._held_bytes = 0
        self._number = 0
        self._free_at = 0.0  # when the slow part of the line has sent all that it was given
        self._last_due = 0.0
        self._dark_until = 0.0
        self._rng = random.Random(seed)
        self.set({})

    def set(self, values: Mapping[str, float]) -> None:
        """Settings from now on; those not named are as on a perfect line."""
        self._delay = values.get("delay_ms", 0.0) / 1000
        self._jitter = values.get("jitter_ms", 0.0) / 1000
        self._loss = values.get("loss", 0.0)
        self._second_bytes = values.get("rate_mbit", 0.0) * 1e6 / 8
        self._queue_bytes = values.get("queue_bytes", 512 << 10)
        self._blackhole = bool(values.get("blackhole", False))
        self._max_bytes = int(values.get("max_bytes", 0)) or 1 << 16
        self._reorder = bool(values.get("reorder", False))
        self._slow = bool(self._delay or self._jitter or self._second_bytes)
        if not self._second_bytes:
            self._free_at = 0.0

    def seed(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def go_dark(self, until: float) -> None:
        """Lose all that comes before `until`; packets under way arrive."""
        self._dark_until = until

    def read(self, now: float) -> bool:
        """Take what the device has, up to a batch; whether there may be more."""
        source, counts, take = self.source, self.counts, self._take
        for _ in range(BATCH):
            try:
                packet = os.read(source, 1 << 16)
            except OSError:  # nothing there, or the device is being taken down
                return False
            size = len(packet)
            if self._blackhole or now < self._dark_until or (self._loss and self._rng.random() < self._loss):
                counts[2] += 1
            elif size > self._max_bytes:
                counts[4] += 1
            else:
                take(packet, size, now)
        return True

    def _take(self, packet: bytes, size: int, now: float) -> None:
        if not self._slow and not self._held:
            self._send(packet)
            return
        due = now
        if self._second_bytes:
            waiting = (self._free_at - now) * self._second_bytes
            if waiting + size > self._queue_bytes:
                self.counts[3] += 1
                return
            self._free_at = due = max(now, self._free_at) + size / self._second_bytes
        if self._held_bytes + size > HELD_BYTES:
            self.counts[3] += 1
            return
        due += self._delay
        if self._jitter:
            due += self._rng.random() * self._jitter
        if not self._reorder:
            self._last_due = due = max(due, self._last_due)
        self._number += 1
        self._held_bytes += size
        heapq.heappush(self._held, (due, self._number, packet))

    def release(self, now: float) -> None:
        """Send due packets."""
        held = self._held
        while held and held[0][0] <= now:
            packet = heapq.heappop(held)[2]
            self._held_bytes -= len(packet)
            self._send(packet)

    def next_due(self) -> float:
        """When `release` has something to do."""
        return self._held[0][0] if self._held else MAX_SLEEP * 1e6

    def _send(self, packet: bytes) -> None:
        try:
            os.write(self.sink, packet)
        except OSError:  # the device is down, or its queue full: lost like on any line
            self.counts[2] += 1
            return
        self.counts[0] += 1
        self.counts[1] += len(packet)


class Control:
    """Lines of standard input, and their answers."""

    def __init__(self, a: Direction, b: Direction) -> None:
        self._ways = {"a": a, "b": b}
        self._rest = b""

    def read(self, now: float) -> bool:
        """False when the input has ended."""
        data = os.read(0, 1 << 16)
        if not data:
            return False
        for way in self._ways.values():
            any(not way.read(now) for _ in range(BATCHES_BEFORE_ORDERS))
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line), now)
            answer = json.dumps({name: way.counts for name, way in self._ways.items()})
            os.write(1, answer.encode() + b"\n")
        return True

    def _obey(self, command: Mapping[str, object], now: float) -> None:
        for name, way in self._ways.items():
            values = command.get(name)
            if isinstance(values, dict):
                way.set(values)
            if isinstance(seconds := command.get("cable_out"), int | float):
                way.go_dark(now + seconds)
            if isinstance(seed := command.get("seed"), int):
                way.seed(seed if name == "a" else ~seed)


def run(a: Direction, b: Direction, control: Control, clock: Callable[[], float]) -> None:
    """Until the input ends. One thread, no allocation but the packets."""
    readable = [a.source, b.source, 0]
    while True:
        now = clock()
        due = min(a.next_due(), b.next_due())
        # select and not epoll: its timeout is in microseconds
        ready, _, _ = select.select(readable, [], [], min(max(TICK, due - now), MAX_SLEEP))
        now = clock()
        if a.source in ready:
            a.read(now)
        if b.source in ready:
            b.read(now)
        if 0 in ready and not control.read(now):
            return
        now += TICK / 2
        a.release(now)
        b.release(now)


def _device(namespace: str, name: str) -> int:
    """A TUN device of that name in that namespace; it lives as long as its descriptor."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(descriptor)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def main(argv: list[str]) -> None:
    """Run the program described at the top of the file."""
    space_a, name_a, space_b, name_b = argv
    left, right = _device(space_a, name_a), _device(space_b, name_b)
    a, b = Direction(left, right, 1), Direction(right, left, 2)
    gc.disable()  # nothing here makes cycles
    os.write(1, b"{}\n")
    run(a, b, Control(a, b), time.monotonic)


if __name__ == "__main__":
    main(sys.argv[1:])
