"""`meshd bench transport`: meshd's links beside bare UDP, TCP and TLS, in one run.

Each measurement has two processes, joined by this machine's loopback, which shows what the processor allows,
or by a line of 100 Mbit/s in userspace (wan.py), which shows the effect of distance and loss, and on a TCP
flow that was there first. Ratios within one run are meaningful; absolute numbers depend on the machine.
"""

import asyncio
import json
import os
import platform
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.bench.interface import BenchOutput, TransportBenchArgs
from meshd.bench.transport_end import CONTROL, EndOrders
from meshd.bench.wan import WanLine

WAN_BYTES = 20 << 20
FAST_BYTES = 200 << 20  # of what runs at the speed of the processor and has little to do
SLOW_BYTES = 40 << 20
PINGS = 1000
MBIT = 100.0
BESIDE_SECONDS = 12.0
LINES = tuple(
    WanLine(rtt_ms=rtt, loss=loss, mbit=MBIT) for loss in (0.0, 0.005) for rtt in (20.0, 50.0, 100.0)
)
_OURS = ("tcp", "quic", "webrtc")
END = "meshd.bench.transport_end"  # the program of each side
FAST = frozenset({"tcp", "tls", "plain"})
LIMIT_SECONDS = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement. `rate` in bytes a second, `connect` and `pings` (64 B, 10 KB) in seconds."""

    transport: str
    control: str
    line: WanLine | None
    rate: float = 0.0
    connect: float = 0.0
    pings: tuple[float, ...] = ()
    beside: str = ""  # the congestion control of the TCP flow that ran at the same time
    beside_rate: float = 0.0
    failed: str = ""


def run(args: TransportBenchArgs, out: BenchOutput) -> int:
    """Measure and print. Returns 0 if everything could be measured, else 1. Raises MeshdError."""
    log.set_up(level="warning")
    figures = asyncio.run(measure_all(END, args, out))
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, TCP {_system_control()}"
    if args.as_json:
        out.json({"machine": machine, "figures": [_as_json(figure) for figure in figures]})
    else:
        show(figures, out)
        out.note(f"{machine}; {WAN_BYTES >> 20} MiB each over the line; c.c.: congestion control")
    return 1 if any(figure.failed for figure in figures) else 0


async def measure_all(end: str, args: TransportBenchArgs, out: BenchOutput) -> list[Figure]:
    """Measure everything. `end`: the module that runs each side."""
    found = []
    for transport in args.transports if args.loopback else ():
        out.progress(f"{transport}, this machine's loopback")
        bulk = FAST_BYTES if transport in FAST else SLOW_BYTES
        found.append(await measure(end, transport, None, bulk=0 if transport == "udp" else bulk, pings=PINGS))
    for line in LINES if args.lines else ():
        for transport in args.transports:
            for control in ("bbr", "cubic") if transport == "tls" else ("",):
                if transport != "udp":
                    out.progress(f"{transport} {control}, {_name(line)}")
                    found.append(await measure(end, transport, line, bulk=WAN_BYTES, control=control))
    for other in ("cubic", "bbr") if args.beside else ():
        for transport in args.transports:
            if transport in _OURS:
                out.progress(f"{transport} beside TCP {other}")
                found.append(await share(end, transport, WanLine(rtt_ms=50.0, mbit=MBIT), other))
    return found


# --- one measurement


async def measure(
    end: str, transport: str, line: WanLine | None, *, bulk: int, pings: int = 0, control: str = ""
) -> Figure:
    """Measure one transport over one line (None: loopback); an error is stored in the figure."""
    named = CONTROL.get(transport) or control or _system_control()
    figure = Figure(transport=transport, control=named, line=line)
    orders = EndOrders(transport=transport, is_near=True, talk=-1, control=control, bulk=bulk, pings=pings)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            async with AsyncExitStack() as stack:
                ends = _TwoEnds(end, stack, line)
                (near, _), *_ = await ends.run([orders])
    except (MeshdError, TimeoutError) as error:
        return replace(figure, failed=str(error) or "took too long")
    seconds = _number(near, "bulk")
    pings_seen = near.get("pings")
    return replace(
        figure,
        rate=bulk / seconds if seconds else 0.0,
        connect=_number(near, "connect"),
        pings=tuple(map(float, pings_seen)) if isinstance(pings_seen, list) else (),
    )


async def share(
    end: str, transport: str, line: WanLine, other: str, *, seconds: float = BESIDE_SECONDS
) -> Figure:
    """Measure a link beside a TCP flow, both sending without pause for `seconds` (more than 3)."""
    figure = Figure(
        transport=transport, control=CONTROL.get(transport) or _system_control(), line=line, beside=other
    )
    flow = EndOrders(transport="plain", is_near=True, talk=-1, control=other, seconds=seconds)
    ours = EndOrders(transport=transport, is_near=True, talk=-1, seconds=seconds)
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            async with AsyncExitStack() as stack:
                results = await _TwoEnds(end, stack, line).run([flow, ours])
    except (MeshdError, TimeoutError) as error:
        return replace(figure, failed=str(error) or "took too long")
    (_, flow_far), (_, ours_far) = results
    return replace(figure, rate=_number(ours_far, "rate"), beside_rate=_number(flow_far, "rate"))


Answer = dict[str, object]


class _TwoEnds:
    """Pairs of processes with a line between them, which end with `stack`."""

    def __init__(self, end: str, stack: AsyncExitStack, line: WanLine | None) -> None:
        self._end = end
        self._stack = stack
        self._line = line
        self._networks: tuple[int, int] | None = None  # processes whose networks later pairs enter

    async def run(self, all_orders: Sequence[EndOrders]) -> list[tuple[Answer, Answer]]:
        """Start all pairs, let them begin together, and collect their results."""
        pairs = [await self._pair(orders) for orders in all_orders]
        for pair in pairs:
            for process in pair:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
        results = []
        for near, far in pairs:
            results.append((await _answer(near), await _answer(far)))
        return results

    async def _pair(self, orders: EndOrders) -> tuple[asyncio.subprocess.Process, asyncio.subprocess.Process]:
        talk = self._sockets()
        ends: list[asyncio.subprocess.Process] = []
        devices = [self._sockets(), self._sockets()] if self._line is not None else []
        for at, is_near in enumerate((True, False)):
            own_orders = replace(orders, is_near=is_near, talk=talk[at].fileno())
            if self._networks is not None:
                own_orders = replace(own_orders, join=self._networks[at])
            elif devices:
                own_orders = replace(own_orders, device=devices[at][1].fileno())
            passed = [own_orders.talk, own_orders.device] if own_orders.device >= 0 else [own_orders.talk]
            ends.append(await self._start(self._end, [json.dumps(asdict(own_orders))], passed))
        for own in talk:
            own.close()
        if self._line is not None and self._networks is None:
            self._networks = ends[0].pid, ends[1].pid
            line = self._line
            numbers = [devices[0][0].fileno(), devices[1][0].fileno()]
            settings = [*map(str, numbers), str(line.rtt_ms), str(line.loss), str(line.mbit)]
            await self._start("meshd.bench.wan", settings, numbers)
        for end in ends:
            if not (await _line_of(end)).startswith("ready"):
                raise MeshdError("one end did not start")
        return ends[0], ends[1]

    def _sockets(self) -> tuple[socket.socket, socket.socket]:
        both = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in both:
            self._stack.callback(end.close)
        return both

    async def _start(
        self, module: str, arguments: Sequence[str], passed: Sequence[int]
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=passed,
        )
        self._stack.push_async_callback(_end, process)
        return process


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise MeshdError("one end of the measurement has exited; its output is above")
    return line.decode()


async def _answer(process: asyncio.subprocess.Process) -> Answer:
    answer: Answer = json.loads(await _line_of(process))
    return answer


def _number(answer: Answer, name: str) -> float:
    value = answer.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


# --- what is shown


def _system_control() -> str:
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def _name(line: WanLine | None) -> str:
    if line is None:
        return "loopback"
    return f"RTT {line.rtt_ms:.0f} ms" + (f", loss {100 * line.loss:.1f} %" if line.loss else "")


def show(figures: Sequence[Figure], out: BenchOutput) -> None:
    """Print a table for each part that was measured."""
    # over loopback
    local = [figure for figure in figures if figure.line is None]
    bare = next((figure.pings for figure in local if figure.transport == "udp"), ())
    if local:
        out.table(
            ("WAY", "C.C.", "MB/S", "RTT 64 B", "RTT 10 KB", "ADDED TO UDP", "CONNECT"),
            [
                (
                    figure.transport,
                    figure.control,
                    figure.failed or f"{figure.rate / 1e6:.1f}",
                    *(f"{1e6 * ping:.0f} µs" for ping in figure.pings or (0.0, 0.0)),
                    ", ".join(f"{1e6 * (a - b):.0f} µs" for a, b in zip(figure.pings, bare, strict=False)),
                    f"{1e3 * figure.connect:.0f} ms",
                )
                for figure in local
            ],
        )
        out.line()
    # over lines
    lined = [figure for figure in figures if figure.line is not None and not figure.beside]
    if lined:
        lines = list(dict.fromkeys(figure.line for figure in lined))
        rows: dict[tuple[str, str], dict[WanLine | None, str]] = {}
        for figure in lined:
            cells = rows.setdefault((figure.transport, figure.control), {})
            cells[figure.line] = figure.failed or f"{figure.rate / 1e6:.1f}"
        out.table(
            ("WAY (MB/S)", "C.C.", *map(_name, lines)),
            [(*key, *(cells.get(line, "") for line in lines)) for key, cells in rows.items()],
        )
        out.line()
    # beside a TCP flow
    shared = [figure for figure in figures if figure.beside]
    if shared:
        out.table(
            ("WAY", "BESIDE TCP", "OURS, MB/S", "TCP, MB/S", "OURS", "TCP'S"),
            [
                (
                    figure.transport,
                    figure.beside,
                    figure.failed or f"{figure.rate / 1e6:.1f}",
                    f"{figure.beside_rate / 1e6:.1f}",
                    *(f"{100 * part / (MBIT * 125_000):.0f} %" for part in (figure.rate, figure.beside_rate)),
                )
                for figure in shared
            ],
        )


def _as_json(figure: Figure) -> dict[str, str | float | list[float] | dict[str, float] | None]:
    return {
        "way": figure.transport,
        "congestion_control": figure.control,
        "line": None if figure.line is None else asdict(figure.line),
        "bytes_a_second": figure.rate,
        "connect_seconds": figure.connect,
        "round_trip_seconds": list(figure.pings),
        "beside": figure.beside,
        "beside_bytes_a_second": figure.beside_rate,
        "failed": figure.failed,
    }
