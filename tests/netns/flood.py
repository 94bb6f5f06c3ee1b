"""Count joins and links that succeed from 100 ms away under a flood: `python -m tests.netns.flood`.

Prints, for each rate of strangers' connections (those named, or 0 120 200 1000), how many of ten joins and
ten links succeed: against silent strangers and those that begin TLS, from one network and from many.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.identity.invite import derive
from meshd.link.interface import Link
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.joining import Joining
from meshd.link.tcp.links import TcpDialer, TcpListener, dial_join
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.netns.programs import running
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

TRIES = 10
SOURCES = 64  # addresses of the strangers
ONE_WAY_MS = 50.0
CONNECTING = Path(__file__).with_name("connecting.py")
KEYS = derive(bytes(range(16)))


@dataclass(frozen=True, slots=True)
class Reached:
    """The successes of ten attempts, and how many connections a second the strangers really had."""

    joins: int
    links: int
    flood: float = 0.0


def under_flood(rate: float, words: str, networks: int) -> Reached:
    """Ten joins and ten links of honest nodes while strangers connect `rate` times a second.

    The strangers have 64 addresses in so many networks.
    """
    with World() as world:
        server, strangers = world.public("server"), world.public("strangers")
        honest = world.public("honest", line=Line.both(Way(delay_ms=ONE_WAY_MS)))
        sources = [f"30.{number % networks}.0.{1 + number // networks}" for number in range(SOURCES)]
        strangers.space.ip(*(f"addr add {one}/32 dev lo" for one in sources))
        world.core.ip(f"route add 30.0.0.0/8 via {strangers.v4[0]}")
        mesh = TestMesh()
        far, member, guest = mesh.node(), mesh.node(), mesh.stranger()
        far.invite(KEYS)
        far.handshake = replace(far.handshake, callers=Callers())
        with listening(server, far) as port:
            place = trusted([Candidate(server.v4[0], port)])

            async def attempt_all() -> Reached:
                joins = await successes(
                    lambda: dial_join(place, handshake=guest.now(), inviter=far.peer, join=KEYS)
                )
                dialer = TcpDialer(member.now)
                return Reached(joins, await successes(lambda: dialer.dial(far.peer, place)))

            def work() -> Reached:
                return honest.space.call(lambda: asyncio.run(attempt_all()))

            if not rate:
                return work()
            with tempfile.TemporaryDirectory(prefix="flood-") as folder:
                counted = Path(folder, "count")
                command = (str(CONNECTING), server.v4[0], str(port), str(rate), words, str(counted), *sources)
                with running(strangers.space, "-I", "-S", *command):
                    reached = work()
                connected, seconds = map(float, counted.read_text().split())
                return replace(reached, flood=connected / seconds)


async def successes(dial: "Callable[[], Awaitable[Joining | Link]]") -> int:
    """Return how many of ten calls of `dial`, one after the other, ended with both sides proven."""
    count = 0
    for _ in range(TRIES):
        try:
            pipe = await dial()
        except MeshdError:
            continue
        count += 1
        await pipe.aclose()
    return count


@contextmanager
def listening(host: Host, node: Node) -> Iterator[int]:
    """Run a TCP listener of `node` on `host`, in a thread with a loop of its own; yields its port."""
    ready, loops, ports = threading.Event(), list[asyncio.AbstractEventLoop](), list[int]()
    end = asyncio.Event()

    async def serve() -> None:
        listener = TcpListener(node.now, host=host.v4[0], on_joiner=admitted)
        listener.open()
        async with serving(listener):
            loops.append(asyncio.get_running_loop())
            ports.append(listener.port)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: host.space.call(lambda: asyncio.run(serve())))
    thread.start()
    try:
        ready.wait()
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(end.set)
        thread.join()


async def admitted(joining: Joining) -> bool:
    """Let nobody in: the proof is what is tried."""
    return False


def main(*rates: str) -> None:
    """Run the program described at the top of the file."""
    for words, networks in (("silent", 1), ("hello", 1), ("silent", SOURCES), ("hello", SOURCES)):
        for rate in map(float, rates or ("0", "120", "200", "1000")):
            reached = under_flood(rate, words, networks)
            sys.stdout.write(
                f"{words}, {networks} networks, {rate:.0f}/s: "
                f"joins {reached.joins}, links {reached.links} of {TRIES}, "
                f"{reached.flood:.0f} connections a second\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
