"""Measure what two daemons add between a head and a lent mesh-server: `python -m tests.bench.hop`.

Two members on this machine's loopback with TLS between them (`links`) and a socketpair at each end: a client
that writes and reads as a head does, and a server that only waits `--pause` milliseconds before each answer,
busily. In turn with it, the same with a direct connection between the two daemons, as on one machine
(`local`), and the same client and server over a bare loopback connection. Shows what the daemons add to a
round trip (a request there, its answer back, through both daemons each time), the CPU time of each daemon for
it, and bytes a second of long writes and reads.
"""

import argparse
import asyncio
import socket
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.local_way import LOCAL
from meshd.rpc import mesh_protocol as wire

from tests.bench.endpoints import print_line
from tests.bench.hop_ends import BUFFER_BYTES, message
from tests.bench.tunnel import BULK_BYTES

LINKS, BARE = "links", "bare"
SIZES = (64, 4 << 10, 16 << 10)  # bytes of a small message: there, and back
_PIECE_BYTES = 1 << 20
_BUFFER = 1
_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HopFigures:
    """The figures of a path in a pair: seconds of round trips by size; bytes a second both ways; CPU seconds
    of near and far for a round trip, by size, and for a GB there, then back."""

    round_trips: dict[int, list[float]]
    there: float
    back: float
    cpu: dict[int, tuple[float, ...]]
    bulk_cpu: tuple[float, ...]


class HopClient:
    """Blocking, as llama-server is."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._space = memoryview(bytearray(_PIECE_BYTES))
        hello = wire.MESSAGES[wire.HELLO].body.pack(wire.VERSION) + b"bench"
        self._ask(message(wire.HELLO, 1, hello))
        allocate = wire.MESSAGES[wire.ALLOCATE].body.pack(_BUFFER, 0, BUFFER_BYTES)
        self._ask(message(wire.ALLOCATE, 1, allocate))

    def _ask(self, request: bytes) -> None:
        self._end.sendall(request)
        self._answer()

    def _answer(self) -> None:
        head = self._space[: wire.HEADER.size]
        if self._end.recv_into(head, len(head), socket.MSG_WAITALL) < len(head):
            raise MeshdError("the connection ended; what the processes said is above")
        left, *_ = wire.HEADER.unpack(head)
        while left:
            count = self._end.recv_into(self._space, min(left, len(self._space)))
            if not count:
                raise MeshdError("the connection ended; what the processes said is above")
            left -= count

    def round_trips(self, size: int, count: int) -> list[float]:
        """Seconds of each, the server's pause included."""
        request = _write(bytes(size)) + _read(size)
        times = []
        for _ in range(count):
            began = time.perf_counter()
            self._ask(request)
            times.append(time.perf_counter() - began)
        return times

    def write(self, size: int = BULK_BYTES) -> float:
        """Bytes a second."""
        piece = _write(bytes(_PIECE_BYTES))
        began = time.perf_counter()
        for _ in range(size // _PIECE_BYTES):
            self._end.sendall(piece)
        self._ask(message(wire.SYNC, 1, b""))
        return size / (time.perf_counter() - began)

    def read(self, size: int = BULK_BYTES) -> float:
        """Bytes a second, with two requests under way."""
        began = time.perf_counter()
        self._end.sendall(_read(_PIECE_BYTES, 1))
        for at in range(1, size // _PIECE_BYTES):
            self._end.sendall(_read(_PIECE_BYTES, at + 1))
            self._answer()
        self._answer()
        return size / (time.perf_counter() - began)


def _write(data: bytes) -> bytes:
    return message(wire.WRITE, 1, wire.MESSAGES[wire.WRITE].body.pack(_BUFFER, 0, 0) + data)


def _read(size: int, identity: int = 1) -> bytes:
    return message(wire.READ, identity, wire.MESSAGES[wire.READ].body.pack(_BUFFER, size, 0, 0, 0))


class _HopPath:
    """One client, and the daemons that it goes through, if any."""

    def __init__(self, client: HopClient, daemons: Sequence[Process]) -> None:
        self.client = client
        self._daemons = daemons

    async def measure(self, count: int, bulk: bool) -> HopFigures:
        times, cpu = {}, {}
        for size in SIZES:
            before = await self._cpu()
            times[size] = self.client.round_trips(size, count)
            cpu[size] = tuple(
                (now - then) / count for now, then in zip(await self._cpu(), before, strict=True)
            )
        if not bulk:
            return HopFigures(times, 0.0, 0.0, cpu, ())
        before = await self._cpu()
        there = self.client.write()
        middle = await self._cpu()
        back = self.client.read()
        used = [
            later - earlier
            for earlier, later in zip(before + middle, middle + await self._cpu(), strict=True)
        ]
        return HopFigures(times, there, back, cpu, tuple(1e9 * one / BULK_BYTES for one in used))

    async def _cpu(self) -> list[float]:
        return [int(await _say(daemon, "cpu")) * 1e-9 for daemon in self._daemons]


async def _say(process: Process, line: str) -> str:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    return await _line(process)


async def _line(process: Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise MeshdError("a process did not start; what it said is above")
    return line.decode().strip()


@asynccontextmanager
async def _program(end: socket.socket, *arguments: str) -> AsyncIterator[Process]:
    """Run one end, which inherits `end`; it ends when its standard input does."""
    with end:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.hop_ends", *arguments, str(end.fileno())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[end.fileno()],
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def _meshd_path(stack: AsyncExitStack, pause: float, way: str) -> _HopPath:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshd-bench-")))
    client, near = socket.socketpair()
    far, server = socket.socketpair()
    await stack.enter_async_context(_program(server, "server", str(pause)))
    far_daemon = await stack.enter_async_context(_program(far, "far", str(folder / "far")))
    token = await _line(far_daemon)
    near_daemon = await stack.enter_async_context(_program(near, "near", str(folder / "near"), token, way))
    await _line(near_daemon)
    return _HopPath(_connected(stack, client), [near_daemon, far_daemon])


async def _bare_path(stack: AsyncExitStack, pause: float) -> _HopPath:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for end in client, server:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    await stack.enter_async_context(_program(server, "server", str(pause)))
    return _HopPath(_connected(stack, client), [])


def _connected(stack: AsyncExitStack, end: socket.socket) -> HopClient:
    stack.enter_context(end)
    end.settimeout(_LIMIT_SECONDS)
    return HopClient(end)


def _show(name: str, figures: Sequence[HopFigures], bare: Sequence[HopFigures]) -> None:
    for size in SIZES:
        ours = [statistics.median(one.round_trips[size]) for one in figures]
        added = [us - statistics.median(one.round_trips[size]) for us, one in zip(ours, bare, strict=True)]
        least = min(min(one.round_trips[size]) for one in figures)
        line = f"{name} {size:5} B: round trip {_us(ours)} µs, least {least * 1e6:.0f}"
        if figures is not bare:
            cpu = [", ".join(f"{1e6 * daemon:.0f}" for daemon in one.cpu[size]) for one in figures]
            line += f"; added {_us(added)}; CPU of near, far: {' | '.join(cpu)}"
        print_line(line)
    if figures[0].there:
        rates = [" ".join(f"{getattr(one, way) / 1e6:.0f}" for one in figures) for way in ("there", "back")]
        cpu = [", ".join(f"{one:.2f}" for one in each.bulk_cpu) for each in figures if each.bulk_cpu]
        tail = f"; CPU s a GB, near and far, writes then reads: {' | '.join(cpu)}" if cpu else ""
        print_line(f"{name} long writes {rates[0]} MB/s, reads {rates[1]} MB/s{tail}")


def _us(seconds: Sequence[float]) -> str:
    return " ".join(f"{1e6 * one:.0f}" for one in seconds)


async def _measure(pairs: int, pause: float, count: int, bulk: bool) -> dict[str, list[HopFigures]]:
    """All paths in turn. The client blocks: nothing else goes on here meanwhile."""
    async with AsyncExitStack() as stack:
        paths = {way: await _meshd_path(stack, pause, way) for way in (LINKS, LOCAL)}
        paths[BARE] = await _bare_path(stack, pause)
        figures: dict[str, list[HopFigures]] = {name: [] for name in paths}
        for _ in range(pairs):
            for name, path in paths.items():
                figures[name].append(await path.measure(count, bulk))
    return figures


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hop", description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, metavar="N")
    parser.add_argument("--count", type=int, default=2000, metavar="N", help="round trips of each size")
    parser.add_argument(
        "--pause",
        type=float,
        default=0.0,
        metavar="MS",
        help="of the server before each answer",
    )
    parser.add_argument("--no-bulk", action="store_true", help="small messages only")
    args = parser.parse_args(argv)
    try:
        found = asyncio.run(_measure(args.pairs, args.pause / 1000, args.count, not args.no_bulk))
    except (MeshdError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    for name, figures in found.items():
        _show(f"{name:5}", figures, found[BARE])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
