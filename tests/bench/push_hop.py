"""Time bytes from one lent mesh-server to the next: `python -m tests.bench.push_hop`.

Two real workers on this machine's loopback, introduced by a head that computes nothing: it has the same bytes
pushed there and back many times, with all requests given beforehand, so that no way to the head counts. A hop
is half of such a round: from the memory of one mesh-server to the memory of the other, through whatever lies
between them. CPU seconds of a hop are those of both daemons, and those of both mesh-servers.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from meshd.fleet.fleet import LocalNode
from meshd.rpc import mesh_protocol as wire
from meshd.worker.mesh_server import CHILD_NAME

from tests.bench.endpoints import print_line
from tests.e2e.bare_node import bare_node
from tests.e2e.hostile_stage import message
from tests.e2e.lent_pair import LentServer, lent_pair, push, take
from tests.e2e.nodes import LOCALLY, Fleet, child_pid, play

SIZES = (16 << 10, 8 << 20)  # bytes of the hidden state of a token, and of those of a prompt
_ROOM = 8 << 20
_ROUNDS = {SIZES[0]: 400, SIZES[1]: 20}


def _cpu_seconds(pids: Sequence[int]) -> float:
    """Sum up what these processes have used (proc(5))."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class _Rounds:
    """The bytes go there and back; tokens are counted up, as the head's module does."""

    def __init__(self, servers: Sequence[LentServer], piece: int) -> None:
        """Cut what is longer than `piece` bytes, as the head's module does."""
        self._servers = servers
        self._piece = piece
        self._token = 0

    def _pieces(self, size: int) -> list[tuple[int, int]]:
        pieces = []
        for at in range(0, size, self._piece):
            self._token += 1
            pieces.append((min(size - at, self._piece), self._token))
        return pieces

    async def seconds(self, size: int, count: int) -> float:
        """Return the time of one hop."""
        first, second = bytearray(), bytearray()
        for _ in range(count):
            there, back = self._pieces(size), self._pieces(size)
            first += b"".join([push(1, *one) for one in there] + [take(1, *one) for one in back])
            second += b"".join([take(0, *one) for one in there] + [push(0, *one) for one in back])
        sync = message(wire.SYNC)
        began = time.perf_counter()
        for server, said in zip(self._servers, (first, second), strict=True):
            await server.say(bytes(said) + sync)
        for server in self._servers:
            await server.hear(wire.SYNCED)
        return (time.perf_counter() - began) / (2 * count)


async def _measure(folder: Path, runs: int, piece: int) -> None:
    async with Fleet(folder) as fleet:
        first = await fleet.worker("worker-0", *LOCALLY)
        token = await first.token()
        workers: list[LocalNode] = [first, await fleet.worker("worker-1", *LOCALLY, token=token)]
        async with (
            bare_node(folder / "head", token=token, name="head") as head,
            lent_pair(head, [worker.spec.name for worker in workers], room=_ROOM) as servers,
        ):
            daemons = [worker.pid or 0 for worker in workers]
            native = [child_pid(await worker.status(), CHILD_NAME) for worker in workers]
            rounds = _Rounds(servers, piece)
            for size in SIZES:
                count = _ROUNDS[size]
                await rounds.seconds(size, count)
                before = [_cpu_seconds(pids) for pids in (daemons, native)]
                times = [await rounds.seconds(size, count) for _ in range(runs)]
                after = [_cpu_seconds(pids) for pids in (daemons, native)]
                cpu = [
                    1e3 * (now - then) / (2 * count * runs) for now, then in zip(after, before, strict=True)
                ]
                print_line(
                    f"{size:8} B: hop {1e3 * statistics.median(times):.3f} ms, least {1e3 * min(times):.3f}; "
                    f"CPU ms a hop: daemons {cpu[0]:.3f}, mesh-servers {cpu[1]:.3f}"
                )
            (way,) = (await first.status()).tunnels
            print_line(f"way: {way.listen}, {way.sent_bytes} bytes sent, {way.received_bytes} received")


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.push_hop", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, metavar="N")
    parser.add_argument(
        "--piece", type=int, default=4 << 20, metavar="BYTES", help="most that is pushed at once"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        play(_measure(Path(folder), args.runs, args.piece))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
