"""A wide area line between two network namespaces, in userspace: delay, loss, and a bottleneck with a queue.

Few kernels have `tc netem`. Each end makes a namespace and a TUN device (`enter`) and hands the device over;
`carry` moves IP packets between the two, so that TCP, QUIC and SCTP meet the same line. Needs Linux, and root
or user namespaces.
"""

import array
import ctypes
import os
import random
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.fleet.networks import BATCH, CLONE_NEWNET, CLONE_NEWUSER, make_device

NEAR_HOST, FAR_HOST = "10.77.0.1", "10.77.0.2"
_QUEUE_BYTES = 512 << 10
TICK = 0.0002  # seconds; what is due within one is sent with it


@dataclass(frozen=True, slots=True, kw_only=True)
class WanLine:
    """A line, the same in both directions. `loss`: a probability; `mbit` 0: no limit."""

    rtt_ms: float = 0.0
    loss: float = 0.0
    mbit: float = 0.0


def enter(own: str, other: str) -> int:
    """Put this process into a new network with one device; return the device's descriptor.

    Raises UserError if that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno()).lower()
        raise UserError(f"cannot create a network namespace: {reason}", hint="run the bench as root")
    try:
        device = make_device(own, other=other)
    except OSError as error:
        raise UserError(
            f"cannot create a TUN device: {(error.strerror or '').lower()}", hint="run the bench as root"
        ) from error
    return device


def join(process: int) -> None:
    """Enter the network of another process. Raises UserError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(number, CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno()).lower()
            raise UserError(
                f"cannot enter the network of `{process}`: {reason}", hint="run the bench as root"
            )
    finally:
        os.close(number)


def hand_over(device: int, to: socket.socket) -> None:
    """Give a device to the process at the other end of a unix socket."""
    to.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [device]))])


def take_over(source: socket.socket) -> int:
    """Receive the device of `hand_over`. Raises UserError if the other process has ended instead."""
    numbers = array.array("i")
    data, ancillary, _, _ = source.recvmsg(1, socket.CMSG_SPACE(numbers.itemsize))
    if not data or not ancillary:
        raise UserError("an endpoint did not enter its network", hint="run the bench as root")
    numbers.frombytes(ancillary[0][2][: numbers.itemsize])
    return numbers[0]


class _Direction:
    """The packets of one direction: lost, or held until they are due."""

    def __init__(self, source: int, sink: int, line: WanLine, seed: int) -> None:
        self.source = source
        self._sink = sink
        self._line = line
        self._rng = random.Random(seed)
        self._held: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0

    def read(self, now: float) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, 1 << 16)
            except OSError:
                return
            if not self._line.loss or self._rng.random() >= self._line.loss:
                self._take(packet, now)

    def _take(self, packet: bytes, now: float) -> None:
        due = now
        if self._line.mbit:
            rate = self._line.mbit * 125_000
            if (self._free_at - now) * rate + len(packet) > _QUEUE_BYTES:
                return
            self._free_at = due = max(now, self._free_at) + len(packet) / rate
        self._held.append((due + self._line.rtt_ms / 2000, packet))

    def release(self, now: float) -> float:
        """Send the packets that are due; return when the next is."""
        while self._held and self._held[0][0] <= now + TICK / 2:
            try:
                os.write(self._sink, self._held.popleft()[1])
            except OSError:
                continue  # the end has gone
        return self._held[0][0] if self._held else now + 1.0


def carry(near: int, far: int, line: WanLine, go_on: Callable[[], bool], *, seed: int = 1) -> None:
    """Carry packets between two devices until `go_on`, called regularly, returns False."""
    there, back = _Direction(near, far, line, seed), _Direction(far, near, line, ~seed)
    clock = time.monotonic
    asked = 0.0
    while True:
        now = clock()
        if now >= asked:
            if not go_on():
                return
            asked = now + 0.2
        due = min(there.release(now), back.release(now))
        ready, _, _ = select.select([near, far], [], [], min(max(TICK, due - now), 0.2))
        now = clock()
        for direction in (there, back):
            if direction.source in ready:
                direction.read(now)


def main(argv: list[str]) -> None:
    """Run `python -m meshd.bench.wan NEAR FAR RTT_MS LOSS MBIT` until stdin ends.

    NEAR and FAR are descriptors of unix sockets to the ends.
    """
    near, far = (socket.socket(fileno=int(number)) for number in argv[:2])
    line = WanLine(rtt_ms=float(argv[2]), loss=float(argv[3]), mbit=float(argv[4]))
    with near, far:
        devices = take_over(near), take_over(far)
        carry(*devices, line, _input_is_open)


def _input_is_open() -> bool:
    ready, _, _ = select.select([0], [], [], 0)
    return not ready or bool(os.read(0, 1))


if __name__ == "__main__":
    main(sys.argv[1:])
