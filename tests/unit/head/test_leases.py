"""All leases of a head: asked for, reserved, introduced, waited for."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.peer_limits import PROGRESS_SHOWN
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.gateway.interface import Readiness, ReadyReport
from meshd.head.lease import GRANT_SECONDS, OFFER_SECONDS
from meshd.head.leases import (
    LATE_AGAIN_SECONDS,
    LATE_OFFER_SECONDS,
    LATE_SECONDS,
    UNCONNECTED,
    PeerPatience,
    as_reached,
    why_degraded,
)
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.plan.wishes import HeadOptions
from meshd.process.interface import ChildFailed
from meshd.wire.lease import Acquire, OfferedDevice, Progress, Reserve, WorkerOffer, decode
from meshd.worker.lending import Worker
from meshd.worker.push_neighbours import ARRIVAL, COMPLETE, NEIGHBOURS_SECONDS
from meshd.worker.worker_options import WorkerOptions

from tests.sim.loop import until
from tests.unit.head.fake_mesh import NATIVE, Net, worker_status
from tests.unit.head.rig import COMPRESSED_VERSION, Bench
from tests.unit.head.scene import LITTLE, Scene, scene, view
from tests.unit.head.stubs import FakeFile
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Server

pytestmark = pytest.mark.virtual

DEVICE = OfferedDevice("CPU", "cpu", "", 64 << 30, 64 << 30)


class Dripping:
    """A worker that says `progress` for ever: before the offer, or before the grant."""

    def __init__(self, it: Scene, name: str = "evil", *, offers: bool = False, every: float = 20.0) -> None:
        self.asked: list[float] = []
        self.said = 0
        self._offers = offers
        self._every = every
        self.mesh = it.net.mesh(name)
        self.mesh.handle("lease", self._serve, allow=lambda *_: None)
        self.mesh.handle("push", self._serve, allow=lambda *_: "it lends nothing")

    async def _serve(self, stream: Stream) -> None:
        messages = MessageStream(stream)
        assert isinstance(decode(await messages.receive()), Acquire)
        self.asked.append(now())
        if self._offers:
            offer = WorkerOffer(
                (DEVICE,), has_model=False, machine="e", lease_id=bytes(16), protocol=NATIVE.protocol
            )
            await messages.send(offer.encode())
            assert isinstance(decode(await messages.receive()), Reserve)
        while True:
            self.said += 1
            await messages.send(Progress(f"trying GPU {self.said}").encode())
            await asyncio.sleep(self._every)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_worker_that_is_never_ready_holds_up_one_load_and_no_further_one(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Dripping(it)
        it.worker("bert")
        it.start()
        for patience in (LATE_OFFER_SECONDS, LATE_AGAIN_SECONDS):
            began = now()
            await it.until(ModelState.READY, seconds=100)
            assert now() - began == pytest.approx(patience, abs=1.0)
            assert len(it.serve.status.tunnels) == 1
            it.workers["bert"].children[-1].die("ended by signal 9")
            await it.until(ModelState.LOADING)


async def test_a_worker_that_still_hashes_its_file_is_waited_for_a_moment_and_used(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        file = FakeFile()
        file.hashed.clear()
        anna = Bench(it.net.mesh("anna"), tmp_path)
        it.net.owner.start(Worker(anna.runtime, [file], WorkerOptions()).serve(), name="anna")
        it.worker("bert")
        it.start()
        await asyncio.sleep(LATE_OFFER_SECONDS - 5)
        assert it.serve.readiness.state is ModelState.LOADING
        file.hashed.set()
        await it.until(ModelState.READY, seconds=5)
        assert len(it.bench.tunnels) == 2


async def test_a_model_that_does_not_fit_without_it_waits_and_says_for_whom(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        file = FakeFile()
        file.hashed.clear()
        anna = Bench(it.net.mesh("anna"), tmp_path)
        it.net.owner.start(Worker(anna.runtime, [file], WorkerOptions()).serve(), name="anna")
        it.worker("bert")
        it.workers["bert"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.WAITING, "anna is not ready yet", seconds=100)
        assert "MiB" in it.serve.readiness.reason
        file.hashed.set()
        await it.until(ModelState.READY, seconds=100)


async def test_alone_it_is_asked_for_minutes_and_then_others_are_taken_in(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it)
        it.start()
        await asyncio.sleep(OFFER_SECONDS / 2)
        assert len(evil.asked) == 1, "an honest one may need as long"
        it.worker("bert")
        await it.until(ModelState.READY, seconds=OFFER_SECONDS / 2 + 2 * LATE_OFFER_SECONDS)
        assert "evil" not in it.nodes


async def test_a_grant_that_never_comes_is_given_up_and_its_worker_left_out(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it, offers=True)
        it.worker("bert")
        it.start()
        await it.until(ModelState.READY, "evil is left out", seconds=2 * GRANT_SECONDS + 20)
        assert len(evil.asked) == 2
        assert "evil" not in it.nodes


async def test_words_of_progress_are_shown_at_a_rate(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        evil = Dripping(it, every=0.01)
        it.start()
        shown = set()
        for _ in range(20_000):
            await asyncio.sleep(0.001)
            shown.add(it.serve.readiness.reason)
        assert evil.said > 1000
        words = [text for text in shown if "evil: trying GPU" in text]
        assert 1 <= len(words) <= PROGRESS_SHOWN.burst + 20 * PROGRESS_SHOWN.per_second


NAMES = ("anna", "bert", "carl", "dora")
ONE_WAY = 0.5


def nothing_is_left(it: Scene) -> None:
    """No lease, no process, no tunnel."""
    for name, role in it.roles.items():
        assert role.status.lent == () and not role.is_lending, name
        assert all(child.ended for child in it.workers[name].children), name
    assert all(tunnel.closed for tunnel in it.bench.tunnels)


def begin(it: Scene, *, one_way: float = 0.0) -> float:
    """The head asks its workers, which are so far away; returns when."""
    it.net.one_way = one_way
    it.start()
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_ready_takes_two_round_trips_of_meshds_own_whatever_the_number_of_workers(
    tmp_path: Path, workers: int
) -> None:
    """To ask and to reserve. llama-server's own are counted elsewhere; the fake one needs none."""
    options: dict[str, object] = {"min_workers": workers, "devices": ("none",)}
    async with scene(tmp_path, **options) as it:
        for name in NAMES[:workers]:
            it.worker(name)
        since = begin(it, one_way=ONE_WAY)
        await it.until(ModelState.READY)
        took = asyncio.get_running_loop().time() - since
        assert took / (2 * ONE_WAY) == pytest.approx(2, abs=0.05)
        assert it.bench.tokens_asked == 1


@pytest.mark.parametrize("workers", [1, 4])
async def test_llama_server_is_started_while_the_workers_start_theirs(tmp_path: Path, workers: int) -> None:
    """Its first requests cross with the reservation, and so do introductions."""
    options: dict[str, object] = {"min_workers": workers, "devices": ("none",)}
    async with scene(tmp_path, **options) as it:
        for name in NAMES[:workers]:
            it.worker(name)
            it.workers[name].start_seconds = 20.0
        since = begin(it, one_way=ONE_WAY)
        await until(lambda: bool(it.bench.children) and it.llama.spec is not None)
        assert asyncio.get_running_loop().time() - since == pytest.approx(2 * ONE_WAY, abs=0.05)
        assert len(it.bench.tunnels) == workers
        assert it.serve.readiness.state is ModelState.LOADING
        await it.until(ModelState.READY, seconds=60)
        assert asyncio.get_running_loop().time() - since == pytest.approx(20 + 4 * ONE_WAY, abs=0.1)
        told = [len(it.workers[name].tunnels) for name in NAMES[:workers]]
        assert told == [1] * (workers - 1) + [0], "of its neighbour, before its own server was there"


async def test_a_slow_worker_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (7.0, 9.0, 8.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        since = begin(it)
        await it.until(ModelState.READY)
        assert asyncio.get_running_loop().time() - since == pytest.approx(9.0, abs=0.1)


async def test_one_refusal_releases_all_the_others(tmp_path: Path) -> None:
    """Test those that have granted before it, and those that are still at it."""
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (1.0, 5.0, 20.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        it.workers["bert"].child_refuses = ChildFailed("it crashed at once")
        since = begin(it)
        await it.until(ModelState.LOADING, "bert: it crashed at once")
        assert asyncio.get_running_loop().time() - since == pytest.approx(5.0, abs=0.1)
        await asyncio.sleep(0.1)
        nothing_is_left(it)
        it.workers["bert"].child_refuses = None
        await it.until(ModelState.READY, seconds=60)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.1, 1.7, 3.0, 6.0])
async def test_cancelled_in_the_middle_every_lease_is_given_back(tmp_path: Path, after: float) -> None:
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (1.0, 2.0, 9.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        begin(it, one_way=ONE_WAY)
        await asyncio.sleep(after)
        assert it.serve.readiness.state is ModelState.LOADING
        assert it.task is not None
        await cancel_and_wait(it.task)
        await asyncio.sleep(2 * ONE_WAY)
        nothing_is_left(it)


ONE, OTHER = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)
USED = {ONE, OTHER}


def test_a_short_pause_is_not_told() -> None:
    peers = [worker_status(ONE, "one", PeerState.SUSPENDED, 100.0), worker_status(OTHER, "other")]
    assert why_degraded(peers, USED, 109.9) == ""
    assert why_degraded(peers, USED, 110.0) == "no connection to worker one for 10 s"


def test_each_that_is_silent_is_named() -> None:
    peers = [
        worker_status(ONE, "one", PeerState.SUSPENDED, 100.0),
        worker_status(OTHER, "other", PeerState.SUSPENDED, 90.0),
    ]
    told = "no connection to worker one for 12 s; no connection to worker other for 22 s"
    assert why_degraded(peers, USED, 112.4) == told


def test_others_than_those_in_use_do_not_matter() -> None:
    assert why_degraded([worker_status(ONE, "one", PeerState.SUSPENDED)], {OTHER}, 500.0) == ""


@pytest.mark.parametrize("state", [state for state in PeerState if state is not PeerState.SUSPENDED])
def test_a_worker_with_a_connection_or_without_a_session_is_not_silent(state: PeerState) -> None:
    assert why_degraded([worker_status(ONE, "one", state)], USED, 500.0) == ""


def _first_given_up(away: int, back: int, *, grace: float = 120.0, until: int = 3600) -> int | None:
    """When a worker that comes and goes in this way is given up; looked at each second."""
    patience = PeerPatience(grace, 0.0)
    for now in range(1, until):
        state = PeerState.SUSPENDED if (now - 1) % (away + back) < away else PeerState.CONNECTED
        if (
            patience.look([worker_status(ONE, "one", state), worker_status(OTHER, "other")], USED, float(now))
            is not None
        ):
            return now
    return None


def test_a_worker_that_is_back_for_moments_only_is_given_up_soon_after_the_grace() -> None:
    assert _first_given_up(119, 1) == 120 + 1 + 4 + LATE_SECONDS
    assert _first_given_up(30, 1, grace=60.0) == 60 + 2 + 8 + LATE_SECONDS


def test_a_worker_that_makes_up_for_its_gaps_is_kept() -> None:
    assert _first_given_up(100, 25) is None
    assert _first_given_up(4, 1) is None


def test_one_gap_alone_is_the_sessions_to_decide() -> None:
    assert _first_given_up(120, 3600) is None


def test_who_takes_no_part_is_not_waited_for() -> None:
    patience = PeerPatience(10.0, 0.0)
    for now in range(1, 100):
        assert patience.look([worker_status(ONE, "one", PeerState.SUSPENDED)], {OTHER}, float(now)) is None


async def test_a_load_that_waits_for_a_silent_worker_says_so() -> None:
    async with Owner() as owner:
        net = Net(owner)
        head, garage = net.mesh("head", "serve"), net.mesh("garage")
        loading, used = Readiness(ModelState.LOADING, "asking garage"), [garage.key.peer]
        assert as_reached(loading, head, used) == loading
        garage.say(PeerState.SUSPENDED)
        garage.since = asyncio.get_running_loop().time() - 14.0
        now = as_reached(loading, head, used)
        assert now.state is ModelState.LOADING
        assert now.reason == "asking garage; no connection to worker garage for 14 s"
        owner.cancel()


THREE = NAMES[:3]


def pushes(it: Scene) -> dict[str, tuple[bool | None, str]]:
    return {part.node: (part.push, part.why_no_push) for part in it.model.split}


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
    """Have the servers of these workers tell llama-server of a connection with each other."""
    for place in range(len(THREE)):
        others = [one for pair in pairs for one in pair if place in pair and one != place]
        view(it.bench, place).from_peer(talk.welcome() + talk.met(*others))


def arrivals(it: Scene, name: str) -> list[tuple[int, int]]:
    """Return what the server of a worker was told of its neighbours so far: kinds and numbers."""
    server = Server(it.workers[name].children[-1])
    found = server.arrivals()
    server.close()
    for _kind, _number, end in found:
        if end is not None:
            end.close()
    return [(kind, number) for kind, number, _end in found]


async def test_each_worker_gets_the_next_one_as_its_neighbour(tmp_path: Path) -> None:
    async with scene(tmp_path, **options()) as it:
        ready = await held(it, *THREE)
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
        for name in THREE:
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
        await it.ready("anna")
        assert {why for _, why in pushes(it).values()} == {""}
        assert {push for push, _ in pushes(it).values()} == {None}


async def test_the_next_life_of_the_model_introduces_them_anew(tmp_path: Path) -> None:
    async with scene(tmp_path, **options()) as it:
        (await held(it, *THREE)).set_result(yes())
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
        (await held(it, *THREE)).set_result(yes())
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
