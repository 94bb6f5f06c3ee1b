"""The head introduces workers to one another, tells llama-server, and says in status what came of it."""

import asyncio
import os
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import PeerState
from meshd.role.head.split_plan import HeadOptions

from tests.sim.loop import run
from tests.unit.role.head.scene import Scene, scene
from tests.unit.role.rig import COMPRESSED_VERSION
from tests.unit.role.stubs import StubChild

NAMES = ("anna", "bert", "carl")


def descriptor(child: StubChild, name: str) -> int:
    assert child.spec is not None
    return int(child.spec.env[name])


def peers_of(child: StubChild) -> list[str]:
    """What llama-server reads from GGML_RPC_PEERS_FD."""
    return os.read(descriptor(child, "GGML_RPC_PEERS_FD"), 4096).decode().splitlines()


def model(it: Scene) -> ModelStatus:
    found = it.serve.status.model
    assert found is not None
    return found


def pushes(it: Scene) -> dict[str, tuple[bool | None, str]]:
    return {part.node: (part.push, part.why_no_push) for part in model(it).split}


async def held(it: Scene, *names: str) -> asyncio.Future[ReadyReport]:
    """Workers, and a head that has started llama-server and gets no token until the future is set."""
    for name in names:
        it.worker(name)
    ready: asyncio.Future[ReadyReport] = asyncio.get_running_loop().create_future()
    it.bench.ready = ready
    it.start()
    async with asyncio.timeout(60):
        while not it.bench.children or it.llama.spec is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    await asyncio.sleep(10)
    return ready


def yes() -> ReadyReport:
    return ReadyReport(True, "", 0.1)


def options() -> dict[str, object]:
    return {"min_workers": 3, "devices": ("none",)}


def test_each_worker_gets_the_next_one_as_its_neighbour(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            ready = await held(it, *NAMES)
            ends = [tunnel.endpoint for tunnel in it.bench.tunnels]
            assert peers_of(it.llama) == [f"{ends[0]} {ends[1]} 1", f"{ends[1]} {ends[2]} 2"]
            told = [it.workers[name].children[-1].orders() for name in NAMES]
            assert [[line.split()[:2] for line in lines] for lines in told] == [
                [["peer", "1"]],
                [["peer", "2"]],
                [],
            ]
            tunnel = it.workers["anna"].tunnels[0]
            assert tunnel.asked.peer == it.workers["bert"].mesh.key.peer
            assert told[0] == [f"peer 1 {tunnel.endpoint} {tunnel.asked.client.secret.hex()}"]
            assert dict(tunnel.asked.metadata) == dict(it.bench.tunnels[1].asked.metadata), (
                "of the lease of this head"
            )
            it.llama.report(f"push {ends[0]} {ends[1]} yes")
            it.llama.report(f"push {ends[1]} {ends[2]} no no answer to the session")
            it.llama.report("push a b yes")
            it.llama.report("push a")
            await asyncio.sleep(1)
            ready.set_result(yes())
            await it.until(ModelState.READY)
            assert pushes(it) == {
                "anna": (None, ""),
                "bert": (True, ""),
                "carl": (False, "no answer to the session"),
                "head": (None, ""),
            }

    run(main())


TOLD = [("auto", (COMPRESSED_VERSION, False)), ("on", (COMPRESSED_VERSION, True)), ("off", (0, False))]


@pytest.mark.parametrize(("head", "told"), TOLD)
def test_what_goes_between_workers_is_compressed_as_the_head_would_have_it(
    tmp_path: Path, head: str, told: tuple[int, bool]
) -> None:
    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            it.head(compressed=0 if head == "off" else COMPRESSED_VERSION, always_compressed=head == "on")
            it.worker("anna")
            it.worker("bert")
            it.worker("carl", compressed=0)  # takes none
            (await held(it)).set_result(yes())
            await it.until(ModelState.READY)
            to_bert, to_carl = [it.workers[name].tunnels[0] for name in ("anna", "bert")]
            assert (to_bert.asked.compressed, to_bert.asked.always) == told
            assert to_carl.asked.compressed == 0

    run(main())


def test_why_there_is_no_way_the_worker_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            for name in NAMES:
                it.worker(name)
            carl = it.workers["carl"].mesh
            carl.services["push"] = (carl.services["push"][0], lambda _member, _metadata: "not today")
            ready = await held(it)
            ends = [tunnel.endpoint for tunnel in it.bench.tunnels]
            assert it.workers["bert"].children[-1].orders() == ["no 2"]
            assert len(peers_of(it.llama)) == 2, "llama-server asks, and is answered no"
            it.llama.report(f"push {ends[0]} {ends[1]} yes")
            it.llama.report(f"push {ends[1]} {ends[2]} no the worker has no way to it")
            await asyncio.sleep(1)
            ready.set_result(yes())
            await it.until(ModelState.READY)
            assert pushes(it)["carl"] == (False, "unreachable for 8 s: not today")
            assert pushes(it)["bert"] == (True, "")

    run(main())


def test_switched_off_nobody_is_introduced(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, push=False, **options()) as it:
            (await held(it, *NAMES)).set_result(yes())
            await it.until(ModelState.READY)
            assert it.llama.spec is not None and "GGML_RPC_PEERS_FD" not in it.llama.spec.env
            assert all(it.workers[name].children[-1].orders() == [] for name in NAMES)
            why = "disabled (`--no-push`)"
            assert pushes(it)["bert"] == pushes(it)["carl"] == (False, why)

    run(main())


def test_a_worker_that_does_not_know_how_is_left_out_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            for name in NAMES:
                it.worker(name, patched=name != "bert")
            (await held(it)).set_result(yes())
            await it.until(ModelState.READY)
            why = "bert does not support it"
            assert pushes(it)["bert"] == pushes(it)["carl"] == (False, why)
            assert it.llama.spec is not None and "GGML_RPC_PEERS_FD" not in it.llama.spec.env

    run(main())


def test_one_worker_has_no_neighbour(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.start()
            await it.until(ModelState.READY)
            assert {why for _, why in pushes(it).values()} == {""}
            assert {push for push, _ in pushes(it).values()} == {None}

    run(main())


def test_the_next_life_of_the_model_introduces_them_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            (await held(it, *NAMES)).set_result(yes())
            await it.until(ModelState.READY)
            assert pushes(it)["bert"] == (False, "llama-server did not report it")
            first = [tunnel.asked.metadata["lease"] for tunnel in it.bench.tunnels]
            it.workers["bert"].children[-1].die("killed")
            await it.until(ModelState.LOADING, "bert")
            await it.until(ModelState.READY)
            second = [tunnel.asked.metadata["lease"] for tunnel in it.bench.tunnels[3:]]
            assert not set(first) & set(second)
            tunnels = it.workers["anna"].tunnels
            assert [tunnel.asked.metadata["lease"] for tunnel in tunnels] == [first[1], second[1]]
            assert [tunnel.closed for tunnel in tunnels] == [True, False]

    run(main())


@pytest.mark.parametrize("dies", [True, False])
def test_who_is_lost_the_workers_know_better(tmp_path: Path, dies: bool) -> None:
    """When one goes, llama-server sees those go that waited for it, too, and names any of them."""

    async def main() -> None:
        async with scene(tmp_path, **options()) as it:
            (await held(it, *NAMES)).set_result(yes())
            await it.until(ModelState.READY)
            it.llama.report(f"lost {it.bench.tunnels[2].endpoint} end of file")
            await it.until(ModelState.LOADING, "llama-server lost worker carl")
            if dies:
                it.workers["bert"].children[-1].die("ended by signal 9")
                await it.until(ModelState.LOADING, "worker bert is lost: ended by signal 9")
            await it.until(ModelState.READY)

    run(main())


def test_a_worker_that_cannot_be_reached_by_the_other_costs_no_load(tmp_path: Path) -> None:
    """Suspended just then: the load goes on, and llama-server is told in time."""

    async def main() -> None:
        async with scene(tmp_path, min_workers=2, devices=("none",)) as it:
            for name in ("anna", "bert"):
                it.worker(name)
            anna = it.workers["anna"].mesh
            original = anna.open_stream
            anna.open_stream = lambda *args, **more: original(bytes(32), *args[1:], **more)  # type: ignore[arg-type, method-assign]
            (await held(it)).set_result(yes())
            await it.until(ModelState.READY)
            assert anna.state is PeerState.CONNECTED
            assert it.workers["anna"].children[-1].orders() == ["no 1"]
            assert pushes(it)["bert"] == (False, "unreachable for 8 s: not connected")

    run(main())


def test_the_options_have_push_on() -> None:
    assert HeadOptions().push
