"""Measurements of one run: its speed, the bytes of a token, and where the time went.

Only answers that had all machines to themselves count as measured speed, so that it compares with a
prediction.
"""

import asyncio
from collections.abc import Callable

from meshd.gateway.interface import AnswerTimings
from meshd.head.explain import RunFacts
from meshd.head.speculation import RoundSeconds
from meshd.head.timed_answers import TimedAnswers
from meshd.model.status import Speeds
from meshd.plan.prediction import PlanPredictor

LEAST_PROMPT = 64  # tokens; shorter prompts measure a start
_LEAST_GENERATED = 8
_REMEMBERED_TOKENS = 4096


# The second token of an answer still carries the graph of its shape; those before it the prompt.
FIRST_TOKENS = 3
SAMPLE_TOKENS = 8  # between two looks at the links: a look costs more than a token is worth


class MeasuredSpeed:
    """Average the rates of one run; older answers count less."""

    def __init__(self) -> None:
        self._prompt = _Mean()
        self._generated = _Mean()

    def answered(self, timings: AnswerTimings) -> None:
        """Count an answer that was made alone."""
        if timings.prompt_tokens >= LEAST_PROMPT:
            self._prompt.add(timings.prompt_tokens, timings.prompt_seconds)
        if timings.generated_tokens >= _LEAST_GENERATED:
            self._generated.add(timings.generated_tokens, timings.generated_seconds)

    @property
    def speeds(self) -> Speeds | None:
        """Return both speeds; None before the first answer."""
        prompt, generated = self._prompt.rate, self._generated.rate
        return None if prompt is None and generated is None else Speeds(prompt, generated)


class _Mean:
    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if self._tokens > _REMEMBERED_TOKENS:
            self._tokens, self._seconds = self._tokens / 2, self._seconds / 2
        self._tokens += tokens
        self._seconds += seconds

    @property
    def rate(self) -> float | None:
        return round(self._tokens / self._seconds, 2) if self._seconds > 0 else None


class TokenCost:
    """Measure the bytes of a token on the wire. Tokens of several answers cross together and do not count."""

    def __init__(self, crossed: Callable[[], int]) -> None:
        """Take `crossed`: bytes on the links to the workers so far, both directions."""
        self._crossed = crossed
        self._mark: tuple[int, int] | None = None  # tokens of the answer, and bytes, at the last look
        self._tokens = 0
        self._bytes = 0

    def generated(self, total: int, *, alone: bool) -> None:
        """Look at the links: an answer has `total` tokens by now. `alone`: no other request is under way."""
        if not alone or total < FIRST_TOKENS or (self._mark is not None and total < self._mark[0]):
            self._mark = None
        if not alone or total < FIRST_TOKENS:
            return
        if self._mark is None:
            self._mark = total, self._crossed()
        elif total - self._mark[0] >= SAMPLE_TOKENS:
            now = self._crossed()
            self._tokens += total - self._mark[0]
            self._bytes += now - self._mark[1]
            self._mark = total, now

    @property
    def bytes_per_token(self) -> float | None:
        """Return the average; None until an answer was long enough."""
        return self._bytes / self._tokens if self._tokens else None


class RunMeasures:
    """Measure one run, as the gateway tells what becomes of requests (gateway.interface.Upstream)."""

    def __init__(self, crossed: Callable[[], int]) -> None:
        """Measure nothing yet. `crossed`: bytes on the links to the workers so far, both directions."""
        self._now = asyncio.get_running_loop().time
        self.speed = MeasuredSpeed()
        self.token_cost = TokenCost(crossed)
        self.answers = TimedAnswers()
        self._predictor: PlanPredictor | None = None
        self._facts: RunFacts | None = None

    @property
    def facts(self) -> RunFacts | None:
        """Return the facts of the plan, as soon as there is one."""
        return self._facts

    @property
    def round_seconds(self) -> RoundSeconds | None:
        """Return the predicted seconds of rounds; None where they are not."""
        if self._facts is None or self._predictor is None:
            return None
        return self._predictor.rounds_of(self._facts.plan)

    def planned(self, facts: RunFacts) -> None:
        """Take how the model will run."""
        self._facts = facts
        self._predictor = PlanPredictor(facts.layers, facts.work, facts.machines, facts.options)

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Note the progress of a stream."""
        self.token_cost.generated(total, alone=alone)
        self.answers.generated(total, grown, self._now(), alone=alone)

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Note the end of an answer."""
        if alone:
            self.speed.answered(timings)
        self.answers.answered(timings, self._now(), alone=alone, seconds=seconds)
