"""How fast a model is, from what llama-server says of each answer. Pure.

Only answers that had all machines for themselves count, so that the figures compare with a prediction. Older
ones count less.
"""

from meshd.gateway.interface import AnswerTimings
from meshd.model.status import Speeds

LEAST_PROMPT = 64  # tokens; shorter prompts measure a start
_LEAST_GENERATED = 8
_REMEMBERED_TOKENS = 4096


class MeasuredSpeed:
    """Of one life of the model."""

    def __init__(self) -> None:
        self._prompt = _Mean()
        self._generated = _Mean()

    def answered(self, timings: AnswerTimings) -> None:
        """An answer that was made alone."""
        if timings.prompt_tokens >= LEAST_PROMPT:
            self._prompt.add(timings.prompt_tokens, timings.prompt_seconds)
        if timings.generated_tokens >= _LEAST_GENERATED:
            self._generated.add(timings.generated_tokens, timings.generated_seconds)

    @property
    def speeds(self) -> Speeds | None:
        """None before the first answer."""
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
