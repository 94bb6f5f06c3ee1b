"""A worker is lost, and it may be the doing of the neighbour that it names: they push to each other."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.head.failures import ENDS
from meshd.head.leases import WHY_APART
from meshd.head.model import Model

from tests.unit.head.rig import Bench
from tests.unit.head.scene import view
from tests.unit.head.test_cycle_troubles import Stage, model_of, ready, stage, until
from tests.unit.head.test_cycle_unsteady import tunnel_to
from tests.unit.plan.plain_options import PLAIN
from tests.unit.rpc import mesh_talk as talk

pytestmark = pytest.mark.virtual


class Attack:
    """`a` pushes to `b`, if the head lets it; each life of the model ends by the doing of one of the two."""

    def __init__(self, it: Stage, *, loaded: bool, devices: tuple[str, ...] = ()) -> None:
        self.it, self.loaded = it, loaded
        self.first, self.second = it.worker("a"), it.worker("b")
        self.lives = 0
        self.set_ready(loaded)
        self.serve = it.serve_with(replace(PLAIN, min_workers=1, devices=devices, incarnation=bytes(16)))

    def set_ready(self, now: bool) -> None:
        self.it.bench.ready = asyncio.get_running_loop().create_future()
        if now:
            self.it.bench.ready.set_result(ReadyReport(True, "", 0.1))

    async def life(self) -> set[str]:
        """The next one has begun; who takes part."""
        self.lives += 1
        await until(self.serve, lambda _: len(self.it.bench.children) == self.lives)
        state = "ready" if self.loaded else "loading"
        await until(
            self.serve, lambda model: model.state == state and self.it.bench.tokens_asked == self.lives
        )
        return {worker.mesh.name for worker in (self.first, self.second) if self.is_used(worker)}

    def is_used(self, worker: Bench) -> bool:
        return any(t.asked.peer == worker.mesh.key.peer and not t.closed for t in self.it.bench.tunnels)

    def connect(self) -> None:
        """Their servers have a connection with each other, as they say."""
        for place in (0, 1):
            view(self.it.bench, place).from_peer(talk.welcome() + talk.met(1 - place))

    def pushes(self) -> bool:
        """The head has introduced them."""
        return any(not tunnel.closed for tunnel in self.first.tunnels)

    async def lost(self, worker: Bench, why: str = "it ended", *, last: bool = False) -> None:
        """llama-server says so, and the lease of the worker stands."""
        server, asked = self.it.bench.children[-1], self.it.bench.ready
        self.set_ready(self.loaded or last)
        server.report(f"lost {tunnel_to(self.it, worker).endpoint} {why}")
        if not self.loaded:
            server.die("ended with exit code 1")
            assert asked is not None
            asked.cancel()
        await until(self.serve, lambda model: "llama-server lost worker" in model.reason)
        await asyncio.sleep(1.1)


NAMES_THE_OTHER = ("it says: lost neighbour {}: it ended", "it has waited for neighbour {} for 20 s")


def ends(serve: Model, *workers: Bench) -> list[int]:
    return [serve.serving.roster.backoff.ends(worker.mesh.key.peer) for worker in workers]


@pytest.mark.parametrize("why", NAMES_THE_OTHER)
async def test_one_that_names_the_other_and_goes_is_known_the_next_time(tmp_path: Path, why: str) -> None:
    """Before the load. Two of them, and no third: the honest one serves."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=False)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        attack.connect()
        await attack.lost(attack.second, why.format(0))
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        for last in (False, True):
            assert await attack.life() == {"a", "b"} and not attack.pushes()
            await attack.lost(attack.second, last=last)
        assert await ready(attack.serve) == {"head", "a"}
        assert "worker b is left out for 30 s after 2 tries" in model_of(attack.serve).reason


@pytest.mark.parametrize("loaded", [False, True], ids=["before the load", "after it"])
async def test_one_that_ends_a_push_does_not_have_the_other_left_out(tmp_path: Path, loaded: bool) -> None:
    """The other's server ends then, and names it."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=loaded)
        while await attack.life() == {"a", "b"} and attack.pushes():
            attack.connect()
            await attack.lost(attack.first, NAMES_THE_OTHER[0].format(1))
        assert attack.lives == 2
        attack.set_ready(True)
        if not loaded:
            it.bench.children[-1].die("ended with exit code 1")
        assert await ready(attack.serve) == {"head", "a", "b"}
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        parts = {part.node: part.why_no_push for part in model_of(attack.serve).split}
        assert parts["b"] == WHY_APART


async def test_what_is_certain_is_one_workers_doing(tmp_path: Path) -> None:
    """It names nobody."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        for number in range(ENDS):
            assert await attack.life() == {"a", "b"}
            await attack.lost(attack.second)
            assert ends(attack.serve, attack.first, attack.second) == [0, number + 1]
        assert await attack.life() == {"a"}


WRONG = "it says: wrong value: not a number, to be sorted"
NOT_FINITE = "it sent values that are not finite"


@pytest.mark.parametrize("loaded", [False, True], ids=["before the load", "after it"])
@pytest.mark.parametrize("connected", [False, True])
async def test_one_that_cannot_compute_with_a_value_is_not_to_blame_alone(
    tmp_path: Path, loaded: bool, connected: bool
) -> None:
    """Whoever has layers before its own may have sent it. They push to each other no more."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=loaded)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        if connected:
            attack.connect()
        await attack.lost(attack.second, WRONG)
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]
        assert await attack.life() == {"a", "b"} and not attack.pushes()


async def test_the_word_of_its_lease_is_heard_as_that_of_llama_server(tmp_path: Path) -> None:
    """A mesh-server that refuses ends, and its worker says so at once."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        attack.second.children[-1].die(f"exit code 1: {WRONG.removeprefix('it says: ')}", code=1)
        assert await attack.life() == {"a", "b"} and not attack.pushes()
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]


async def test_a_worker_that_ends_for_its_neighbour_is_not_to_blame_alone(tmp_path: Path) -> None:
    """What its lease says comes behind what llama-server or the neighbour's lease says, which may be more."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        attack.connect()
        attack.second.children[-1].die("exit code 1: lost neighbour 0: it ended", code=1)
        await asyncio.sleep(0.5)
        assert ends(attack.serve, attack.first, attack.second) == [0, 0]
        assert await attack.life() == {"a", "b"} and not attack.pushes()
        assert ends(attack.serve, attack.first, attack.second) == [1, 1]


async def test_the_first_worker_has_its_values_from_the_head(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        await attack.lost(attack.first, WRONG)
        assert ends(attack.serve, attack.first, attack.second) == [1, 0]


@pytest.mark.parametrize("connected", [False, True])
async def test_values_that_are_not_finite_are_of_who_sent_them_or_pushed_them_on(
    tmp_path: Path, connected: bool
) -> None:
    """What goes through llama-server is looked at there."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"}
        if connected:
            attack.connect()
        await attack.lost(attack.second, NOT_FINITE)
        assert ends(attack.serve, attack.first, attack.second) == [int(connected), 1]
        assert await attack.life() == {"a", "b"} and attack.pushes() is not connected


async def fail_first_tokens(attack: Attack) -> None:
    """Each life until a token is asked of a head and one worker."""
    for number in range(1, ENDS + 1):
        assert await attack.life() == {"a", "b"}
        asked = attack.it.bench.ready
        assert asked is not None
        attack.set_ready(number == ENDS)
        asked.set_result(ReadyReport(False, "the first token failed: unordered_map::at"))
        await until(attack.serve, lambda model: "the first token failed" in model.reason)
        assert model_of(attack.serve).state == "loading"
        await asyncio.sleep(1.5)


async def test_first_tokens_that_fail_are_tried_without_the_worker_that_makes_them(tmp_path: Path) -> None:
    """It may be its doing, and llama-server need not report it."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=False, devices=("none",))
        await fail_first_tokens(attack)
        assert ends(attack.serve, attack.first, attack.second) == [0, ENDS]
        assert await ready(attack.serve) == {"a"}
        assert "worker b is left out for 60 s" in model_of(attack.serve).reason


async def test_a_push_that_there_was_not_is_no_reason_to_doubt(tmp_path: Path) -> None:
    """The two have no connection."""
    async with stage(tmp_path) as it:
        attack = Attack(it, loaded=True)
        assert await attack.life() == {"a", "b"} and attack.pushes()
        await attack.lost(attack.second, NAMES_THE_OTHER[0].format(0))
        assert ends(attack.serve, attack.first, attack.second) == [0, 1]
