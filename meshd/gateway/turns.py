"""Share llama-server between users: the order of turns, quotas of API keys, and a log of the use.

llama-server handles requests in the order of their arrival: fifty requests of one user delay the next user by
fifty answers. So the gateway sends only as many requests as llama-server has slots, and the others wait here.

The next turn goes to the user with the fewest answers under way; among those, to the one that has used the
least of llama-server's time recently, and then to the one that has waited longest. The time that a request
waits for its model to load does not count, because everybody waits for that. One user's requests keep their
order. After HALF_LIFE_SECONDS, used time counts half, so that using an idle hour has no lasting cost. With
one slot, a user without recent use waits for at most one answer of each other user; recent use adds at most
its own time, for each other user (`USE_BOUND_SECONDS`).

`AnswerQueue` decides the order, without a clock; `Turns` adds the clock and the waiting tasks of one
llama-server.

A key may have limits: requests at a time, requests per minute, tokens per day. An answer that has begun is
always finished: its tokens are known only at its end, when they are counted for the status, the daily limit
and the log. The log has one JSON object per line, in a file of bounded size that only its owner can read. It
contains neither prompts nor answers.
"""

import asyncio
import json
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from meshd.base.admission import TokenBucket
from meshd.base.errors import UserError
from meshd.base.files import RotatedFile
from meshd.base.log import get
from meshd.base.peer_limits import API_USERS_KNOWN
from meshd.base.units import in_number, in_time
from meshd.gateway.events import AnswerMeter, parsed
from meshd.gateway.failure import Failure, HttpRefusal, unavailable
from meshd.gateway.interface import ApiKey, KeyStatus, Upstream
from meshd.gateway.metrics import GatewayMetrics
from meshd.identity.proof import key_digest
from meshd.model.status import ModelState

HALF_LIFE_SECONDS = 60.0
USE_BOUND_SECONDS = HALF_LIFE_SECONDS / math.log(2.0)  # recent use of one answer after another
TURN_SECONDS = 600.0  # for which a request waits for its turn at most
_FORGOTTEN_SECONDS = 0.01  # of use: as good as none


@dataclass(slots=True, eq=False)
class Ticket:
    """A request of `user` that came at `entered` as the `number`th; its turn came at `began`.

    `computes`: it uses llama-server now.
    """

    user: Hashable
    entered: float
    number: int
    began: float | None = None
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    computes: bool = False
    has_left: bool = False


@dataclass(slots=True)
class _User:
    """A user's requests, and `use`: decayed seconds of llama-server at the time `at`.

    `computing` of the `running` requests use llama-server now.
    """

    at: float
    use: float = 0.0
    running: int = 0
    computing: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)

    def use_at(self, now: float) -> float:
        fade = math.exp2(-max(0.0, now - self.at) / HALF_LIFE_SECONDS)
        return self.use * fade + self.computing * USE_BOUND_SECONDS * (1.0 - fade)

    def compute(self, ticket: Ticket, computes: bool, now: float) -> None:
        """Set whether a request uses llama-server from now on."""
        if ticket.computes is not computes:
            self.use, self.at = self.use_at(now), max(self.at, now)
            self.computing += 1 if computes else -1
            ticket.computes = computes


class AnswerQueue:
    """The order of the requests for one llama-server. `now` is a clock in seconds that never goes back.

    The limits of requests and bytes, in total and per user, are checked before.
    """

    def __init__(self) -> None:
        self._users: dict[Hashable, _User] = {}
        self._came = 0
        self.running = 0
        self.waiting = 0

    def enter(self, user: Hashable, now: float) -> Ticket:
        """Queue a request behind the others of `user`."""
        state = self._users.get(user)
        if state is None:
            self._forget(now)
            state = self._users[user] = _User(now)
        self._came += 1
        ticket = Ticket(user, now, self._came)
        state.waiting.append(ticket)
        self.waiting += 1
        return ticket

    def begin(self, slots: int, now: float) -> list[Ticket]:
        """Begin the turns that are due, and return them; at most `slots` answers run at a time."""
        begun = []
        while self.waiting and self.running < slots:
            state = min(
                (state for state in self._users.values() if state.waiting),
                key=lambda state: (state.running, state.use_at(now), state.waiting[0].number),
            )
            ticket = state.waiting.popleft()
            ticket.began = now
            ticket.has_begun.set()
            self.waiting -= 1
            state.compute(ticket, True, now)
            state.running += 1
            self.running += 1
            begun.append(ticket)
        return begun

    def leave(self, ticket: Ticket, now: float) -> None:
        """End a ticket, whether its answer has ended or was given up. Call it once for each ticket."""
        state = self._users[ticket.user]
        ticket.has_left = True
        if ticket.began is None:
            state.waiting.remove(ticket)
            self.waiting -= 1
        else:
            state.compute(ticket, False, now)
            state.running -= 1
            self.running -= 1

    def compute(self, ticket: Ticket, computes: bool, now: float) -> None:
        """Set whether a request whose turn has come computes from now on, or waits for its model."""
        if ticket.began is not None and not ticket.has_left:
            self._users[ticket.user].compute(ticket, computes, now)

    def place(self, ticket: Ticket, now: float) -> int:
        """Count the requests ahead of `ticket`, if no answer ended and no request came."""
        mine = self._users[ticket.user]
        behind = mine.waiting.index(ticket)
        level = mine.running + behind  # answers under way that its user has when its turn comes
        rank = (mine.use_at(now), ticket.number)
        before = behind
        for other in self._users.values():
            if other is mine:
                continue
            fewer = max(0, min(len(other.waiting), level - other.running))
            # then its user has as many under way as mine
            equal = other.waiting[fewer] if 0 <= level - other.running < len(other.waiting) else None
            before += fewer + (equal is not None and (other.use_at(now), equal.number) < rank)
        return before

    def _forget(self, now: float) -> None:
        """Forget users without requests or recent use; if too many remain, also those with the least use."""
        idle = {
            user: state.use_at(now)
            for user, state in self._users.items()
            if not state.running and not state.waiting
        }
        spare = len(self._users) - API_USERS_KNOWN.most + 1
        least = sorted(idle, key=idle.__getitem__)[: max(0, spare)]
        for user in {*least, *(user for user, use in idle.items() if use < _FORGOTTEN_SECONDS)}:
            del self._users[user]


_LOOK_SECONDS = 1.0  # no event says when llama-server is loaded again with more slots
_SHORTEST_SECONDS = 0.01  # what is left in the end may be too short for the clock to move
_RETRY_SECONDS = 10


class Turn:
    """One request's turn, for which it waits in `come`; times in seconds."""

    def __init__(self, turns: "Turns", ticket: Ticket) -> None:
        self._turns = turns
        self._ticket = ticket

    async def come(self) -> None:
        """Wait for the turn, unless it has come already. Raises HttpRefusal if it takes too long.

        Time does not count while the model is loading, because the first request waits for that without
        limit, nor while turns are held.
        """
        turns, has_come = self._turns, self._ticket.has_begun
        left, seen = turns.max_wait, _now()
        while not has_come.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(_SHORTEST_SECONDS, min(_LOOK_SECONDS, left))):
                    await has_come.wait()
            turns.begin()
            since, seen = seen, _now()
            left -= 0.0 if turns.is_loading or turns.held else seen - since
            if left <= 0 and not has_come.is_set():
                message = (
                    f"no turn within {in_time(turns.max_wait)}: {in_number(turns.running, 'request')} under "
                    f"way, {in_number(turns.waiting, 'request')} waiting"
                )
                raise unavailable(message, "queue_timeout", _RETRY_SECONDS)

    @asynccontextmanager
    async def for_model(self) -> AsyncIterator[None]:
        """Count no use within the block, because the request waits for its model."""
        before = self._ticket.computes
        self._turns.queue.compute(self._ticket, False, _now())
        try:
            yield
        finally:
            self._turns.queue.compute(self._ticket, before, _now())

    def notice(self, silence: float) -> str:
        """Return the request's place in the queue, in words; empty before it has waited `silence` seconds."""
        if self._ticket.began is not None or self.waited < silence:
            return ""
        before, held = self._turns.queue.place(self._ticket, _now()), self._turns.held
        place = f"{before} before this one" if before else "next"
        return f"waiting for a turn: {place}" + (f"; {held}" if held else "")

    @property
    def waited(self) -> float:
        """Return the seconds until its turn came, or until now."""
        began = self._ticket.began
        return (_now() if began is None else began) - self._ticket.entered

    @property
    def computed(self) -> float:
        """Return the seconds since its turn came."""
        return 0.0 if self._ticket.began is None else _now() - self._ticket.began


class Turns:
    """The queue of one llama-server; without `upstream`, of the gateway's own work.

    Its own work runs one at a time, and may wait without limit.
    """

    def __init__(self, upstream: Upstream | None = None) -> None:
        self.queue = AnswerQueue()
        self.max_wait = math.inf if upstream is None else TURN_SECONDS
        self._upstream = upstream

    @property
    def running(self) -> int:
        """Count the requests whose turn has come."""
        return self.queue.running

    @property
    def waiting(self) -> int:
        """Count the requests whose turn has not come."""
        return self.queue.waiting

    @property
    def is_loading(self) -> bool:
        """Return True while the model is loading."""
        return self._upstream is not None and self._upstream.readiness.state is ModelState.LOADING

    @property
    def held(self) -> str:
        """Return why no turn begins now; empty if turns begin."""
        return self._upstream.holds_turns if self._upstream is not None else ""

    @contextmanager
    def enter(self, user: Hashable) -> Iterator[Turn]:
        """Hold a place in the queue, and then one of llama-server's slots, until the block is left."""
        ticket = self.queue.enter(user, _now())
        try:
            self.begin()
            yield Turn(self, ticket)
        finally:
            self.queue.leave(ticket, _now())
            self.begin()

    @asynccontextmanager
    async def turn(self, user: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, which lasts until the block is left. Raises HttpRefusal as Turn.come does."""
        with self.enter(user) as turn:
            await turn.come()
            yield

    def begin(self) -> None:
        """Begin the turns that are due."""
        slots = 1 if self._upstream is None else max(1, self._upstream.slots or 1)
        self.queue.begin(0 if self.held else slots, _now())
        if self._upstream is not None:
            self._upstream.queued(self.waiting)


def _now() -> float:
    return asyncio.get_running_loop().time()


ANSWER_LOG_NAME = "answers.jsonl"
ANSWER_LOG_BYTES = 4 << 20  # some 16,000 answers; one older file of the same size is kept beside it


@dataclass(frozen=True, slots=True)
class LoggedAnswer:
    """One line of the log. `time`: the end of the answer, UTC; `key`: the key's name, null without keys.

    Figures that llama-server did not give are null, but the tokens of a computed prompt are estimated.
    `waited_s`: seconds until its turn came; `computed_s`: seconds from then. `status`: the HTTP status; the
    error's if a stream ended with one; 499 if the client hung up before the end.
    """

    time: str
    key: str | None
    model: str
    path: str
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int
    waited_s: float
    computed_s: float
    status: int
    prompt_estimated: bool = False


class AnswerLog:
    """The log of answers: the file at `path`, and the one before it."""

    def __init__(self, path: Path, *, most: int = ANSWER_LOG_BYTES) -> None:
        self._path = path
        self._file = RotatedFile(path, most=most, on_lost=self._lost)

    def write(self, answer: LoggedAnswer) -> None:
        """Append a line. If the disk refuses it, the line is lost, and the daemon's log counts lost lines."""
        self._file.write(json.dumps(asdict(answer)).encode() + b"\n")
        if lost := self._file.take_lost():
            _log.warning("answer_log_back", path=str(self._path), count=lost)

    def close(self) -> None:
        """Close the file; a later write opens it again. Idempotent."""
        self._file.close()

    def tokens_by_key(self, day: str) -> Mapping[str, int]:
        """Sum the tokens of `day` (`2026-11-23`, UTC), prompts and answers, by the key's name.

        Reads both files, so call it in a thread. Raises UserError if one exists and cannot be read.
        """
        found: Counter[str] = Counter()
        for line in self._lines():
            if not line.startswith(f'{{"time": "{day}'):
                continue
            fields = parsed(line)  # None: half a line
            if isinstance(fields, dict) and isinstance(key := fields.get("key"), str):
                figures = (fields.get("prompt_tokens"), fields.get("generated_tokens"))
                found[key] += sum(figure for figure in figures if isinstance(figure, int) and figure > 0)
        return found

    def _lines(self) -> Iterator[str]:
        for path in (self._path.with_name(self._path.name + ".1"), self._path):
            try:
                with path.open(encoding="utf-8", errors="replace") as file:
                    yield from file
            except FileNotFoundError:
                continue
            except OSError as error:
                hint = "make it readable, or move it away: limits per day then start again at 0"
                what = f"cannot read the request log `{path}`: {error.strerror}"
                raise UserError(what, hint=hint) from error

    def _lost(self, error: OSError) -> None:
        _log.warning("answer_log_lost", path=str(self._path), why=error.strerror or type(error).__name__)


def utc_text(wall: float) -> str:
    """Write unix seconds as `2026-11-23T16:35:00.123Z`."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


DAY_SECONDS = 86400
_ANOTHER_SECONDS = 2  # before a client whose requests are too many at a time tries again
_ANYBODY = ApiKey("", "")  # for all callers, if no key is required


class Account:
    """The limits of one key and its use.

    `now` is a clock in seconds that never goes back, `wall` unix seconds.
    """

    def __init__(self, key: ApiKey, now: float) -> None:
        self.name = key.name
        self._limits = key.limits
        minute = key.limits.requests_per_minute
        self._bucket = None if minute is None else TokenBucket(rate=minute / 60, burst=minute, now=now)
        self._day = 0
        self._tokens = 0
        self.active = 0
        self.answers = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0

    def tokens_today(self, wall: float) -> int:
        """Return the tokens counted since midnight UTC."""
        return self._tokens if self._day == int(wall // DAY_SECONDS) else 0

    def add_tokens(self, tokens: int, wall: float) -> None:
        """Count the tokens of an answer that has ended at `wall`."""
        self._tokens = self.tokens_today(wall) + tokens
        self._day = int(wall // DAY_SECONDS)

    def spent(self, wall: float) -> Failure | None:
        """Return a refusal if the tokens of today are used up, else None."""
        most = self._limits.tokens_per_day
        if most is None or self.tokens_today(wall) < most:
            return None
        rest, name = max(1, math.ceil(DAY_SECONDS - wall % DAY_SECONDS)), "insufficient_quota"
        spent = f"the key `{self.name}` has used up its {most} tokens per day: more in {in_time(rest)}"
        return Failure(429, spent, type=name, code=name, retry_after=rest)

    def begin(self, now: float, wall: float) -> Failure | None:
        """Count a request until `end`, or return why it is refused."""
        minute, most = self._limits.requests_per_minute, self._limits.concurrent
        of = f"of the key `{self.name}`"
        if (spent := self.spent(wall)) is not None:
            return spent
        if most is not None and self.active >= most:
            are = "is" if self.active == 1 else "are"
            what = f"{in_number(self.active, 'request')} {of} {are} already in progress"
            return _too_many(what, _ANOTHER_SECONDS)
        if minute is not None and self._bucket is not None and not self._bucket.spend(1, now):
            # what a request with many answers has taken in advance comes first
            rest = max(1, math.ceil(self._bucket.take(0, now) + 60 / minute))
            what = f"more than {in_number(minute, 'request')} per minute {of}"
            return _too_many(f"{what}: the next one in {in_time(rest)}", rest)
        self.active += 1
        return None

    def add_answers(self, answers: int, now: float) -> None:
        """Count a running request as `answers` requests; those beyond the limit delay the next request."""
        if self._bucket is not None:
            self._bucket.take(answers - 1, now)

    def end(self) -> None:
        """End a request that `begin` counted."""
        self.active -= 1


def _too_many(what: str, retry_after: int) -> Failure:
    return Failure(429, what, type="requests", code="rate_limit_exceeded", retry_after=retry_after)


class Accounts:
    """The accounts of one gateway.

    `wall` gives unix seconds; without a `log` nothing is written. `metrics` observe each answer.
    """

    def __init__(
        self,
        keys: Sequence[ApiKey],
        *,
        log: AnswerLog | None,
        wall: Callable[[], float],
        metrics: GatewayMetrics,
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._wall = wall
        self._is_limited = any(key.limits.tokens_per_day is not None for key in keys)
        self._of = {key_digest(key.secret): Account(key, 0.0) for key in keys}
        self._anybody = Account(_ANYBODY, 0.0)

    async def open(self) -> None:
        """Load the tokens used today before a restart. Raises UserError if the log cannot be read."""
        if self._log is None or not self._is_limited:
            return
        wall = self._wall()
        used = await asyncio.to_thread(self._log.tokens_by_key, utc_text(wall)[:10])
        for account in self._of.values():
            account.add_tokens(used.get(account.name, 0), wall)

    def close(self) -> None:
        """Close the log. Idempotent."""
        if self._log is not None:
            self._log.close()

    @property
    def status(self) -> tuple[KeyStatus, ...]:
        """Return the use of each key since the start; empty if no key is required."""
        wall = self._wall()
        return tuple(
            KeyStatus(
                name=account.name,
                active=account.active,
                answers=account.answers,
                prompt_tokens=account.prompt_tokens,
                generated_tokens=account.generated_tokens,
                tokens_today=account.tokens_today(wall),
            )
            for account in self._of.values()
        )

    def _account(self, key: bytes) -> Account:
        """Return the account of a key; without keys, the one that all callers share."""
        return self._of[key] if self._of else self._anybody

    @contextmanager
    def request(self, key: bytes) -> Iterator[None]:
        """Count a request of this key until the block is left.

        Raises HttpRefusal if the key may have no more.
        """
        account = self._account(key)
        if (excess := account.begin(_now(), self._wall())) is not None:
            raise HttpRefusal(excess)
        try:
            yield
        finally:
            account.end()

    def add_answers(self, key: bytes, answers: int) -> None:
        """Count the number of answers that a running request asks for."""
        self._account(key).add_answers(answers, _now())

    @contextmanager
    def counted_answer(
        self, key: bytes, model: str, path: str, meter: AnswerMeter, turn: Turn | None = None
    ) -> Iterator[None]:
        """Count and log an answer of `model` when the block ends or fails. `path`: the client's.

        `turn` None: another node answers, and has a queue.
        """
        account = self._account(key)
        try:
            yield
        except HttpRefusal as refusal:
            meter.status = refusal.failure.status
            raise
        except asyncio.CancelledError:
            meter.hung_up()
            raise
        finally:
            # what the key has used, with an estimate of a prompt whose tokens nobody told
            wall, estimated = self._wall(), meter.estimated_prompt
            prompt = meter.prompt if estimated is None else estimated
            account.answers += 1
            account.prompt_tokens += prompt or 0
            account.generated_tokens += meter.generated
            account.add_tokens((prompt or 0) + meter.generated, wall)
            self._observe(model, meter, prompt or 0, turn)
            # the line of the log
            if self._log is not None and turn is not None:
                line = LoggedAnswer(
                    time=utc_text(wall),
                    key=account.name or None,
                    model=model,
                    path=path,
                    prompt_tokens=prompt,
                    cached_tokens=meter.cached,
                    generated_tokens=meter.generated,
                    waited_s=round(turn.waited, 3),
                    computed_s=round(turn.computed, 3),
                    status=meter.status,
                    prompt_estimated=estimated is not None,
                )
                self._log.write(line)

    def _observe(self, model: str, meter: AnswerMeter, prompt: int, turn: Turn | None) -> None:
        """Observe the figures of an answer, but for its tokens, which count as they come."""
        metrics, timings = self._metrics, meter.timings
        label = metrics.models[model]
        if turn is not None and meter.turn is not None:
            metrics.queue_seconds.labels(label).observe(turn.waited)
        if meter.first is not None:
            metrics.first_token_seconds.labels(label).observe(meter.first - meter.came)
        if timings is not None:
            metrics.prompt_seconds.labels(label).inc(timings.prompt_seconds)
            metrics.generated_seconds.labels(label).inc(timings.generated_seconds)
            if (others := timings.generated_tokens - 1) > 0:  # the prompt made the first
                metrics.token_seconds.labels(label).observe(timings.generated_seconds / others)
        metrics.prompt_tokens.labels(label).inc(prompt)
        metrics.cached_tokens.labels(label).inc(meter.cached or 0)
        metrics.losses.labels(label).inc(meter.losses)

    def check_tokens(self, key: bytes) -> None:
        """Refuse more answers if the tokens of today are used up. Raises HttpRefusal."""
        if (excess := self._account(key).spent(self._wall())) is not None:
            raise HttpRefusal(excess)


_log = get("gateway")
