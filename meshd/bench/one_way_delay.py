"""Measure how long a byte really takes one way through the delaying proxy of a distance (fleet/proxy.py).

The proxy is a program on the same cores: it wakes, reads and writes. That time counts as distance, not as
time of the measured program.
"""

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from meshd.base.tasks import Owner
from meshd.fleet.proxy import listening_socket
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ready import port_open

_ROUND_TRIPS = 25
MESSAGE = b"t" * 2400  # about what a token's activations are


async def measure_one_way(round_trips: Iterable[float]) -> dict[float, float]:
    """Measure the seconds one way for each round trip in ms but 0, which has no proxy. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        return {rtt: await _one_way(rtt, Path(name)) for rtt in round_trips if rtt}


async def _one_way(rtt_ms: float, folder: Path) -> float:
    """Return half the time that a proxy of `rtt_ms` adds to a round trip, from medians."""
    async with Owner() as owner:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with listening_socket() as free:
                near = int(free.getsockname()[1])
            proxy = OwnedChild(_proxy(near, port, rtt_ms, folder))
            owner.start(proxy.serve(), name="distance")
            await proxy.ensure_ready()
            through, direct = await _round_trip(near), await _round_trip(port)
        owner.cancel()
    return (through - direct) / 2


def _proxy(near: int, port: int, rtt_ms: float, folder: Path) -> ChildSpec:
    place = f"127.0.0.1:{near}:127.0.0.1:{port}"
    argv = (sys.executable, "-m", "meshd", "bench", "latency", "--proxy", place, "--ms", f"{rtt_ms:g}")
    return ChildSpec(name="distance", argv=argv, log=folder / "distance.log", probe=port_open(near))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        return  # the proxy resets what it still has at its end
    finally:
        writer.close()


async def _round_trip(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    clock = asyncio.get_running_loop().time
    took = []
    try:
        for _ in range(_ROUND_TRIPS):
            began = clock()
            writer.write(MESSAGE)
            await reader.readexactly(len(MESSAGE))
            took.append(clock() - began)
    finally:
        writer.close()
    return statistics.median(took)
