"""Two machines joined by a cable: what their mesh-servers exchange goes past both daemons, sealed."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.status import TunnelView
from meshd.base.tasks import Owner
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.fleet.proxy import run_loop
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.models import cache_folder, native, smollm2
from tests.e2e.nodes import child_pid
from tests.netns.space import Namespace

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

LEFT, RIGHT = "10.55.0.1", "10.55.0.2"
UNCOMPRESSED = ("--set", "links.compress=off")  # whatever the round trip of a busy machine is


@pytest.fixture
def ends() -> Iterator[tuple[Namespace, Namespace]]:
    with Namespace("left") as left, Namespace("right") as right:
        left.ip(f"link add eth0 type veth peer name eth0 netns {right.name}")
        for space, address in ((left, LEFT), (right, RIGHT)):
            space.ip(f"address add {address}/24 dev eth0", "link set eth0 up")
        yield left, right


class Pair:
    """A worker on each machine, and a head beside the left one."""

    def __init__(self, folder: Path, ends: tuple[Namespace, Namespace]) -> None:
        self._folder, self._ends = folder, ends
        self.workers: list[LocalNode] = []

    def _node(self, name: str, role: str, place: int, token: str, *options: str) -> LocalNode:
        return LocalNode(
            NodeSpec(
                name=name,
                role=role,
                home=self._folder / name,
                cache=cache_folder(),
                options=(*UNCOMPRESSED, "--model", str(smollm2()), *options),
                listen=f"{(LEFT, RIGHT)[place]}:{7700 + len(self.workers) + (role == 'serve')}",
                environment={"MESHD_JOIN": token} if token else {},
                prefix=self._ends[place].prefix,
            )
        )

    async def start(self, owner: Owner, split: str) -> LocalNode:
        """Start all, and return the head once the model answers."""
        token = ""
        for place in (0, 1):
            worker = self._node(f"worker-{place}", "worker", place, token)
            await start_all(owner, worker)
            self.workers.append(worker)
            token = token or await worker.token()
        alike = ("--min-workers", "2", "--ctx-size", "1024", "--speculate", "off", "--device", "none")
        head = self._node("head", "serve", 0, token, "--split", split, "--port", "8080", *alike)
        await start_all(owner, head)
        await head.until(ready_or_raise)
        return head

    async def ways(self) -> list[TunnelView]:
        """Return the connections between the workers, as their daemons show them."""
        return [way for worker in self.workers for way in (await worker.status()).tunnels]


def test_results_by_layers_stay_on_the_links_which_survive_a_lost_path(
    ends: tuple[Namespace, Namespace],
) -> None:
    native()

    async def main(folder: Path) -> None:
        async with Owner() as owner:
            pair = Pair(folder, ends)
            await pair.start(owner, "always")
            ways = await pair.ways()
            assert ways and "sealed" not in {way.listen for way in ways}
            owner.cancel()

    with tempfile.TemporaryDirectory(prefix="meshd-sealed-") as name:
        run_loop(main(Path(name)))


def test_sums_cross_sealed_and_a_loss_is_noticed(ends: tuple[Namespace, Namespace]) -> None:
    native()

    async def main(folder: Path) -> None:
        async with Owner() as owner:
            pair = Pair(folder, ends)
            head = await pair.start(owner, "tensor")
            (way,) = await pair.ways()
            assert way.listen == "sealed"
            # The mesh-server of the far worker ends: the other one loses its neighbour, and all begins anew.
            before = child_pid(await pair.workers[1].status(), CHILD_NAME)
            os.kill(before, signal.SIGKILL)
            await head.until(lambda now: not ready_or_raise(now))
            await head.until(ready_or_raise)
            assert child_pid(await pair.workers[1].status(), CHILD_NAME) != before
            (again,) = await pair.ways()
            assert again.listen == "sealed"
            # Nobody else gets the keys: not the log, and not whoever lists processes.
            logs = await asyncio.to_thread(lambda: "".join(map(Path.read_text, folder.rglob("*.log"))))
            assert "kind=sealed" in logs
            place = Path(f"/proc/{child_pid(await pair.workers[1].status(), CHILD_NAME)}/cmdline")
            argv = await asyncio.to_thread(place.read_bytes)
            assert argv.split(b"\0")[0].endswith(b"mesh-server") and b"key" not in argv
            owner.cancel()

    with tempfile.TemporaryDirectory(prefix="meshd-sealed-") as name:
        run_loop(main(Path(name)))
