"""Decide whether the model is loaded again when nobody asks.

Reasons are a worker that has come, is back, or is paused, other drafts that gain more (speculation.py), and
another split that is faster.

A load costs seconds to minutes, and pauses answers. So a worker that comes is taken in after a while without
a request, once for each arrival, and one whose user is about to take it away is let go when no answer is
open. A worker that was there already, and was left out, is no arrival: its time comes with the next load.

Where answers overlap, no such moment comes by itself. Then the gateway is asked to begin no more of them: at
once for a worker whose user waits, for one that has come when LONG_ASKED_SECONDS have passed. An answer can
take an hour, which is too long for the others: for one that has come it lasts HELD_SECONDS at most, and is
tried again later.

No load waits for a measurement (docs/decisions/0067-measured-after-the-load.md): `LateMeasuring` measures
once nobody asks. A worker that comes is judged as `meshd plan` does it, which reserves nothing (`Arrivals`).
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.fault_boundary import Contained
from meshd.base.peer_limits import MARKED
from meshd.base.tasks import Owner, first_error
from meshd.head.measures import RunFacts
from meshd.head.survey import Surveyor
from meshd.head.worker_choice import Roster
from meshd.identity.keys import PeerId
from meshd.model.status import DrainStatus
from meshd.peer.interface import PeerStatus
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import SplitChoice, choose_split, plan_model
from meshd.plan.machines import Machines, measured_machines
from meshd.plan.prediction import PlanOutcome, on_paths

UNASKED_SECONDS = 15.0
SETTLED_SECONDS = 10.0  # of a connection: one that ends at once is no help
LONG_ASKED_SECONDS = 600.0  # since a worker has come
HELD_SECONDS = 300.0
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # for a moment without requests, in which devices and paths are measured undisturbed
_CLEARLY = 0.9  # of the time of an answer now: a load costs seconds to minutes, and pauses answers
_FIRST_PAUSE_SECONDS = 10.0  # a worker measures beside a lease that has been quiet for as long
_LONGEST_PAUSE_SECONDS = 600.0
# Between a load that a judgement has caused and the next judgement, doubled each time: what workers tell may
# be wrong, or may not hold while a model is loaded, and would have the model loaded again and again.
_FIRST_DAMPING_SECONDS = 600.0
_LONGEST_DAMPING_SECONDS = 6 * 3600.0
LOG = log.get("serve")


class WatchedRun(Protocol):
    """Describe a run (run.py), as far as it is watched here."""

    loaded: bool
    replaced: bool
    """It ends because another one is to begin."""

    @property
    def workers(self) -> Sequence[PeerId]:
        """Return the workers that take part."""
        ...

    def replace(self, why: str) -> None:
        """End it, because another one is to begin."""
        ...

    async def better_with(self) -> Collection[PeerId]:
        """Return the workers of a split that is clearly faster; none if none is. Raises MeshdError."""
        ...

    async def judge(self) -> "Judgement":
        """Measure what the load estimated, and judge the split by that. Raises MeshdError."""
        ...


Look = Callable[[], Iterable[PeerStatus]]


class QuietMoments:
    """Find the moments in which a run may end for a better one."""

    def __init__(
        self, peers: Look, wanted: Look, otherwise: Callable[[float], str] = lambda _now: ""
    ) -> None:
        """Look at `peers`, which are all, and at those `wanted`, for which the model would be loaded again.

        `otherwise`: why it would be for other drafts or another split, given the time; empty: it would not.
        """
        self._peers = peers
        self._wanted = wanted
        self._otherwise = otherwise
        self._idle_since: float | None = -math.inf
        self._active = 0
        self._asked = asyncio.Event()  # requests are under way
        self._waiting = 0
        self.holds_turns = ""
        """Why no more answers may begin now; empty if they may."""
        self._paused: dict[PeerId, float] = {}  # when they were seen so the last time

    def requests(self, active: int, now: float) -> None:
        """Note how many are under way."""
        self._idle_since = now if active == 0 else None
        self._active = active
        if active:
            self._asked.set()
        else:
            self._asked.clear()

    async def until_asked(self) -> None:
        """Wait for a request; return at once while one is under way."""
        await self._asked.wait()

    def queued(self, waiting: int) -> None:
        """Note how many of them wait for their turn."""
        self._waiting = waiting

    def idle_seconds(self, now: float) -> float:
        """Return for how long nobody has asked."""
        return now - self._idle_since if self._idle_since is not None else 0.0

    def draining(self, used: Collection[PeerId]) -> DrainStatus | None:
        """Return which of the workers in use are paused, and how many answers still run on them."""
        names = tuple(peer.name for peer in self._peers() if peer.peer in used and peer.paused)
        return DrainStatus(names, max(0, self._active - self._waiting)) if names else None

    async def watch(self, run: WatchedRun, began: float) -> None:
        """End `run`, whose load began then by the loop's clock, when a better one is to begin."""
        loop = asyncio.get_running_loop()
        self.holds_turns = ""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                now = loop.time()
                self._look_for_paused(now)
                if run.loaded and (why := self._why_now(run, began, now)):
                    run.replace(why)
                    return
        finally:
            if not run.replaced:  # else none begins before the next run
                self.holds_turns = ""

    def _why_now(self, run: WatchedRun, began: float, now: float) -> str:
        """Return why `run` is to end now; empty if it is not."""
        is_quiet, computes = self.idle_seconds(now) >= UNASKED_SECONDS, self._active > self._waiting
        if (peer := leaving(self._peers(), run.workers)) is not None:
            self.holds_turns = f"worker {peer.name} is paused: the model is loaded without it"
            return "" if computes else self.holds_turns
        found = arrived(self._wanted(), run.workers, self._paused, began=began, now=now)
        if found is None:
            self.holds_turns = ""
            return self._otherwise(now) if is_quiet else ""
        peer, since = found
        why = f"worker {peer.name} is here: the model is loaded again with it"
        self.holds_turns = why if is_held(now - since) else ""
        return why if is_quiet or (self.holds_turns and not computes) else ""

    def _look_for_paused(self, now: float) -> None:
        peers = list(self._peers())
        known = {peer.peer for peer in peers}
        self._paused = {peer: at for peer, at in self._paused.items() if peer in known}
        self._paused |= {peer.peer: now for peer in peers if peer.paused}


def leaving(peers: Iterable[PeerStatus], used: Collection[PeerId]) -> PeerStatus | None:
    """Return a worker in use whose user has paused it. Pure."""
    return next((peer for peer in peers if peer.peer in used and peer.paused), None)


def arrived(
    able: Iterable[PeerStatus],
    used: Collection[PeerId],
    paused: Mapping[PeerId, float],
    *,
    began: float,
    now: float,
) -> tuple[PeerStatus, float] | None:
    """Find a worker that may be asked, has come since the load began, and stays; and when it came. Pure.

    `paused`: until when they were.
    """
    for peer in able:
        since = max(peer.since, paused.get(peer.peer, -math.inf))
        if peer.peer not in used and since > began and now - since >= SETTLED_SECONDS:
            return peer, since
    return None


def is_held(waited: float) -> bool:
    """Return True if no answer begins for the sake of a worker that came so many seconds ago. Pure."""
    return waited % (LONG_ASKED_SECONDS + HELD_SECONDS) >= LONG_ASKED_SECONDS


class Arrivals:
    """Judge workers that come while the model runs: one with which it is clearly faster is taken in."""

    def __init__(self, workers: Look, idle_seconds: Callable[[float], float]) -> None:
        """Judge those of `workers`, which could be asked now, once nobody has asked for `idle_seconds`."""
        self._workers = workers
        self._idle_seconds = idle_seconds
        self.helpful: frozenset[PeerId] = frozenset()
        """The workers that have come, and with which the model would be clearly faster."""
        self._damped: dict[PeerId, tuple[float, float]] = {}  # not judged until then, and for how long

    def loaded(self, workers: Collection[PeerId], now: float) -> None:
        """Note who takes part now. One that was to help, and does not, is judged again only later."""
        for peer in self.helpful.difference(workers):
            _, seconds = self._damped.pop(peer, (0.0, _FIRST_DAMPING_SECONDS / 2))
            seconds = min(2 * seconds, _LONGEST_DAMPING_SECONDS)
            self._damped[peer] = now + seconds, seconds
            if len(self._damped) > MARKED.most:
                del self._damped[next(iter(self._damped))]
        self.helpful = self.helpful.intersection(workers)

    async def watch(self, run: WatchedRun, began: float) -> None:
        """Judge each worker that has come since the load of `run` began, once for each arrival, until
        cancelled.
        """
        loop = asyncio.get_running_loop()
        judged: dict[PeerId, float] = {}  # and when it had come
        able: dict[PeerId, float] | None = None  # since when it may be asked; at the first look unknown
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = loop.time()
            workers = list(self._workers())
            # One that was paused, or fetched its model, comes when that ends.
            able = {peer.peer: -math.inf if able is None else able.get(peer.peer, now) for peer in workers}
            since = {peer.peer: max(peer.since, able[peer.peer]) for peer in workers}
            came = {
                peer.peer: since[peer.peer]
                for peer in workers
                if judged.get(peer.peer) != since[peer.peer]
                and now >= self._damped.get(peer.peer, (now, 0.0))[0]
                and arrived([peer], run.workers, able, began=began, now=now) is not None
            }
            waited = now - min(came.values(), default=now)
            is_quiet = self._idle_seconds(now) >= UNASKED_SECONDS
            if not (run.loaded and came and (is_quiet or waited >= _PATIENCE_SECONDS)):
                continue
            judged = came | {peer: since for peer, since in judged.items() if peer not in came}
            self.helpful -= came.keys()
            try:
                self.helpful |= came.keys() & frozenset(await run.better_with())
            except MeshdError as error:
                LOG.info("workers_not_compared", why=error.what)


@dataclass(frozen=True, slots=True)
class SplitNow:
    """Compare the fastest split of the `machines` now with what runs; `names` of their workers."""

    best: SplitChoice
    runs: PlanOutcome
    machines: Machines
    names: Mapping[PeerId, str]

    @property
    def is_clearly_faster(self) -> bool:
        """Return True if it is worth a load."""
        return self.best.seconds < _CLEARLY * self.runs.answer_s


async def compare_now(
    facts: RunFacts, surveyor: Surveyor, roster: Roster, auto: AutoWay | None = None
) -> SplitNow | None:
    """Measure what is not measured yet, and compare; None: nothing can be compared. Raises MeshdError.

    `auto`: the next run may be by tensors, and this decides; None: compare splits by layers.
    """
    options, layers, work = facts.options, facts.layers, facts.work
    found = await surveyor.compared(work, options, roster, facts.held)
    measured = measured_machines(work, found.machines, options)
    if measured.why_not:
        return None
    machines = measured.machines

    def compare() -> SplitNow:
        with Contained("workers", "a comparison of splits"):
            if auto is not None:
                best = plan_model(layers, work, machines, options, auto)
            else:
                best = choose_split(layers, work, machines, options, least=options.least_workers)[0]
            plan = on_paths(facts.plan, {offer.node: offer.path for offer in machines.offers}.get)
            now = replace(facts, machines=machines).predictor.predict(plan)
            return SplitNow(best, now, machines, found.names)

    return await asyncio.to_thread(compare)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold what a measurement says of the split that runs.

    `better`: why the model is to be loaded again; empty: it is not. `lacking`: who could not be measured for
    now, such as a worker whose lease was used a moment ago; empty: everybody was.
    """

    better: str = ""
    lacking: str = ""


class LateMeasuring:
    """Measure what a load had to estimate, once nobody asks, and have the split judged by that."""

    def __init__(self, moments: QuietMoments) -> None:
        self._moments = moments
        self._not_before = 0.0
        self._damping = _FIRST_DAMPING_SECONDS
        self.better = ""
        """Why the model is to be loaded again, in a quiet moment; empty: it is not."""

    def forget(self) -> None:
        """Forget what was judged, as that run is over; if a judgement has ended it, damp the next one."""
        if self.better:
            self._not_before = asyncio.get_running_loop().time() + self._damping
            self._damping = min(2 * self._damping, _LONGEST_DAMPING_SECONDS)
        self.better = ""

    async def watch(self, run: WatchedRun) -> None:
        """Judge the split of `run` in quiet moments, until everybody could be measured.

        It begins anew where somebody asks meanwhile, and waits longer each time that somebody is missing.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._until_quiet(run)
            found = await self._judged(run)
            if found is None:
                continue
            if not found.lacking:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _until_quiet(self, run: WatchedRun) -> None:
        now = asyncio.get_running_loop().time
        while not (  # noqa: ASYNC110 - time is what is waited for
            run.loaded and now() >= self._not_before and self._moments.idle_seconds(now()) >= UNASKED_SECONDS
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    async def _judged(self, run: WatchedRun) -> Judgement | None:
        """Return the judgement; None: a request has ended it."""
        try:
            async with Owner() as owner:
                judging = owner.start(self._say(run), name="measuring")
                asked = owner.start(self._moments.until_asked(), name="request")
                await asyncio.wait([judging, asked], return_when=asyncio.FIRST_COMPLETED)
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        return None if judging.cancelled() else judging.result()

    async def _say(self, run: WatchedRun) -> Judgement:
        try:
            with Contained("workers", "measuring"):  # what fails here must not end the model
                found = await run.judge()
        except MeshdError as error:
            found = Judgement(lacking=error.what)
        self.better = found.better
        if found.lacking:
            LOG.info("split_not_judged", why=found.lacking)
        else:
            LOG.info("split_judged", why=found.better or "the model stays as it is")
        return found
