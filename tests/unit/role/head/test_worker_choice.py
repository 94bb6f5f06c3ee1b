"""Whom a head asks when some workers are better done without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshd.base.tasks import Owner
from meshd.peer.interface import PeerState, PeerStatus
from meshd.role.head.worker_backoff import ENDS, TRIES
from meshd.role.head.worker_choice import Roster

from tests.sim.loop import run
from tests.unit.role.fake_mesh import Net


class Scene:
    """Three workers, of which `bad` and `worse` end their leases too soon."""

    def __init__(self, owner: Owner, *, least: int, only: tuple[str, ...] = ()) -> None:
        net = Net(owner)
        head = net.mesh("head", "serve")
        self.meshes = {name: net.mesh(name) for name in ("bad", "good", "worse")}
        self.now = asyncio.get_running_loop().time()
        self.roster = Roster(head, least=least, only=only)
        for name, ends in (("bad", ENDS), ("worse", ENDS + 1)):
            for _ in range(ends):
                self.roster.backoff.ended(self.status(name), "it went", self.now, lasted=1.0)

    def status(self, name: str) -> PeerStatus:
        return next(peer for peer in self.roster.connected() if peer.name == name)

    def asked(self) -> list[str]:
        return [peer.name for peer in self.roster.workers()]


@asynccontextmanager
async def scene(*, least: int, only: tuple[str, ...] = ()) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        yield Scene(owner, least=least, only=only)
        owner.cancel()


def test_no_more_of_them_are_asked_than_are_needed_and_the_best_first() -> None:
    async def main() -> None:
        for least, asked in (
            (0, ["good"]),
            (1, ["good"]),
            (2, ["bad", "good"]),
            (3, ["bad", "good", "worse"]),
            (4, ["bad", "good", "worse"]),
        ):
            async with scene(least=least) as it:
                assert it.asked() == asked
                assert [why.split()[1] for why in it.roster.left_out()] == [
                    name for name in ("bad", "worse") if name not in asked
                ]
                assert len(it.roster.used_all_the_same()) == len(asked) - 1
                assert it.roster.spares() == (len(asked) < 3)

    run(main())


def test_one_that_may_not_be_asked_at_all_is_no_other() -> None:
    """It is gone, or every load with it failed."""

    async def main() -> None:
        async with scene(least=1) as it:
            for _ in range(TRIES):
                it.roster.backoff.failed(it.status("good"), "it crashed", it.now)
            assert it.asked() == ["bad"]
            assert [why.split()[1] for why in it.roster.left_out()] == ["good", "worse"]
        async with scene(least=1) as it:
            it.meshes["good"].say(PeerState.LOST)
            assert it.asked() == ["bad"]

    run(main())


def test_a_model_that_needs_all_gets_all() -> None:
    async def main() -> None:
        async with scene(least=1) as it:
            it.roster.all_needed = True
            assert it.asked() == ["bad", "good", "worse"]
            assert not it.roster.spares()

    run(main())


def test_only_those_that_the_user_names_are_asked() -> None:
    async def main() -> None:
        async with scene(least=1, only=("good",)) as it:
            assert it.asked() == ["good"]
            assert "bad is not named by `--workers`" in it.roster.left_out()
            assert [peer.name for peer in it.roster.wanted()] == ["good"]
        async with scene(least=3) as it:
            beginning = str(it.status("bad").peer)[:12]
        async with scene(least=1, only=(beginning, "nobody")) as it:
            assert it.asked() == ["bad"], "the same keys in each scene"
            assert it.roster.left_out()[0] == ("no worker is called `nobody` (known: `bad`, `good`, `worse`)")

    run(main())
