"""Measure what the emulated line can carry, and its cost: `.venv/bin/python -m tests.netns.line_speed`.

One TCP flow over a line with each setting; CPU is that of the emulator's process alone.
"""

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.netns import probe
from tests.netns.space import skip_reason
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

TICKS = os.sysconf("SC_CLK_TCK")
CASES = (
    ("100 Mbit/s, RTT 0", Way(rate_mbit=100), 20),
    ("100 Mbit/s, RTT 20 ms", Way(rate_mbit=100, delay_ms=10), 20),
    ("100 Mbit/s, RTT 100 ms", Way(rate_mbit=100, delay_ms=50), 20),
    ("100 Mbit/s, RTT 50 ms, loss 0.5 %", Way(rate_mbit=100, delay_ms=25, loss=0.005), 20),
    ("no limit, RTT 0", Way(), 200),
    ("no limit, RTT 20 ms", Way(delay_ms=10), 100),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Megabytes a second, and the share of one core that the emulator took."""

    rate: float
    share: float


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _measure(far: Host, near: Host, way: Way, megabytes: int) -> Figure:
    assert far.wan is not None
    far.wan.both(way)
    block = bytes(1 << 20)

    def send(sender: socket.socket) -> None:
        for _ in range(megabytes):
            sender.sendall(block)

    with probe.tcp_listener(near, near.address) as listener, probe.tcp_socket(far) as sender:
        sender.settimeout(120.0)
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            receiver.settimeout(120.0)
            began, before = time.monotonic(), _processor_seconds(far.wan.pid)
            thread = threading.Thread(target=send, args=(sender,))
            thread.start()
            left = megabytes << 20
            while left:
                left -= len(receiver.recv(min(left, 1 << 20)))
            took = time.monotonic() - began
            thread.join()
            return Figure((megabytes << 20) / 1e6 / took, (_processor_seconds(far.wan.pid) - before) / took)


def main() -> None:
    """Print a table."""
    if reason := skip_reason():
        raise SystemExit(reason)
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    sys.stdout.write(f"| line (TCP {control}) | MB/s | emulator, of one core |\n|---|---:|---:|\n")
    with World() as world:
        far, near = world.public("far", line=Line()), world.public("near")
        for name, way, megabytes in CASES:
            figure = _measure(far, near, way, megabytes)
            sys.stdout.write(f"| {name} | {figure.rate:.1f} | {100 * figure.share:.0f} % |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
