"""Weights that workers lack come from all members that have them, before the load: over real daemons."""

import asyncio
import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready
from meshd.model.weights_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import NAME, Homes, connected, homes_in
from tests.e2e.models import random_of, smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, api_of, child_pid, cli, model_of, play
from tests.process.lan import Lan, skip_reason

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 16
MB = 1_000_000
ON_WORKERS = ("--device", "none", "--set", "serve.output=head")  # workers have all layers
ON_A = (*ON_WORKERS, "--workers", "a")


def fetched(node: LocalNode) -> dict[str, Counter[str]]:
    """Return by worker the megabytes that it had from each member, as the head's log says."""
    found: dict[str, Counter[str]] = {}
    for line in (node.spec.home / "node.log").read_text().splitlines():
        if "worker_fetched" in line and (worker := re.search(r"name=(\S+)", line)):
            parts = re.findall(r"([0-9.]+) MB from ([\w-]+)", line)
            found.setdefault(worker[1], Counter()).update({name: float(count) for count, name in parts})
    return found


async def holder(homes: Homes, name: str, *options: str) -> tuple[LocalNode, str]:
    """A member that has the model, and the token of its mesh."""
    homes.has(name, smollm2())
    node = await homes.start(name, *options)
    return node, await node.token()


async def takers(homes: Homes, *names: str, token: str) -> list[LocalNode]:
    """Workers without a model."""
    return [await homes.start(name, token=token) for name in names]


async def is_ready_without_the_head(status: Status, reference: str) -> None:
    """It sent no weights with the load, and the model answers as it does alone."""
    assert model_of(status).weights_network_bytes == 0
    assert await api_of(status).complete(PROMPT, TOKENS) == reference


async def loaded_anew(head: LocalNode, before: Status) -> Status:
    """The status after llama-server has ended and another one is ready."""
    server = child_pid(before, "llama-server")
    os.kill(server, signal.SIGKILL)
    return await head.until(
        lambda s: model_ready(s) and any(child.pid not in (None, server) for child in s.children)
    )


def kept(homes: Homes, name: str) -> int:
    """Bytes of whole tensors on that node's disk, as the journal of a pack says, or its table."""
    folder = homes.cache(name) / "tensors"
    found = 0
    for path in [*folder.glob("*.whole"), *folder.glob("*.tensors")]:
        with contextlib.suppress(FileNotFoundError):  # a file that was being written has its name now
            lines = re.findall(rb"^tensor \d+ \d+ (\d+) ", path.read_bytes(), re.MULTILINE)
            found += sum(map(int, lines))
    return found


async def until_kept(homes: Homes, name: str, least: int) -> None:
    while kept(homes, name) < least:  # noqa: ASYNC110 - files of another process
        await asyncio.sleep(0.02)


def test_three_workers_fetch_their_parts_from_two_holders(tmp_path: Path) -> None:
    """The head and another member; only what each needs; and the next load takes nothing."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            one, token = await holder(homes, "one")
            await takers(homes, "a", "b", "c", token=token)
            await connected(one, 3)
            chosen = ("--workers", "a,b,c", "--min-workers", "3")
            head = await homes.serve("head", smollm2(), *ON_WORKERS, *chosen, *SAME_THREADS, token=token)
            first = await homes.fleet.ready(head)
            gave = fetched(head)
            assert gave.keys() == {"a", "b", "c"}
            told = sum(sum(one.values()) for one in gave.values()) * MB
            assert model_of(first).weights_fetched_bytes == pytest.approx(told, abs=MB)
            assert sum(gave.values(), Counter()).keys() == {"one", "head"}, gave
            for load in model_of(first).workers:
                taken = sum(gave[load.node].values()) * MB
                assert taken < load.total_bytes + 4 * PIECE_BYTES, "only what it needs, in whole pieces"
            assert sum(load.local_bytes for load in model_of(first).workers) > 60 * MB
            await is_ready_without_the_head(first, reference)
            second = await loaded_anew(head, first)
            again = model_of(second)
            assert again.weights_network_bytes == again.weights_fetched_bytes == 0
            assert fetched(head) == gave, "nothing was fetched again"

    play(check())


def test_a_worker_reads_the_model_that_its_own_cache_has(tmp_path: Path) -> None:
    """As `meshd demo` and `meshd model pull` put it there: nothing is fetched, and nothing sent."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            worker, token = await holder(homes, "a")
            head = await homes.serve("head", smollm2(), *ON_A, *SAME_THREADS, token=token)
            status = await homes.fleet.ready(head)
            assert not fetched(head) and not kept(homes, "a")
            model = model_of(status)
            assert model.weights_local_bytes > 60 * MB and not model.weights_fetched_bytes
            await is_ready_without_the_head(status, reference)
            assert [one.code for one in (await worker.status()).warnings] == ["no_backup"]

    play(check())


def test_a_transfer_that_is_killed_three_times_is_continued(tmp_path: Path) -> None:
    """The worker twice, a holder once; what was whole is not fetched again."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            slow = ("--max-upload", "4MB")  # of both that have the model
            one, token = await holder(homes, "one", *slow)
            taker = await homes.start("a", token=token)
            await connected(one, 1)
            head = await homes.serve("head", smollm2(), *ON_A, *slow, *SAME_THREADS, token=token)
            for killed in (1, 2):
                await until_kept(homes, "a", killed * 16 * MB)
                assert taker.pid is not None
                os.kill(taker.pid, signal.SIGKILL)
                homes.fleet.forget(taker)
                before = kept(homes, "a")
                taker = await homes.start("a")
            await until_kept(homes, "a", 48 * MB)
            assert one.pid is not None and not fetched(head), "it is not done"
            os.kill(one.pid, signal.SIGKILL)
            homes.fleet.forget(one)
            status = await homes.fleet.ready(head)
            [load] = model_of(status).workers
            [gave] = fetched(head).values()
            assert before >= 32 * MB
            assert sum(gave.values()) * MB < load.total_bytes - before + 4 * PIECE_BYTES
            await is_ready_without_the_head(status, reference)

    play(check())


BOTH = (*ON_WORKERS, "--ctx-size", "512", "--workers", "a,b", "--min-workers", "2")
APART = ("--stun", "none", "--no-portmap", "--listen", ":0")


@pytest.fixture
def lan() -> Iterator[Lan]:
    """Three machines: pieces of the head alone are for workers at the end of a line."""
    with Lan() as made:
        for machine in ("a", "b", "head"):
            made.plug(machine, 1)
        yield made


async def two_on(lan: Lan, homes: Homes) -> tuple[LocalNode, str]:
    """Workers without a model; the first, and the token of their mesh."""
    first = await homes.start("a", *APART, prefix=lan.prefix("a"))
    token = await first.token()
    await homes.start("b", *APART, token=token, prefix=lan.prefix("b"))
    await connected(first, 1)
    return first, token


async def medium(lan: Lan, homes: Homes, token: str, *options: str) -> LocalNode:
    """A head with a model of which whole pieces cost little more than the layers in them."""
    words = (*BOTH, *APART, *options, *SAME_THREADS)
    return await homes.serve("head", random_of("medium"), *words, token=token, prefix=lan.prefix("head"))


@pytest.mark.root
@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "-")
@pytest.mark.parametrize("give", ["own", "off"])
def test_two_workers_take_from_the_head_alone(lan: Lan, tmp_path: Path, give: str) -> None:
    """Before the load, if it gives pieces; a head that gives none sends the weights all the same."""

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            _first, token = await two_on(lan, homes)
            head = await medium(lan, homes, token, "--set", f"node.give_models={give}")
            model = model_of(await homes.fleet.ready(head))
            gave = {name: set(parts) for name, parts in fetched(head).items()}
            assert gave == ({"a": {"head"}, "b": {"head"}} if give == "own" else {})
            assert (model.weights_network_bytes == 0) == (give == "own")

    play(check())


@pytest.mark.parametrize("name", [f"mesh:{NAME}", NAME])
def test_a_head_without_the_model_takes_it_from_members_first(tmp_path: Path, name: str) -> None:
    """`--model` of a node that was never in the mesh, and again when the model is here."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with homes_in(tmp_path) as homes:
            file = homes.has("one", smollm2())
            one = await homes.start("one", "--model", str(file))
            token = await one.token()
            nobody = await cli(tmp_path / "none", "serve", "--model", name, **homes.variables("none"))
            why = "in no mesh yet" if name.startswith("mesh:") else f"no model `{NAME}` on this machine"
            assert nobody.returncode == 1 and why in nobody.stderr
            for _ in range(2):
                head = await homes.serve("head", name, *ON_WORKERS, *SAME_THREADS, token=token)
                status = await homes.fleet.ready(head)
                assert model_of(status).name == NAME
                await is_ready_without_the_head(status, reference)
                await head.stop()
                homes.fleet.forget(head)
            log = (head.spec.home / "node.log").read_text()
            assert log.count("model_fetched") == 1, "the second time it is here"

    play(check())
