"""Measure what a load had to estimate, once nobody asks, and judge the split by that.

A load waits for no measurement (docs/decisions/0067-measured-after-the-load.md). quiet_moments.py decides
when the model is loaded again for what is found here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.fault_boundary import Contained
from meshd.base.tasks import Owner, first_error
from meshd.head.quiet_moments import UNASKED_SECONDS, QuietMoments, WatchedLife
from meshd.model.layer_work import LayerWork
from meshd.plan.wishes import HeadOptions

_LOOK_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 10.0  # a worker measures beside a lease that has been quiet for as long
_LONGEST_PAUSE_SECONDS = 600.0
# Between a load that a judgement has caused and the next judgement, doubled each time: what workers tell may
# be wrong, or may not hold while a model is loaded, and would have the model loaded again and again.
_FIRST_DAMPING_SECONDS = 600.0
_LONGEST_DAMPING_SECONDS = 6 * 3600.0
LOG = log.get("serve")


def own_timed(work: LayerWork, options: HeadOptions) -> Sequence[str]:
    """Return what the head's own devices may compute: without layers (`--device none`) at most the output."""
    if options.devices != ("none",):
        return work.texts
    if work.output is None or options.output not in ("auto", "head"):
        return []
    return [work.texts[work.output]]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold what a measurement says of the split that runs.

    `better`: why the model is to be loaded again; empty: it is not. `lacking`: who could not be measured for
    now, such as a worker whose lease was used a moment ago; empty: everybody was.
    """

    better: str = ""
    lacking: str = ""


class LateMeasuring:
    """Measure for one head; `judge` measures what is missing, and compares."""

    def __init__(self, moments: QuietMoments, judge: Callable[[], Awaitable[Judgement]]) -> None:
        self._moments = moments
        self._judge = judge
        self._not_before = 0.0
        self._damping = _FIRST_DAMPING_SECONDS
        self.better = ""
        """Why the model is to be loaded again, in a quiet moment; empty: it is not."""

    def forget(self) -> None:
        """Forget what was judged, as that life is over; if a judgement has ended it, damp the next one."""
        if self.better:
            self._not_before = asyncio.get_running_loop().time() + self._damping
            self._damping = min(2 * self._damping, _LONGEST_DAMPING_SECONDS)
        self.better = ""

    async def watch(self, life: WatchedLife) -> None:
        """Judge the split of `life` in quiet moments, until everybody could be measured.

        It begins anew where somebody asks meanwhile, and waits longer each time that somebody is missing.
        """
        pause = _FIRST_PAUSE_SECONDS
        while True:
            await self._until_quiet(life)
            found = await self._judged()
            if found is None:
                continue
            if not found.lacking:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _until_quiet(self, life: WatchedLife) -> None:
        now = asyncio.get_running_loop().time
        while not (  # noqa: ASYNC110 - time is what is waited for
            life.loaded and now() >= self._not_before and self._moments.idle_seconds(now()) >= UNASKED_SECONDS
        ):
            await asyncio.sleep(_LOOK_SECONDS)

    async def _judged(self) -> Judgement | None:
        """Return the judgement; None: a request has ended it."""
        try:
            async with Owner() as owner:
                judging = owner.start(self._say(), name="measuring")
                asked = owner.start(self._moments.until_asked(), name="request")
                await asyncio.wait([judging, asked], return_when=asyncio.FIRST_COMPLETED)
                owner.cancel()
        except ExceptionGroup as group:
            raise first_error(group) from None
        return None if judging.cancelled() else judging.result()

    async def _say(self) -> Judgement:
        try:
            with Contained("workers", "measuring"):  # what fails here must not end the model
                found = await self._judge()
        except MeshdError as error:
            found = Judgement(lacking=error.what)
        self.better = found.better
        if found.lacking:
            LOG.info("split_not_judged", why=found.lacking)
        else:
            LOG.info("split_judged", why=found.better or "the model stays as it is")
        return found
