"""Judge workers that come while the model runs: one with which it is clearly faster is taken in.

The head asks them as `meshd plan` does, which reserves nothing. quiet_moments.py decides when the model is
loaded again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.fault_boundary import Contained
from meshd.head.explain import RunFacts
from meshd.head.quiet_moments import UNASKED_SECONDS, WatchedLife, arrived
from meshd.head.survey import Surveyor
from meshd.head.worker_choice import Roster
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus
from meshd.plan.choice import SplitChoice, choose_split
from meshd.plan.machines import Machines, measured_machines
from meshd.plan.prediction import PlanOutcome, PlanPredictor, on_paths

_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # for a moment without requests, in which devices and paths are measured undisturbed
_CLEARLY = 0.9  # of the time of an answer now: a load costs seconds to minutes, and pauses answers
LOG = log.get("serve")


class Arrivals:
    """Of one head. `workers`: whom it could ask now; `better_with`: workers of a clearly faster split."""

    def __init__(
        self,
        workers: Callable[[], Iterable[PeerStatus]],
        better_with: Callable[[], Awaitable[Collection[PeerId]]],
        idle_seconds: Callable[[float], float],
    ) -> None:
        self._workers = workers
        self._better_with = better_with
        self._idle_seconds = idle_seconds
        self._helpful: frozenset[PeerId] = frozenset()

    @property
    def helpful(self) -> frozenset[PeerId]:
        """The workers that have come, and with which the model would be clearly faster."""
        return self._helpful

    async def watch(self, life: WatchedLife) -> None:
        """Judge each worker that has come since `life` began, once for each arrival, until cancelled."""
        loop = asyncio.get_running_loop()
        began = loop.time()
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
                and arrived([peer], life.workers, able, began=began, now=now) is not None
            }
            waited = now - min(came.values(), default=now)
            is_quiet = self._idle_seconds(now) >= UNASKED_SECONDS
            if not (life.loaded and came and (is_quiet or waited >= _PATIENCE_SECONDS)):
                continue
            judged = came | {peer: since for peer, since in judged.items() if peer not in came}
            self._helpful -= came.keys()
            try:
                self._helpful |= came.keys() & frozenset(await self._better_with())
            except MeshdError as error:
                LOG.info("workers_not_compared", why=error.what)


@dataclass(frozen=True, slots=True)
class SplitNow:
    """The fastest split of the `machines` as they are now, beside what runs; `names` of their workers."""

    best: SplitChoice
    runs: PlanOutcome
    machines: Machines
    names: Mapping[PeerId, str]

    @property
    def is_clearly_faster(self) -> bool:
        """Whether it is worth a load."""
        return self.best.seconds < _CLEARLY * self.runs.answer_s


async def compare_now(facts: RunFacts, surveyor: Surveyor, roster: Roster) -> SplitNow | None:
    """Measure what is not measured yet, and compare; None: nothing can be compared. Raises MeshdError."""
    options, layers, work = facts.options, facts.layers, facts.work
    found = await surveyor.compared(work, options, roster, facts.held)
    measured = measured_machines(work, found.machines, options)
    if measured.why_not:
        return None
    machines = measured.machines

    def compare() -> SplitNow:
        with Contained("workers", "a comparison of splits"):
            best = choose_split(layers, work, machines, options, least=options.least_workers)[0]
            plan = on_paths(facts.plan, {one.node: one.path for one in machines.offers}.get)
            now = PlanPredictor(layers, work, machines, options).predict(plan)
            return SplitNow(best, now, machines, found.names)

    return await asyncio.to_thread(compare)


async def better_workers(facts: RunFacts, surveyor: Surveyor, roster: Roster) -> frozenset[PeerId]:
    """Return the workers of the fastest split if it is clearly faster than what runs. Raises MeshdError."""
    found = await compare_now(facts, surveyor, roster)
    if found is None or not found.is_clearly_faster:
        return frozenset()
    return frozenset(peer for peer, name in found.names.items() if name in found.best.nodes)
