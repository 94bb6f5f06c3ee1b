"""What one life of the model on a head comes to, and how it ends (model_run.py)."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshd.base.errors import MeshdError
from meshd.head.load_report import WeightsReport
from meshd.model.device_sampling import DeviceSampling
from meshd.model.status import AnswersAtOnce, Speeds, SplitPart
from meshd.plan.split import Plan
from meshd.plan.words import brief
from meshd.process.interface import ChildState, ChildStatus

LEASE_WORD_SECONDS = 1.0  # llama-server sees the loss of a worker; the lease tells why, a moment later


class End:
    """Why it ended: the first that is said."""

    def __init__(self) -> None:
        self._known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reported = ""
        self._error: MeshdError | None = None

    @property
    def known(self) -> bool:
        """Whether anybody has said it."""
        return self._known.done()

    def say(self, why: str) -> None:
        """For good."""
        if not self._known.done():
            self._known.set_result(why)

    def fail(self, error: MeshdError) -> None:
        """For good: the next life would end like this one, unless something changes."""
        if not self._known.done():
            self._error = error
            self.say(error.what)

    def seen(self, why: str) -> None:
        """It has ended, and a worker may have a better reason."""
        if not self._seen.done():
            self._seen.set_result(why)

    def reported(self, why: str) -> None:
        """llama-server names the worker that it lost: better than what was seen, and no word of a lease."""
        self._reported = why

    async def word_of_a_lease(self) -> None:
        """Give it a moment."""
        await asyncio.wait([self._known], timeout=LEASE_WORD_SECONDS)

    async def why(self) -> str:
        """Waits for it. Raises what was given to `fail`."""
        await asyncio.wait([self._known, self._seen], return_when=asyncio.FIRST_COMPLETED)
        await self.word_of_a_lease()
        if self._error is not None:
            raise self._error
        if self._known.done():
            return self._known.result()
        return self._reported or self._seen.result()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a load came to; `seconds` None before the first.

    `estimated`: nodes whose speed was estimated for the plan, until they are measured; `measuring`: seconds
    that this took then.
    """

    seconds: float | None = None
    estimated: frozenset[str] = frozenset()
    measuring: float = 0.0
    plan: Plan | None = None
    split: tuple[SplitPart, ...] = ()
    report: WeightsReport = field(default_factory=lambda: WeightsReport({}))
    predicted: Speeds | None = None
    sampling: DeviceSampling | None = None
    """Which requests take candidates from the worker that makes logits; None: it sends all logits."""
    props: Mapping[str, object] = field(default_factory=dict)
    """What llama-server says of itself and the model."""

    @property
    def why(self) -> str:
        """Word in short why it is split like this."""
        return brief(self.plan.reasons) if self.plan is not None else ""

    @property
    def answers(self) -> AnswersAtOnce | None:
        """How many there are at once."""
        return self.plan.answers if self.plan is not None else None


@dataclass(frozen=True, slots=True)
class ServerDied:
    """llama-server ended, or made no token, before it was ready: with which split, and its last lines."""

    name: str
    split: tuple[SplitPart, ...]
    tail: tuple[str, ...]

    def as_child(self, starts: int, failures: int) -> ChildStatus:
        """For status, while it is not started again after so many `starts`; `failures` in a row."""
        return ChildStatus(
            name=self.name,
            state=ChildState.FAILED,
            restarts=max(0, starts - 1),
            reason=f"ended {failures} times in a row before it was ready",
            tail=self.tail,
        )
