"""Two machines joined by a cable: what their mesh-servers exchange goes past both daemons, sealed."""

import asyncio
import base64
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from meshd.admin.status import TunnelView
from meshd.base.tasks import Owner
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.fleet.proxy import run_loop
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.models import cache_folder, native, smollm2
from tests.e2e.nodes import child_pid
from tests.netns.key_traces import files_in, found_in, said_to_processes
from tests.netns.space import Namespace

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

KEPT = Path(__file__).parent / "keys_kept"
KEYS = 3  # of a connection: its secret, and one for each direction
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

    def __init__(self, folder: Path, ends: tuple[Namespace, Namespace], keys: Path | None = None) -> None:
        """`keys`: a file in which the nodes write down the keys of their connections."""
        self._folder, self._ends = folder, ends
        self._environment = {} if keys is None else {"PYTHONPATH": str(KEPT), "KEPT_KEYS": str(keys)}
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
                environment=self._environment | ({"MESHD_JOIN": token} if token else {}),
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

    async def servers(self) -> list[int]:
        """Return the process of each worker's mesh-server."""
        return [child_pid(await worker.status(), CHILD_NAME) for worker in self.workers]

    async def ways(self) -> list[TunnelView]:
        """Return the connections between the workers, as their daemons show them."""
        return [way for worker in self.workers for way in (await worker.status()).tunnels]


def _kept(file: Path) -> set[bytes]:
    """Return the secrets and keys of which both ends know."""
    lines = Counter(file.read_text(encoding="ascii").splitlines())
    assert set(lines.values()) == {2}, "each end has derived the same keys"
    return {bytes.fromhex(word) for line in lines for word in line.split()}


def _traces(secrets: set[bytes], homes: Path, servers: Sequence[int]) -> list[str]:
    """Name the files of the nodes, and the processes, in which any of these can be read."""
    files, processes = dict(files_in(homes)), dict(said_to_processes())
    logs = [content for name, content in files.items() if name.endswith("/meshd.log")]
    assert len(logs) == 3 and any(b"kind=sealed" in content for content in logs)
    nodes = [name for name, content in processes.items() if b"KEPT_KEYS=" in content]
    assert len(nodes) >= 3, "two workers and a head"
    for pid in servers:
        assert b"mesh-server" in processes[f"/proc/{pid}/cmdline"] and processes[f"/proc/{pid}/environ"]
    return found_in(secrets, [*files.items(), *processes.items()])


@pytest.mark.parametrize("around", [b"", b"{", b"=:", b"end"])
def test_a_secret_is_found_in_whatever_form(around: bytes) -> None:
    secret = bytes(range(120, 152))
    whole = around + secret + around
    forms = [whole, repr(whole).encode(), whole.hex().encode(), str(list(whole)).encode()]
    forms += [base64.b64encode(whole), base64.urlsafe_b64encode(whole)]
    places = [(str(number), form) for number, form in enumerate(forms)]
    assert found_in([bytes(32), secret], places) == ["0", "1", "2", "3", "4", "5"]
    assert found_in([secret[::-1]], places) == []


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


def test_sums_cross_sealed_a_loss_is_noticed_and_no_key_is_to_be_read(
    ends: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    native()
    keys = tmp_path / "keys"

    async def main(folder: Path) -> None:
        async with Owner() as owner:
            pair = Pair(folder, ends, keys)
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
            secrets = _kept(keys)
            assert len(secrets) == 2 * KEYS, "of the first run, and of the next"
            assert await asyncio.to_thread(_traces, secrets, folder, await pair.servers()) == []
            owner.cancel()

    with tempfile.TemporaryDirectory(prefix="meshd-sealed-") as name:
        run_loop(main(Path(name)))
