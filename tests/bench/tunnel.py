"""Compare the tunnel on loopback with a bare two-hop TLS pump: bytes per second, and small round trips.

`python -m tests.bench.tunnel --pairs 3`. The pump (endpoints.py) shows what any two hops in Python cost.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.bench.figures import with_spread

BULK_BYTES = 512 << 20
CHUNK_BYTES = 256 << 10
_ROUND_TRIPS = 2000
SMALL_BYTES = 64
_START_SECONDS = 30.0
LEAST_RATE, MOST_ADDED = 0.6, 1.5  # targets, relative to the pump


@dataclass(frozen=True, slots=True)
class TunnelPath:
    """One measurement of one path: bytes per second, and median seconds for a round trip of 64 bytes."""

    rate: float
    round_trip: float


@dataclass(frozen=True, slots=True)
class TunnelResult:
    """The measurements in the order of the runs. `plain`: the round trip of a direct TCP connection."""

    meshd: tuple[TunnelPath, ...]
    bare: tuple[TunnelPath, ...]
    plain: tuple[float, ...]

    @property
    def rate_ratios(self) -> list[float]:
        """meshd's throughput divided by the bare pump's, for each pair."""
        return [ours.rate / bare.rate for ours, bare in zip(self.meshd, self.bare, strict=True)]

    @property
    def added(self) -> tuple[list[float], list[float]]:
        """The seconds that meshd adds to a round trip, and those that the bare pump adds, for each pair."""
        return _above(self.meshd, self.plain), _above(self.bare, self.plain)

    @property
    def added_ratios(self) -> list[float]:
        """The time that meshd adds divided by the bare pump's, for each pair."""
        return [ours / bare for ours, bare in zip(*self.added, strict=True)]


def _above(paths: Sequence[TunnelPath], plain: Sequence[float]) -> list[float]:
    return [path.round_trip - seconds for path, seconds in zip(paths, plain, strict=True)]


async def measure(pairs: int) -> TunnelResult:
    """Start both paths and measure them in turn. Raises MeshdError."""
    server = await asyncio.start_server(_sink_or_echo, "127.0.0.1", 0, limit=CHUNK_BYTES)
    target = int(server.sockets[0].getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        folder = Path(name)
        async with (
            server,
            program("tls-far", str(target)) as tls_far,
            program("tls-near", tls_far) as tls_near,
            program("mesh-far", str(folder / "far"), str(target)) as token,
            program("mesh-near", str(folder / "near"), token) as mesh_near,
        ):
            plain: list[float] = []
            meshd: list[TunnelPath] = []
            bare: list[TunnelPath] = []
            for _ in range(pairs):
                meshd.append(await _measure_path(int(mesh_near)))
                bare.append(await _measure_path(int(tls_near)))
                plain.append(await _ping(target))
    return TunnelResult(tuple(meshd), tuple(bare), tuple(plain))


async def _measure_path(port: int) -> TunnelPath:
    return TunnelPath(rate=await _bulk(port), round_trip=await _ping(port))


async def _bulk(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK_BYTES)
    chunk = bytes(CHUNK_BYTES)
    began = asyncio.get_running_loop().time()
    writer.write(b"B")  # no half-close to mark the end: the bare pump's TLS has none
    for _ in range(BULK_BYTES // CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    await reader.readexactly(1)
    seconds = asyncio.get_running_loop().time() - began
    writer.close()
    return BULK_BYTES / seconds


async def _ping(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"E")
    loop = asyncio.get_running_loop()
    times = []
    small = bytes(SMALL_BYTES)
    for _ in range(_ROUND_TRIPS):
        began = loop.time()
        writer.write(small)
        await reader.readexactly(SMALL_BYTES)
        times.append(loop.time() - began)
    writer.close()
    return statistics.median(times)


async def _sink_or_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        kind = await reader.readexactly(1)
        count = 0
        while data := await reader.read(CHUNK_BYTES):
            count += len(data)
            if kind == b"E":
                writer.write(data)
            elif count == BULK_BYTES:
                writer.write(b"!")
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[str]:
    """Run one endpoint within the block; yield the line that it prints. It ends with its standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.endpoints",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise MeshdError(f"the endpoint `{arguments[0]}` did not start")
        yield line.decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


def lines(result: TunnelResult) -> list[str]:
    """Return what was measured, for people."""
    rates = [[path.rate / 1e6 for path in paths] for paths in (result.meshd, result.bare)]
    added = [[seconds * 1e6 for seconds in path] for path in result.added]
    return [
        f"bytes: {with_spread(rates[0])} MB/s, bare TLS pump {with_spread(rates[1])} MB/s, "
        f"ratio {with_spread(result.rate_ratios, '.3f')}, target ≥ {LEAST_RATE}",
        f"added round trip: {with_spread(added[0])} µs, bare TLS pump {with_spread(added[1])} µs, "
        f"ratio {with_spread(result.added_ratios, '.3f')}, target ≤ {MOST_ADDED}",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    for line in lines(asyncio.run(measure(parser.parse_args().pairs))):
        sys.stdout.write(line + "\n")
