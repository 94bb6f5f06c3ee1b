"""`--split auto` over two machines joined by a cable: once it was measured, the next run is by tensors.

Here both are one machine, and tell their meshes otherwise: each has a boot id of its own.
"""

import asyncio
import json
import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.client import ask
from meshd.admin.plan_api import PlanReply, PlanRequest
from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.build.interface import LLAMA_SERVER
from meshd.cli.plan import MEASURE_SECONDS
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise, start_all
from meshd.fleet.proxy import run_loop
from meshd.plan.two_ways import AUTO_CHOOSES

from tests.bench.random_model import Shape, write_model
from tests.e2e.api_client import generation
from tests.e2e.models import made, native, own_cache
from tests.e2e.near_answers import WANTED, Tokens, check_near
from tests.e2e.nodes import child_pid, model_of
from tests.netns.space import Namespace

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

ADDRESSES = "10.56.0.1", "10.56.0.2"
API_PORT = 8080
TOKENS = 8
NEAR_WIDE = 0.05  # logprobs of the model below were up to 0.021 from those by layers
MEASURED_SECONDS = 400  # of which a plan may wait MEASURE_SECONDS for what it measures
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Few layers, and so few sums, of many weights: 190 MB. Two compute it faster, however slow a sum is here.
SHAPE = Shape(layers=2, width=2048, inner=24_576, heads=16, kv_heads=4, vocabulary=1024)
_BOOTED_AS = f'mount --bind "$0" {BOOT_ID} && exec "$@"'


def wide() -> Path:
    """A random llama of this shape."""

    def make(target: Path) -> None:
        with target.open("wb") as file:
            write_model(file, SHAPE, name="random wide")

    return made("random-wide-Q4_0.gguf", make)


@pytest.fixture
def ends() -> Iterator[tuple[Namespace, Namespace]]:
    with Namespace("left") as left, Namespace("right") as right:
        left.ip(f"link add eth0 type veth peer name eth0 netns {right.name}")
        for space, address in zip((left, right), ADDRESSES, strict=True):
            space.ip(f"address add {address}/24 dev eth0", "link set eth0 up")
        yield left, right


class Cable:
    """A worker on each machine, and a head beside the left one."""

    def __init__(self, folder: Path, ends: tuple[Namespace, Namespace]) -> None:
        self._folder, self._ends = folder, ends
        self._cache = own_cache(folder)
        self._ids: list[Path] = []
        for place in range(len(ends)):
            boot_id = folder / f"boot-id-{place}"
            boot_id.write_text(f"{place}0000000-0000-4000-8000-000000000000\n", encoding="ascii")
            self._ids.append(boot_id)

    def node(self, name: str, role: str, place: int, port: int, token: str, *options: str) -> LocalNode:
        booted = ("unshare", "--mount", "sh", "-c", _BOOTED_AS, str(self._ids[place]))
        return LocalNode(
            NodeSpec(
                name=name,
                role=role,
                home=self._folder / name,
                cache=self._cache,
                options=("--set", "links.compress=off", "--model", str(wide()), *options),
                listen=f"{ADDRESSES[place]}:{port}",
                environment={"MESHD_JOIN": token} if token else {},
                prefix=(*self._ends[place].prefix, *booted),
            )
        )


def answer(space: Namespace) -> Tokens:
    """Ask the head for some tokens."""
    body = generation("a cable", TOKENS) | WANTED
    request = urllib.request.Request(
        f"http://127.0.0.1:{API_PORT}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )

    def work() -> Tokens:
        with urllib.request.urlopen(request, timeout=120) as reply:
            found: Tokens = json.load(reply)["completion_probabilities"]
            return found

    return space.call(work)


def plan_of(head: LocalNode) -> PlanReply:
    return ask(head.spec.home, PlanRequest(model=str(wide())), seconds=MEASURE_SECONDS)


def is_by_tensors(status: Status) -> bool:
    return ready_or_raise(status) and model_of(status).split_why.startswith("each layer on ")


def test_tensors_are_chosen_once_they_are_measured_and_with_the_next_run(
    ends: tuple[Namespace, Namespace],
) -> None:
    native()

    async def main(folder: Path) -> None:
        async with Owner() as owner:
            cable, thread = Cable(folder, ends), ("--threads", "1")
            left = cable.node("left", "worker", 0, 7700, "", *thread)
            await start_all(owner, left)
            token = await left.token()
            right = cable.node("right", "worker", 1, 7700, token, *thread)
            options = ("--min-workers", "2", "--device", "none", "--ctx-size", "1024")
            head = cable.node("head", "serve", 0, 7701, token, *options, "--port", str(API_PORT))
            await start_all(owner, right, head)
            # Nothing was measured yet: by layers.
            status = await head.until(ready_or_raise)
            assert "; not by tensors: " in model_of(status).split_why
            before = answer(ends[0])
            # Once it is, a plan has it; but what runs goes on as it is.
            async with asyncio.timeout(MEASURED_SECONDS):
                while True:
                    plan = await asyncio.to_thread(plan_of, head)
                    if plan.ways is not None and plan.ways.text.endswith(AUTO_CHOOSES):
                        break
                    await asyncio.sleep(2)
            assert plan.plans[0].why.startswith("each layer on `left` and `right`: a prompt of")
            status = await head.status()
            assert not is_by_tensors(status)
            # The next run is by tensors, past the daemons, and says that this is new.
            os.kill(child_pid(status, LLAMA_SERVER), signal.SIGKILL)
            status = await head.until(is_by_tensors)
            assert "the previous run was split by layers" in model_of(status).split_why
            (way,) = (await left.status()).tunnels
            assert way.listen == "sealed"
            check_near(answer(ends[0]), before, near=NEAR_WIDE, least=TOKENS // 2)
            owner.cancel()

    with tempfile.TemporaryDirectory(prefix="meshd-auto-") as name:
        run_loop(main(Path(name)))
