"""Two real workers of one machine: what one mesh-server pushes reaches the other past both daemons."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.admin.status import TunnelView
from meshd.fleet.fleet import LocalNode
from meshd.rpc import mesh_protocol as wire
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.bare_node import bare_node
from tests.e2e.hostile_stage import message
from tests.e2e.lent_pair import BUFFER, LentServer, lent_pair, push, take
from tests.e2e.nodes import LOCALLY, Fleet, child_pid, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

PIECE_BYTES = 4 << 20
ROOM = 8 << 20
NAMES = ("worker-0", "worker-1")


@asynccontextmanager
async def pair(folder: Path, *options: str) -> AsyncIterator[tuple[list[LocalNode], list[LentServer]]]:
    """Two workers with a mesh-server each, which know each other."""
    async with Fleet(folder) as fleet:
        first = await fleet.worker(NAMES[0], *LOCALLY, *options)
        token = await first.token()
        workers = [first, await fleet.worker(NAMES[1], *LOCALLY, *options, token=token)]
        async with (
            bare_node(folder / "head", token=token, name="head") as head,
            lent_pair(head, NAMES, room=ROOM) as servers,
        ):
            yield workers, servers


async def way_of(worker: LocalNode) -> TunnelView:
    (way,) = (await worker.status()).tunnels
    return way


async def crosses(servers: list[LentServer], size: int, token: int) -> None:
    """Push bytes of the first one's buffer there, then back to it."""
    first, second = servers
    data = os.urandom(size)
    await first.say(message(wire.WRITE, BUFFER, 0, 0, rest=data) + push(1, size, token))
    await second.say(take(0, size, token) + message(wire.READ, BUFFER, size, 0, 0, 0))
    assert await second.hear(wire.DATA) == data
    await second.say(push(0, size, token + 1))
    await first.say(message(wire.FILL, BUFFER, 0, 0, size) + take(1, size, token + 1))
    await first.say(message(wire.READ, BUFFER, size, 0, 0, 0))
    assert await first.hear(wire.DATA) == data


def test_pushes_go_past_the_daemons_both_ways(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (workers, servers):
            sizes = (1, 16 << 10, PIECE_BYTES)
            for number, size in enumerate(sizes):
                await crosses(servers, size, 2 * number)
            expected = sum(sizes) + len(sizes) * (wire.HEADER.size + 8)
            way = (await workers[0].until(lambda now: now.tunnels[0].received_bytes >= expected)).tunnels[0]
            assert (way.peer_name, way.listen) == ("worker-1", "local")
            assert (way.sent_bytes, way.received_bytes) == (expected, expected)
            log = await asyncio.to_thread((workers[0].spec.home / "logs" / "meshd.log").read_text)
            assert "push_way" in log and "kind=local" in log

    play(main())


def test_who_wants_all_compressed_pushes_through_the_daemons(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path, "--set", "links.compress=on") as (workers, servers):
            await crosses(servers, 16 << 10, 0)
            assert (await way_of(workers[0])).listen == "socketpair"

    play(main())


How = Callable[[list[LocalNode], list[LentServer], int], Awaitable[None]]


async def _ends_lease(_workers: list[LocalNode], servers: list[LentServer], victim: int) -> None:
    servers[victim].messages.stream.write_eof()


async def _kills_server(workers: list[LocalNode], _servers: list[LentServer], victim: int) -> None:
    os.kill(child_pid(await workers[victim].status(), CHILD_NAME), signal.SIGKILL)


async def _kills_daemon(workers: list[LocalNode], _servers: list[LentServer], victim: int) -> None:
    pid = workers[victim].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def _revokes(workers: list[LocalNode], _servers: list[LentServer], victim: int) -> None:
    done = await cli(workers[0].spec.home, "revoke", NAMES[victim])
    assert done.returncode == 0, done.stderr


ENDS = {
    "lease": (_ends_lease, 0),
    "server": (_kills_server, 1),
    "daemon": (_kills_daemon, 0),
    "ban": (_revokes, 1),
}


@pytest.mark.parametrize(("how", "victim"), ENDS.values(), ids=ENDS)
def test_who_waits_for_a_push_is_told_that_the_other_one_is_gone(
    tmp_path: Path, how: How, victim: int
) -> None:
    """As through the daemons: the end of the lease, a kill of either process, and a ban end it."""

    async def main() -> None:
        async with pair(tmp_path) as (workers, servers):
            await crosses(servers, 16 << 10, 0)
            assert (await way_of(workers[0])).listen == "local"
            left = servers[1 - victim]
            await left.say(take(victim, 8, 100))
            await how(workers, servers, victim)
            async with asyncio.timeout(20):
                why = await left.hear(wire.FAILED)
            assert why == f"lost neighbour {victim}: it ended".encode()

    play(main())
