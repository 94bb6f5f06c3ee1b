"""The work of a gateway, for those who look at it: answers under way, and what was done lately.

All is worked out when somebody looks: a request passes nothing here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.gateway.events import AnswerMeter, WorkCounts, WorkHistory
from meshd.gateway.interface import ApiKey, RequestPhase, RequestStatus, Upstream
from meshd.identity.proof import key_digest
from meshd.model.status import ModelState


@dataclass(frozen=True, slots=True)
class AnswerUnderWay:
    """One answer. `key`: the digest of its API key. `notice`: returns what it waits for, in words."""

    meter: AnswerMeter
    upstream: Upstream
    key: bytes
    streams: bool
    notice: Callable[[], str]

    def status(self, number: int, key_name: str, now: float) -> RequestStatus:
        """Return its state at `now`, in loop time."""
        meter, phase = self.meter, self._phase
        seconds = 0.0 if meter.first is None else now - meter.first
        # the first token came with the prompt
        has_rate = phase is RequestPhase.ANSWERING and meter.generated > 1 and seconds > 0
        rate = (meter.generated - 1) / seconds if has_rate else None
        return RequestStatus(
            id=number,
            model=self.upstream.model_name,
            phase=phase,
            seconds=max(0.0, now - meter.came),
            tokens=meter.generated,
            tok_s=rate,
            key=key_name,
            note=self.notice() if phase is RequestPhase.WAITING else "",
        )

    @property
    def _phase(self) -> RequestPhase:
        if self.meter.sent is None or self.upstream.readiness.state is not ModelState.READY:
            return RequestPhase.WAITING
        # nobody tells when the prompt of an answer is done that comes as a whole
        is_reading = self.streams and self.meter.first is None
        return RequestPhase.PROMPT if is_reading else RequestPhase.ANSWERING


class GatewayWork:
    """The work of one gateway, whose clients have these API keys: `answers` by number, in their order."""

    def __init__(
        self, keys: Sequence[ApiKey], answers: Mapping[int, AnswerUnderWay], counts: WorkCounts
    ) -> None:
        self._keys = keys
        self._answers = answers
        self._counts = counts

    @property
    def requests(self) -> Sequence[RequestStatus]:
        """Return the states of the answers under way, the oldest first."""
        now, names = _now(), {}
        if self._answers:
            names = {key_digest(key.secret): key.name for key in self._keys}
        return [
            answer.status(number, names.get(answer.key, ""), now) for number, answer in self._answers.items()
        ]

    @property
    def history(self) -> WorkHistory:
        """Return what was done in the last quarter of an hour."""
        return self._counts.read(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()
