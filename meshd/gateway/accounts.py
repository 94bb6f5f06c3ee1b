"""What each key has used: its limits are held to, its answers are logged and counted for status."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from meshd.gateway.answer_log import AnswerLog, LoggedAnswer, utc_text
from meshd.gateway.answer_meter import AnswerMeter
from meshd.gateway.api_key import ApiKey
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.interface import KeyStatus
from meshd.gateway.key_quota import Excess, KeyQuota
from meshd.gateway.turns import Turn
from meshd.identity.key_proof import key_digest


class _Account:
    def __init__(self, name: str | None, quota: KeyQuota) -> None:
        self.name = name
        self.quota = quota
        self.answers = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0


class Accounts:
    """Of one gateway. `wall` gives unix seconds; without a `log` nothing is written."""

    def __init__(self, keys: Sequence[ApiKey], *, log: AnswerLog | None, wall: Callable[[], float]) -> None:
        self._log = log
        self._wall = wall
        self._is_limited = any(key.limits.tokens_per_day is not None for key in keys)
        self._of = {key_digest(key.secret): _Account(key.name, KeyQuota(key, 0.0)) for key in keys}
        self._anybody = _Account(None, KeyQuota(ApiKey(""), 0.0))  # where no key is asked for

    async def open(self) -> None:
        """Take up what was used today before a restart. Raises UserError when that cannot be read."""
        if self._log is None or not self._is_limited:
            return
        wall = self._wall()
        used = await asyncio.to_thread(self._log.tokens_by_key, utc_text(wall)[:10])
        for account in self._of.values():
            if account.name is not None and account.name in used:
                account.quota.add_tokens(used[account.name], wall)

    def close(self) -> None:
        """Idempotent."""
        if self._log is not None:
            self._log.close()

    @property
    def status(self) -> tuple[KeyStatus, ...]:
        """Of each key, since the start; none where no key is asked for."""
        wall = self._wall()
        return tuple(
            KeyStatus(
                name=one.name,
                active=one.quota.active,
                answers=one.answers,
                prompt_tokens=one.prompt_tokens,
                generated_tokens=one.generated_tokens,
                tokens_today=one.quota.tokens_today(wall),
            )
            for one in self._of.values()
            if one.name is not None
        )

    def _account(self, key: bytes) -> _Account:
        """Without keys, members that call have turns of their own, but no accounts."""
        return self._of[key] if self._of else self._anybody

    @contextmanager
    def request(self, key: bytes) -> Iterator[None]:
        """A request with this key, until the block is left. Raises HttpRefusal when it may have no more."""
        quota = self._account(key).quota
        excess = quota.begin(asyncio.get_running_loop().time(), self._wall())
        if excess is not None:
            raise HttpRefusal(_refused(excess))
        try:
            yield
        finally:
            quota.end()

    def answered(self, key: bytes, model: str, path: str, meter: AnswerMeter, turn: Turn) -> None:
        """A request has ended, well or not."""
        account, wall = self._account(key), self._wall()
        account.answers += 1
        estimated = meter.estimated_prompt
        prompt = meter.prompt if estimated is None else estimated
        account.prompt_tokens += prompt or 0
        account.generated_tokens += meter.computed
        account.quota.add_tokens((prompt or 0) + meter.computed, wall)
        if self._log is not None:
            self._log.write(
                LoggedAnswer(
                    time=utc_text(wall),
                    key=account.name,
                    model=model,
                    path=path,
                    prompt_tokens=prompt,
                    cached_tokens=meter.cached,
                    generated_tokens=meter.computed,
                    waited_s=round(turn.waited, 3),
                    computed_s=round(turn.computed, 3),
                    status=meter.status,
                    prompt_estimated=estimated is not None,
                )
            )


def _refused(excess: Excess) -> Failure:
    if excess.is_quota:
        name = "insufficient_quota"
        return Failure(429, excess.message, type=name, code=name, retry_after=excess.retry_after)
    return Failure(
        429, excess.message, type="requests", code="rate_limit_exceeded", retry_after=excess.retry_after
    )
