"""A connection ends, and it may be the doing of another worker that pushes to this one or takes from it."""

import asyncio
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.role.head.cycle import Serve
from meshd.role.head.push_plan import WHY_APART
from meshd.role.head.worker_backoff import ENDS

from tests.sim.loop import run
from tests.unit.role.head.test_cycle_troubles import Stage, model_of, ready, stage, until
from tests.unit.role.head.test_cycle_unsteady import tunnel_to
from tests.unit.role.rig import Bench
from tests.unit.rpc.test_pending_work import GET, GRAPH, PUSH, TAKE


class Attack:
    """`a` pushes to `b`, if the head lets it; each life of the model ends by the doing of one of the two."""

    def __init__(self, it: Stage, *, loaded: bool) -> None:
        self.it, self.loaded = it, loaded
        self.first, self.second = it.worker("a"), it.worker("b")
        self.lives = 0
        self.set_ready(loaded)
        self.serve = it.serve()

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

    def pushes(self) -> bool:
        return any(line.startswith("peer ") for line in self.first.children[-1].orders())

    async def lost(self, worker: Bench, *, last: bool = False) -> None:
        """llama-server says so, and the lease of the worker stands."""
        server, asked = self.it.bench.children[-1], self.it.bench.ready
        self.set_ready(self.loaded or last)
        server.report(f"lost {tunnel_to(self.it, worker).endpoint} it went")
        if not self.loaded:
            server.die("ended with exit code 1")
            assert asked is not None
            asked.cancel()
        await until(self.serve, lambda model: "llama-server lost worker" in model.reason)
        await asyncio.sleep(1.1)

    async def waits(self) -> None:
        """The second one ends its connection while it waits for a tensor of the first one."""
        watches = [tunnel_to(self.it, worker).asked.watch for worker in (self.first, self.second)]
        assert watches[0] is not None and watches[1] is not None
        with watches[0]() as pushes:
            pushes.to_peer(GRAPH + PUSH)
            with watches[1]() as waits:
                waits.to_peer(TAKE + GRAPH + GET)
                await self.lost(self.second)


def ends(serve: Serve, *workers: Bench) -> list[int]:
    return [serve._roster.backoff.ends(worker.mesh.key.peer) for worker in workers]


def test_one_that_waits_for_the_others_tensor_and_goes_is_known_the_next_time(tmp_path: Path) -> None:
    """Before the load. Two of them, and no third: the honest one serves."""

    async def main() -> None:
        async with stage(tmp_path) as it:
            attack = Attack(it, loaded=False)
            assert await attack.life() == {"a", "b"} and attack.pushes()
            await attack.waits()
            assert ends(attack.serve, attack.first, attack.second) == [1, 1]
            for last in (False, True):
                assert await attack.life() == {"a", "b"} and not attack.pushes()
                await attack.lost(attack.second, last=last)
            assert await ready(attack.serve) == {"head", "a"}
            assert "worker b is left out for 30 s after 2 tries" in model_of(attack.serve).reason

    run(main())


@pytest.mark.parametrize("loaded", [False, True], ids=["before the load", "after it"])
def test_one_that_ends_a_push_does_not_have_the_other_left_out(tmp_path: Path, loaded: bool) -> None:
    """The other's rpc-server ends its connection with the head then, and waits for nothing."""

    async def main() -> None:
        async with stage(tmp_path) as it:
            attack = Attack(it, loaded=loaded)
            while await attack.life() == {"a", "b"} and attack.pushes():
                await attack.lost(attack.first)
            assert attack.lives == 2
            attack.set_ready(True)
            if not loaded:
                it.bench.children[-1].die("ended with exit code 1")
            assert await ready(attack.serve) == {"head", "a", "b"}
            assert ends(attack.serve, attack.first, attack.second) == [1, 1]
            parts = {part.node: part.why_no_push for part in model_of(attack.serve).split}
            assert parts["b"] == WHY_APART

    run(main())


def test_what_is_certain_is_one_workers_doing(tmp_path: Path) -> None:
    """Once the two do not push to each other any more."""

    async def main() -> None:
        async with stage(tmp_path) as it:
            attack = Attack(it, loaded=True)
            for number in range(ENDS):
                assert await attack.life() == {"a", "b"}
                await attack.lost(attack.second)
                assert ends(attack.serve, attack.first, attack.second) == [1, number + 1]
            assert await attack.life() == {"a"}

    run(main())


def test_a_push_that_there_was_not_is_no_reason_to_doubt(tmp_path: Path) -> None:
    """llama-server says that there is no way."""

    async def main() -> None:
        async with stage(tmp_path) as it:
            attack = Attack(it, loaded=False)
            assert await attack.life() == {"a", "b"} and attack.pushes()
            first, second = (tunnel_to(it, worker).endpoint for worker in (attack.first, attack.second))
            it.bench.children[-1].report(f"push {first} {second} no the worker cannot reach it")
            attack.set_ready(True)
            await attack.lost(attack.second)
            assert ends(attack.serve, attack.first, attack.second) == [0, 0]

    run(main())
