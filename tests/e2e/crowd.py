"""Many real daemons on this machine: `.venv/bin/python -m tests.e2e.crowd --nodes 50`.

They join one after the other, a few at a time, until each sees all; then the CPU that each takes while
nothing happens is read from /proc.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from meshd.admin.api import InviteRequest
from meshd.admin.client import ask
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.nodes import Fleet, play

AT_ONCE = 4  # that start side by side: each takes most of a second of a core
QUIET = ("--no-mdns", "--no-portmap", "--stun", "none", "--log-level", "warning")


async def gather(fleet: Fleet, count: int) -> list[LocalNode]:
    """`count` members of one mesh; returns when the first one has admitted them all."""
    first = await fleet.worker("n0", *QUIET)
    await first.token()
    request = InviteRequest(uses=count, expires_s=3600, roles=("use", "work"))
    invite = await asyncio.to_thread(ask, first.spec.home, request)
    nodes = [first]
    while len(nodes) < count:
        more = range(len(nodes), min(count, len(nodes) + AT_ONCE))
        nodes += [await fleet.worker(f"n{number}", *QUIET, token=invite.token) for number in more]
        for node in nodes[-len(more) :]:
            await node.until(_is_up)  # one that has ended says why
        await first.until(partial(_has, len(nodes)))
    return nodes


def _is_up(status: Status) -> bool:
    return status.mesh is not None


def _has(count: int, status: Status) -> bool:
    return status.mesh is not None and status.mesh.members >= count


async def all_seen(nodes: Sequence[LocalNode]) -> list[Status]:
    """Wait until each sees every other one, directly or by what others say."""

    def sees_all(status: Status) -> bool:
        return sum(peer.present or peer.state == "connected" for peer in status.peers) >= len(nodes) - 1

    return [await node.until(sees_all) for node in nodes]


def sessions(status: Status) -> int:
    """With how many others this node is connected."""
    return sum(peer.state == "connected" for peer in status.peers)


async def idle_cpu(nodes: Sequence[LocalNode], seconds: float) -> list[float]:
    """Per cent of a core, for each."""
    before, began = [_cpu(node) for node in nodes], time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    return [100 * (_cpu(node) - then) / took for node, then in zip(nodes, before, strict=True)]


def _cpu(node: LocalNode) -> float:
    numbers = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print how long it took, with how many each is connected, and what being idle costs."""
    parser = argparse.ArgumentParser(description="many daemons in one mesh")
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--settle", type=float, default=180.0, help="seconds before CPU is read")
    parser.add_argument("--seconds", type=float, default=60.0, help="over which CPU is read")
    given = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stdout.flush()

    async def work(folder: Path) -> None:
        async with Fleet(folder) as fleet:
            nodes = await gather(fleet, given.nodes)
            say(f"{given.nodes} members")
            counts = sorted(map(sessions, await all_seen(nodes)))
            say(f"each sees all; sessions {counts[0]} to {counts[-1]}, median {statistics.median(counts):g}")
            await asyncio.sleep(given.settle)
            cpu = sorted(await idle_cpu(nodes, given.seconds))
            counts = sorted([sessions(await node.status()) for node in nodes])
            say(
                f"idle: {cpu[0]:.2f} to {cpu[-1]:.2f} % of a core, median {statistics.median(cpu):.2f} %; "
                f"sessions {counts[0]} to {counts[-1]}, median {statistics.median(counts):g}"
            )

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meshd-crowd-") as folder:
        play(work(Path(folder)), seconds=3600)


if __name__ == "__main__":
    main()
