"""The head introduces workers to one another, and says in status what came of it."""

import asyncio
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.head.leases import UNCONNECTED
from meshd.model.status import ModelState, ModelStatus
from meshd.peer.interface import PeerState
from meshd.plan.wishes import HeadOptions
from meshd.worker.neighbour_arrivals import ARRIVAL, COMPLETE
from meshd.worker.push_neighbours import NEIGHBOURS_SECONDS

from tests.sim.loop import until
from tests.unit.head.rig import COMPRESSED_VERSION
from tests.unit.head.scene import Scene, scene, view
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Server

pytestmark = pytest.mark.virtual

NAMES = ("anna", "bert", "carl")


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
    await until(lambda: bool(it.bench.children) and it.llama.spec is not None)
    await asyncio.sleep(10)
    return ready


def yes() -> ReadyReport:
    return ReadyReport(True, "", 0.1)


def options() -> dict[str, object]:
    return {"min_workers": 3, "devices": ("none",)}


def connected(it: Scene, *pairs: tuple[int, int]) -> None:
    """Of these workers the servers have a connection with each other, as they tell llama-server."""
    for place in range(len(NAMES)):
        others = [one for pair in pairs for one in pair if place in pair and one != place]
        view(it.bench, place).from_peer(talk.welcome() + talk.met(*others))


def arrivals(it: Scene, name: str) -> list[tuple[int, int]]:
    """What the server of a worker was told of its neighbours so far: kinds and numbers."""
    server = Server(it.workers[name].children[-1])
    found = server.arrivals()
    server.close()
    for _kind, _number, end in found:
        if end is not None:
            end.close()
    return [(kind, number) for kind, number, _end in found]


async def test_each_worker_gets_the_next_one_as_its_neighbour(tmp_path: Path) -> None:
    async with scene(tmp_path, **options()) as it:
        ready = await held(it, *NAMES)
        assert arrivals(it, "anna") == [(ARRIVAL, 1), (COMPLETE, 0)]
        assert arrivals(it, "bert") == [(ARRIVAL, 2)], "and the first one is still to come"
        assert arrivals(it, "carl") == []
        tunnel = it.workers["anna"].tunnels[0]
        assert tunnel.asked.peer == it.workers["bert"].mesh.key.peer
        assert dict(tunnel.asked.metadata) == dict(it.bench.tunnels[1].asked.metadata), (
            "of the lease of this head"
        )
        connected(it, (0, 1))
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert pushes(it) == {
            "anna": (None, ""),
            "bert": (True, ""),
            "carl": (False, UNCONNECTED),
            "head": (None, ""),
        }


TOLD = [("auto", (COMPRESSED_VERSION, False)), ("on", (COMPRESSED_VERSION, True)), ("off", (0, False))]


@pytest.mark.parametrize(("head", "told"), TOLD)
async def test_what_goes_between_workers_is_compressed_as_the_head_would_have_it(
    tmp_path: Path, head: str, told: tuple[int, bool]
) -> None:
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


async def test_why_there_is_no_way_the_worker_says(tmp_path: Path) -> None:
    async with scene(tmp_path, **options()) as it:
        for name in NAMES:
            it.worker(name)
        carl = it.workers["carl"].mesh
        carl.services["push"] = (carl.services["push"][0], lambda _member, _metadata: "not today")
        ready = await held(it)
        assert arrivals(it, "bert") == []
        connected(it, (0, 1))
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert pushes(it)["carl"] == (False, "unreachable for 8 s: not today")
        assert pushes(it)["bert"] == (True, "")


async def test_one_worker_has_no_neighbour(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        assert {why for _, why in pushes(it).values()} == {""}
        assert {push for push, _ in pushes(it).values()} == {None}


async def test_the_next_life_of_the_model_introduces_them_anew(tmp_path: Path) -> None:
    async with scene(tmp_path, **options()) as it:
        (await held(it, *NAMES)).set_result(yes())
        await it.until(ModelState.READY)
        assert pushes(it)["bert"] == (False, UNCONNECTED)
        first = [tunnel.asked.metadata["lease"] for tunnel in it.bench.tunnels]
        it.workers["bert"].children[-1].die("killed")
        await it.until(ModelState.LOADING, "bert")
        await it.until(ModelState.READY)
        second = [tunnel.asked.metadata["lease"] for tunnel in it.bench.tunnels[3:]]
        assert not set(first) & set(second)
        tunnels = it.workers["anna"].tunnels
        assert [tunnel.asked.metadata["lease"] for tunnel in tunnels] == [first[1], second[1]]
        assert [tunnel.closed for tunnel in tunnels] == [True, False]


@pytest.mark.parametrize("dies", [True, False])
async def test_who_is_lost_the_workers_know_better(tmp_path: Path, dies: bool) -> None:
    """When one goes, llama-server sees those go that waited for it, too, and names any of them."""
    async with scene(tmp_path, **options()) as it:
        (await held(it, *NAMES)).set_result(yes())
        await it.until(ModelState.READY)
        it.llama.report(f"lost {it.bench.tunnels[2].endpoint} end of file")
        await it.until(ModelState.LOADING, "llama-server lost worker carl")
        if dies:
            it.workers["bert"].children[-1].die("ended by signal 9")
            await it.until(ModelState.LOADING, "worker bert is lost: ended by signal 9")
        await it.until(ModelState.READY)


async def test_a_worker_that_cannot_be_reached_by_the_other_costs_no_load(tmp_path: Path) -> None:
    """Suspended just then: the load goes on, and both servers are told in time that there is nobody."""
    async with scene(tmp_path, min_workers=2, devices=("none",)) as it:
        for name in ("anna", "bert"):
            it.worker(name)
        anna = it.workers["anna"].mesh
        original = anna.open_stream
        anna.open_stream = lambda *args, **more: original(bytes(32), *args[1:], **more)  # type: ignore[arg-type, method-assign]
        ready = await held(it)
        assert arrivals(it, "anna") == [(COMPLETE, 0)]
        await asyncio.sleep(NEIGHBOURS_SECONDS)
        assert arrivals(it, "bert") == [(COMPLETE, 0)]
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert anna.state is PeerState.CONNECTED
        assert pushes(it)["bert"] == (False, "unreachable for 8 s: not connected")


def test_the_options_have_push_on() -> None:
    assert HeadOptions().push
