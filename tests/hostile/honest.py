"""An honest node as a process: `python -m tests.hostile.honest HOME NAME`, with MESHD_JOIN for a token.

Built as the daemon builds itself, with its tunnels, without llama.cpp. Says `token WORDS` once it is there.
Then it does what it is told, a line each: `expose NODE` (an echo server), `use NODE PID` (through a tunnel,
for ever; the node's process), `look` (prints how that goes, as JSON). It ends with its input.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import Owner
from meshd.config.forms import HostPort
from meshd.config.tree import LinksConfig
from meshd.daemon.member_node import MemberNode
from meshd.link.quic import engine as _quic  # noqa: F401 - else loaded in a thread, at whatever time
from meshd.link.webrtc import session as _webrtc  # noqa: F401 - likewise: 33 MiB, which are no growth
from meshd.tunnel.user_tunnels import OwnTunnels

from tests.e2e.bare_node import bare_node, connected

SERVICE = "live"
BEAT_SECONDS = 0.05
BEAT = 1024  # bytes
MOST_PAUSES = 200


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(BEAT):
            writer.write(data)
            await writer.drain()
    writer.close()


def _kept_waiting(pids: Sequence[int]) -> list[float]:
    """Return how many seconds the loop of each process was ready, and others had the processors."""
    # Documentation/scheduler/sched-stats.rst: the second number is ns of waiting on a run queue
    return [int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9 for pid in pids]


def own_pause(seconds: float, before: Sequence[float], after: Sequence[float]) -> float:
    """Return the seconds of a pause in which neither process was kept waiting for a processor.

    Both may have waited at the same time, so only the longer of the two waits is taken off.
    """
    return max(0.0, seconds - max(late - early for early, late in zip(before, after, strict=True)))


class _Node:
    """The tunnels and tasks of a node, beside its mesh."""

    def __init__(self, member: MemberNode, tunnels: OwnTunnels, owner: Owner) -> None:
        self._member = member
        self._tunnels = tunnels
        self._owner = owner
        self._pauses: list[tuple[float, float]] = []  # the longest: their own seconds, and by the clock
        self._pids: tuple[int, ...] = (os.getpid(),)
        self._before: tuple[float, list[float]] | None = None  # of the beat that waits for its echo
        self._beats = 0
        self._wrong = ""

    async def expose(self, name: str) -> None:
        """The echo server, to that node."""
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        self._owner.start(server.serve_forever(), name="echo")
        port = server.sockets[0].getsockname()[1]
        peer = await connected(self._member, name)
        self._tunnels.expose(SERVICE, host="127.0.0.1", port=port, peers=[peer])

    async def use(self, name: str, pid: int) -> None:
        """The service of that node, a process, from here on."""
        peer = await connected(self._member, name)
        opened = await self._tunnels.open(peer, SERVICE, host="127.0.0.1", port=0)
        self._pids = (os.getpid(), pid)
        self._owner.start(self._beat(int(opened.listen.rpartition(":")[2])), name="beat")

    async def _beat(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        loop = asyncio.get_running_loop()
        try:
            while True:
                said = os.urandom(BEAT)
                self._before = (loop.time(), _kept_waiting(self._pids))
                writer.write(said)
                if await reader.readexactly(BEAT) != said:
                    self._wrong = "other bytes came back"
                self._keep(*self._before)
                self._before = None
                self._beats += 1
                await asyncio.sleep(BEAT_SECONDS)
        except (OSError, EOFError) as error:
            self._wrong = f"the stream ended: {error!r}"
        finally:
            writer.close()

    def _keep(self, began: float, before: Sequence[float]) -> None:
        seconds = asyncio.get_running_loop().time() - began
        self._pauses.append((own_pause(seconds, before, _kept_waiting(self._pids)), seconds))
        if len(self._pauses) > 2 * MOST_PAUSES:
            self._pauses = sorted(self._pauses)[-MOST_PAUSES:]

    def look(self) -> str:
        """Return how it goes; pauses are kept anew from here on."""
        if self._before is not None:
            self._keep(*self._before)
        pauses, self._pauses = self._pauses, []
        return json.dumps({"beats": self._beats, "pauses": pauses, "wrong": self._wrong})


def say(text: str) -> None:
    """A line to the process that started this one."""
    os.write(1, f"{text}\n".encode())


async def _live(home: Path, name: str) -> None:
    links = LinksConfig(listen=HostPort("127.0.0.1", 0), stun=(), no_mdns=True, no_portmap=True)
    async with bare_node(home, name=name, token=os.environ.get("MESHD_JOIN", ""), links=links) as member:
        tunnels = OwnTunnels(mesh=member.mesh, save=lambda _blob: None)
        async with Owner() as owner:
            owner.start(tunnels.serve(), name="tunnels")
            node = _Node(member, tunnels, owner)
            say(f"token {member.printed_token() or ''}")
            while words := (await asyncio.to_thread(sys.stdin.readline)).split():
                match words:
                    case ["expose", other]:
                        await node.expose(other)
                        say("done")
                    case ["use", other, pid]:
                        await node.use(other, int(pid))
                        say("done")
                    case ["look"]:
                        say(node.look())
            owner.cancel()


if __name__ == "__main__":
    log.set_up(level="info", stream=Path(sys.argv[1]).with_suffix(".log").open("w", encoding="utf-8"))
    asyncio.run(_live(Path(sys.argv[1]), sys.argv[2]))
