"""A worker that comes is judged once, at a moment without requests; one that helps is taken in."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.head.load_again import SETTLED_SECONDS, UNASKED_SECONDS, Arrivals, Judgement
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerState, PeerStatus

from tests.conformance.nodes import fresh_key

pytestmark = pytest.mark.virtual

LONG = SETTLED_SECONDS + UNASKED_SECONDS + 5.0


def worker(name: str, since: float) -> PeerStatus:
    return PeerStatus(
        peer=fresh_key().peer,
        name=name,
        role="worker",
        state=PeerState.CONNECTED,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=since,
        last_error="",
        clock_offset=None,
    )


@dataclass
class Life:
    """A model that runs on `workers`."""

    rig: "Rig"
    loaded: bool = True
    replaced: bool = False
    workers: tuple[PeerId, ...] = ()

    def replace(self, why: str) -> None:
        """An arrival alone ends no run."""
        raise NotImplementedError(why)

    async def judge(self) -> Judgement:
        """Nor does it measure what a load has estimated."""
        raise NotImplementedError

    async def better_with(self) -> Collection[PeerId]:
        """Those of the rig."""
        self.rig.asked += 1
        if self.rig.fails:
            raise Broken("no devices")
        return self.rig.better


@dataclass
class Rig:
    """Who is there, who would help, and how often that was asked."""

    there: list[PeerStatus] = field(default_factory=list)
    better: frozenset[PeerId] = frozenset()
    asked: int = 0
    idle: float = 1000.0
    fails: bool = False

    def __post_init__(self) -> None:
        self.life = Life(self)
        self.arrivals = Arrivals(lambda: self.there, lambda _now: self.idle)

    def comes(self, name: str) -> PeerStatus:
        """A worker that connects now."""
        found = worker(name, asyncio.get_running_loop().time())
        self.there.append(found)
        return found


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    it = Rig()
    async with Owner() as owner:
        owner.start(it.arrivals.watch(it.life), name="arrivals")
        await asyncio.sleep(1)
        try:
            yield it
        finally:
            owner.cancel()


async def test_one_with_which_the_model_is_faster_is_taken_in_and_another_one_is_not() -> None:
    async with rig() as it:
        fast, slow = it.comes("fast"), it.comes("slow")
        it.better = frozenset({fast.peer})
        await asyncio.sleep(LONG)
        assert it.arrivals.helpful == {fast.peer} and slow.peer not in it.arrivals.helpful
        await asyncio.sleep(1000)
        assert it.asked == 1, "once for each arrival"


async def test_one_that_was_there_before_or_does_not_stay_is_not_judged() -> None:
    async with rig() as it:
        it.there = [worker("old", -5.0)]
        short = it.comes("short")
        await asyncio.sleep(SETTLED_SECONDS / 2)
        it.there.remove(short)
        await asyncio.sleep(LONG)
        assert it.asked == 0


async def test_one_that_may_not_be_asked_at_first_is_judged_once_it_may() -> None:
    """It was paused, or fetched its model, and has been connected all the time."""
    async with rig() as it:
        await asyncio.sleep(LONG)
        it.there = [worker("old", -5.0)]
        await asyncio.sleep(LONG)
        assert it.asked == 1


async def test_it_is_judged_again_when_it_comes_again() -> None:
    async with rig() as it:
        peer = it.comes("peer")
        it.better = frozenset({peer.peer})
        await asyncio.sleep(LONG)
        assert it.arrivals.helpful == {peer.peer}
        it.better, it.there = frozenset(), [replace(peer, since=asyncio.get_running_loop().time())]
        await asyncio.sleep(LONG)
        assert it.asked == 2 and not it.arrivals.helpful


async def test_requests_are_not_disturbed_for_a_minute_and_not_before_the_model_is_loaded() -> None:
    async with rig() as it:
        it.idle, it.life.loaded = 0.0, False
        it.comes("peer")
        await asyncio.sleep(100)
        assert it.asked == 0
        it.life.loaded = True
        await asyncio.sleep(2)
        assert it.asked == 1, "it was there for a minute"
        it.comes("other")
        await asyncio.sleep(LONG)
        assert it.asked == 1
        await asyncio.sleep(60)
        assert it.asked == 2


async def test_a_comparison_that_fails_leaves_the_model_as_it_is() -> None:
    async with rig() as it:
        it.fails = True
        it.comes("peer")
        await asyncio.sleep(LONG)
        assert it.asked == 1 and not it.arrivals.helpful
