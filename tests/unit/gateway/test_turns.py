"""Turns at llama-server, in their order; what each key may use; and the log of the use."""

import asyncio
import io
import itertools
import json
import tempfile
import tracemalloc
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from meshd.base import log as logging
from meshd.base.errors import UserError
from meshd.base.peer_limits import API_USERS_KNOWN
from meshd.gateway.events import CLIENT_GONE, AnswerMeter
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.interface import AnswerTimings, ApiKey, KeyLimits, Readiness
from meshd.gateway.metrics import GatewayMetrics
from meshd.gateway.turns import (
    DAY_SECONDS,
    HALF_LIFE_SECONDS,
    TURN_SECONDS,
    USE_BOUND_SECONDS,
    Account,
    Accounts,
    AnswerLog,
    AnswerQueue,
    LoggedAnswer,
    Ticket,
    Turns,
    utc_text,
)
from meshd.identity.proof import key_digest
from meshd.model.status import ModelState

from tests.process.gateway_fake import FakeUpstream
from tests.sim.loop import run


def test_one_request_does_not_wait_for_fifty_of_another_user() -> None:
    queue = AnswerQueue()
    flood = [queue.enter("agent", 0.0) for _ in range(50)]
    running = queue.begin(2, 0.0)
    assert running == flood[:2]
    mine = queue.enter("chat", 1.0)
    assert queue.begin(2, 1.0) == []
    assert queue.place(mine, 1.0) == 0
    queue.leave(running[0], 5.0)
    assert queue.begin(2, 5.0) == [mine]


def test_users_who_ask_all_the_time_get_the_same_number_of_slots() -> None:
    queue = AnswerQueue()
    for user in "abc":
        for _ in range(40):
            queue.enter(user, 0.0)
    running = deque(queue.begin(6, 0.0))
    for now in range(1, 60):
        assert Counter(ticket.user for ticket in running) == {"a": 2, "b": 2, "c": 2}
        queue.leave(running.popleft(), float(now))
        running.extend(queue.begin(6, float(now)))


def test_short_answers_are_not_held_to_the_number_of_long_ones() -> None:
    """One slot; answers of 30 s and of 1 s: by numbers the first user would have 97 % of the time."""
    queue, now = AnswerQueue(), 0.0
    seconds = {"long": 30.0, "short": 1.0}
    had = dict.fromkeys(seconds, 0.0)
    for user in seconds:
        for _ in range(20):
            queue.enter(user, 0.0)
    while now < 3600:
        (ticket,) = queue.begin(1, now)
        user = str(ticket.user)
        now += seconds[user]
        had[user] += seconds[user]
        queue.leave(ticket, now)
        queue.enter(user, now)
    assert had["short"] > 0.4 * now


def test_who_waited_for_the_model_for_all_has_used_nothing() -> None:
    queue = AnswerQueue()
    first, other = queue.enter("first", 0.0), queue.enter("other", 0.0)
    assert queue.begin(1, 0.0) == [first]
    queue.compute(first, False, 0.0)
    queue.compute(first, True, 60.0)  # a minute for the load, a second for the answer
    queue.leave(first, 61.0)
    assert queue.begin(1, 61.0) == [other]
    again = [queue.enter(user, 61.0) for user in ("first", "other")]
    queue.leave(other, 63.0)
    assert queue.begin(1, 63.0) == again[:1], "the other one has used two seconds"


def test_who_has_left_uses_nothing_more() -> None:
    queue = AnswerQueue()
    ticket = queue.enter("a", 0.0)
    queue.begin(1, 0.0)
    queue.compute(ticket, False, 1.0)
    queue.leave(ticket, 1.0)
    queue.compute(ticket, True, 1.0)
    other = queue.enter("b", 1000.0)  # who is new makes room: what `a` used long ago is forgotten
    assert queue.begin(1, 1000.0) == [other]
    again, _new = queue.enter("a", 1000.0), queue.enter("c", 1000.0)
    queue.leave(other, 1000.0)
    assert queue.begin(1, 1000.0) == [again]


def test_what_was_used_long_ago_does_not_count() -> None:
    queue = AnswerQueue()
    queue.enter("busy", 0.0)
    (ticket,) = queue.begin(1, 0.0)
    queue.leave(ticket, 3600.0)
    later = 3600.0 + 60 * HALF_LIFE_SECONDS
    first, second = queue.enter("busy", later), queue.enter("new", later)
    assert queue.place(first, later) == 1
    queue.enter("another", later)  # who is new makes room: use of a nanosecond is forgotten
    assert queue.begin(1, later) == [second]


def test_more_slots_let_more_begin_and_fewer_end_none() -> None:
    queue = AnswerQueue()
    tickets = [queue.enter("a", 0.0) for _ in range(5)]
    assert queue.begin(3, 0.0) == tickets[:3]
    assert queue.begin(1, 0.0) == []
    queue.leave(tickets[0], 1.0)
    assert queue.begin(1, 1.0) == []
    assert queue.begin(4, 1.0) == tickets[3:5]


def test_use_of_many_users_who_are_gone_is_bounded() -> None:
    queue, most = AnswerQueue(), API_USERS_KNOWN.most

    def memory_after(first: int, last: int) -> int:
        for number in range(first, last):
            queue.enter(number, float(number))
            (ticket,) = queue.begin(1, float(number))
            queue.leave(ticket, number + 0.9)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = memory_after(0, most)
        assert memory_after(most, 4 * most) < 2 * few
    finally:
        tracemalloc.stop()


USERS = st.sampled_from("abcd")


class Machine(RuleBasedStateMachine):
    """Any order of requests, turns, ends and clients that hang up; the model is lists of tickets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AnswerQueue()
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []
        self.now = 0.0

    @rule(seconds=st.floats(0.001, 1000.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(user=USERS)
    def a_request_comes(self, user: str) -> None:
        self.waiting.append(self.queue.enter(user, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), computes=st.booleans())
    def one_waits_for_its_model(self, data: st.DataObject, computes: bool) -> None:
        self.queue.compute(data.draw(st.sampled_from(self.running)), computes, self.now)

    @rule(slots=st.integers(0, 5))
    def turns_come(self, slots: int) -> None:
        expected = sorted(self.waiting, key=lambda ticket: self.queue.place(ticket, self.now))
        begun = self.queue.begin(slots, self.now)
        assert begun == expected[: max(0, min(len(expected), slots - len(self.running)))]
        for ticket in begun:
            self._check_is_fair(ticket)
            self.waiting.remove(ticket)
            self.running.append(ticket)

    def _check_is_fair(self, ticket: Ticket) -> None:
        busy = Counter(one.user for one in self.running)
        assert all(busy[ticket.user] <= busy[other.user] for other in self.waiting), "another has fewer"
        own = [other.number for other in self.waiting if other.user == ticket.user]
        assert ticket.number == min(own), "not the oldest of its user"

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting + self.running))
        self.queue.leave(ticket, self.now)
        (self.waiting if ticket in self.waiting else self.running).remove(ticket)

    @invariant()
    def the_numbers_are_right(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        assert self.queue.running == len(self.running)
        places = sorted(self.queue.place(ticket, self.now) for ticket in self.waiting)
        assert places == list(range(len(self.waiting)))


TestMachine = Machine.TestCase


@given(
    others=st.lists(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=4), min_size=1, max_size=5),
    used=st.lists(st.floats(0.1, 20.0), max_size=6),
    arrival=st.floats(0.0, 100.0),
)
def test_nobody_starves(others: list[list[float]], used: list[float], arrival: float) -> None:
    """One answer at a time; each of the others always has requests waiting, with answers as long as listed.

    Whoever has had none lately waits for the answer under way and one of each of the others; who has had
    `use` seconds waits at most so much longer for each of them.
    """
    queue, now = AnswerQueue(), 0.0
    for seconds in used:
        ticket = queue.enter("me", now)
        assert queue.begin(1, now) == [ticket]
        now += seconds
        queue.leave(ticket, now)
    use = min(sum(used), USE_BOUND_SECONDS)
    lengths = [itertools.cycle(each) for each in others]
    for number in range(len(others)):
        for _ in range(3):
            queue.enter(str(number), now)
    mine, asked, longest = None, 0.0, max(map(max, others))
    while True:
        (ticket,) = queue.begin(1, now)
        if ticket is mine:
            break
        end = now + next(lengths[int(str(ticket.user))])
        if mine is None and end >= arrival:
            asked = max(now, arrival)
            mine = queue.enter("me", asked)
        now = end
        queue.leave(ticket, now)
        queue.enter(str(ticket.user), now)
    assert now - asked <= longest + len(others) * (use + longest) + 1e-6


async def wait_behind_another(*, loads: tuple[float, float], ends: float | None) -> float:
    """Seconds until the turn of a request comes, which waits for one that ends at `ends`; the model is loaded
    between the times `loads`. Raises HttpRefusal."""
    loop = asyncio.get_running_loop()
    began, upstream = loop.time(), FakeUpstream(Path("/nowhere"), slots=1)
    for at, state in zip(loads, (ModelState.LOADING, ModelState.READY), strict=True):
        loop.call_at(began + at, setattr, upstream, "readiness", Readiness(state, ""))
    turns = Turns(upstream)

    async def first() -> None:
        with turns.enter("a"):
            await asyncio.sleep(TURN_SECONDS * 100 if ends is None else ends)

    task = asyncio.ensure_future(first())
    await asyncio.sleep(0)
    try:
        with turns.enter("b") as turn:
            assert (turns.running, turns.waiting) == (1, 1)
            await turn.come()
            return loop.time() - began
    except HttpRefusal as refusal:
        assert (refusal.failure.status, refusal.failure.code) == (503, "queue_timeout")
        assert refusal.failure.retry_after is not None
        assert "1 request under way, 1 request waiting" in refusal.failure.message
        refusal.add_note(str(loop.time() - began))
        raise
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("loads", "ends"), [((0.0, 0.0), 599.0), ((0.0, 3600.0), 4190.0), ((500.0, 3600.0), 3690.0)]
)
def test_a_load_takes_nothing_of_the_time(loads: tuple[float, float], ends: float) -> None:
    assert run(wait_behind_another(loads=loads, ends=ends)) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("loads", "late"), [((0.0, 0.0), 600), ((0.0, 3600.0), 4200), ((500.0, 3600.0), 3700)]
)
def test_the_time_of_other_answers_counts(loads: tuple[float, float], late: float) -> None:
    with pytest.raises(HttpRefusal) as caught:
        run(wait_behind_another(loads=loads, ends=None))
    assert float(caught.value.__notes__[0]) == pytest.approx(late, abs=1.5)


@pytest.mark.virtual
async def test_no_turn_begins_while_they_are_held_and_nobody_is_refused_for_that() -> None:
    upstream = FakeUpstream(Path("/nowhere"), slots=2, holds_turns="worker two is paused")
    turns = Turns(upstream)
    others = ExitStack()
    first, second = (others.enter_context(turns.enter(user)) for user in "ab")
    with others, turns.enter("c") as third:
        places = [turn.notice(0.0) for turn in (first, second, third)]
        assert places == [
            f"waiting for a turn: {place}; worker two is paused"
            for place in ("next", "1 before this one", "2 before this one")
        ]
        assert (turns.running, upstream.waiting) == (0, 3)
        come = asyncio.ensure_future(third.come())
        await asyncio.sleep(2 * TURN_SECONDS)
        upstream.holds_turns = ""
        await first.come()
        await second.come()
        assert (turns.running, upstream.waiting, come.done()) == (2, 1, False)
        others.close()
        await come
    assert (turns.running, upstream.waiting) == (0, 0)


NOON = 20000 * DAY_SECONDS + DAY_SECONDS / 2


def quota(**limits: int) -> Account:
    return Account(ApiKey("sk-12345678", "anna", KeyLimits(**limits)), 0.0)


def test_without_limits_everything_is_let_in() -> None:
    one = quota()
    one.add_tokens(10**12, NOON)
    assert all(one.begin(0.0, NOON) is None for _ in range(1000))


def test_requests_at_a_time() -> None:
    one = quota(concurrent=2)
    assert one.begin(0.0, NOON) is None and one.begin(0.0, NOON) is None
    excess = one.begin(0.0, NOON)
    assert excess is not None and excess.code == "rate_limit_exceeded"
    assert excess.message == "2 requests of the key `anna` are already in progress"
    one.end()
    assert one.begin(0.0, NOON) is None
    single = quota(concurrent=1)
    single.begin(0.0, NOON)
    excess = single.begin(0.0, NOON)
    assert excess is not None
    assert excess.message == "1 request of the key `anna` is already in progress"


def test_one_that_comes_too_soon_is_told_when_the_next_may_come() -> None:
    one = quota(requests_per_minute=2)
    told = [excess for _ in range(3) if (excess := one.begin(0.0, NOON)) is not None]
    assert [excess.retry_after for excess in told] == [30]
    assert told[0].message == "more than 2 requests per minute of the key `anna`: the next one in 30 s"


def test_each_answer_of_a_request_counts_and_the_next_request_waits_for_them() -> None:
    one = quota(requests_per_minute=60)
    assert one.begin(0.0, NOON) is None
    one.add_answers(100, 0.0)
    excess = one.begin(0.0, NOON)
    assert excess is not None and excess.retry_after == 41
    assert one.begin(40.0, NOON) is not None
    assert one.begin(41.0, NOON) is None
    without = quota()
    without.add_answers(10**6, 0.0)
    assert without.begin(0.0, NOON) is None


@given(st.integers(1, 600), st.lists(st.tuples(st.floats(0.0, 60.0), st.integers(1, 100)), max_size=40))
def test_answers_a_minute(most: int, asked: list[tuple[float, int]]) -> None:
    """One request may have any number; in the long run there are no more than the limit."""
    one, now, answers = quota(requests_per_minute=most), 0.0, 0
    for pause, count in asked:
        now += pause
        if one.begin(now, NOON) is None:
            assert answers <= most + now * most / 60 + 1
            one.add_answers(count, now)
            answers += count


def test_tokens_a_day_end_at_midnight() -> None:
    one = quota(tokens_per_day=100)
    one.add_tokens(99, NOON)
    assert one.begin(0.0, NOON) is None
    one.add_tokens(50, NOON)  # an answer that has begun is finished
    excess = one.begin(0.0, NOON)
    assert excess is not None and excess.code == "insufficient_quota"
    assert excess.retry_after == DAY_SECONDS / 2
    assert excess.message == "the key `anna` has used up its 100 tokens per day: more in 12 h"
    assert one.begin(0.0, NOON + excess.retry_after) is None
    assert one.tokens_today(NOON + excess.retry_after) == 0


@example(1, [0.0, 8.99, 0.0])
@example(1, [4.9655, 0.0])
@given(st.integers(1, 600), st.lists(st.floats(0.0, 30.0), max_size=80))
def test_requests_a_minute(most: int, pauses: list[float]) -> None:
    """At most twice the limit in any minute, as what was saved up may be used at once; and whoever waits as
    long as he was told is let in."""
    one, now = quota(requests_per_minute=most), 0.0
    let_in: list[float] = []
    for pause in pauses:
        now += pause
        excess = one.begin(now, NOON)
        if excess is not None:
            assert excess.code == "rate_limit_exceeded"
            now += excess.retry_after or 0
            assert one.begin(now, NOON) is None
        let_in.append(now)
        assert sum(now - 60 <= at for at in let_in) <= 2 * most + 1


@pytest.mark.parametrize("limits", [{"concurrent": 1}, {"requests_per_minute": 1}])
def test_a_refused_request_does_not_count(limits: dict[str, int]) -> None:
    one = quota(**limits)
    assert one.begin(0.0, NOON) is None
    for _ in range(5):
        assert one.begin(0.0, NOON) is not None
    assert one.active == 1
    one.end()
    assert one.begin(60.0, NOON) is None


ANSWER = LoggedAnswer(
    time="2026-11-23T16:35:00.123Z",
    key="anna",
    model="tiny",
    path="/v1/chat/completions",
    prompt_tokens=12,
    cached_tokens=7,
    generated_tokens=9,
    waited_s=0.25,
    computed_s=1.5,
    status=200,
)
DAY = "2026-11-23"


def test_times_are_utc() -> None:
    assert utc_text(1795451700.1234) == "2026-11-23T16:35:00.123Z"


def test_a_line_is_one_object_and_the_file_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "answers.jsonl"
    log = AnswerLog(path)
    log.write(ANSWER)
    log.write(replace(ANSWER, key=None, prompt_tokens=None))
    log.close()
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert LoggedAnswer(**first) == ANSWER
    assert second["key"] is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_two_files_of_bounded_size_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    log = AnswerLog(path, most=1000)
    for _ in range(50):
        log.write(ANSWER)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2000
    log.close()
    assert {file.name for file in tmp_path.iterdir()} == {"answers.jsonl", "answers.jsonl.1"}


def test_tokens_of_a_day_are_counted_over_both_files(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "answers.jsonl", most=600)
    for answer in (
        replace(ANSWER, time="2026-11-22T23:59:59.999Z"),
        ANSWER,
        replace(ANSWER, key="bob", prompt_tokens=None),
        replace(ANSWER, key=None),
    ):
        log.write(answer)
    assert (tmp_path / "answers.jsonl.1").exists()
    assert log.tokens_by_key(DAY) == {"anna": 21, "bob": 9}
    log.close()


def test_lines_that_a_disk_did_not_take_are_counted(tmp_path: Path) -> None:
    told = io.StringIO()
    logging.set_up(level="warning", stream=told)
    folder = tmp_path / "logs"
    folder.write_text("a file in its place")
    log = AnswerLog(folder / "answers.jsonl")
    try:
        log.write(ANSWER)
        log.write(ANSWER)
        assert told.getvalue().count("answer_log_lost") == 1
        folder.unlink()
        log.write(ANSWER)
    finally:
        logging.set_up(level="warning")
        log.close()
    assert "answer_log_back" in told.getvalue() and "count=2" in told.getvalue()


async def test_a_restart_does_not_give_the_tokens_of_the_day_anew(tmp_path: Path) -> None:
    path, limits = tmp_path / "answers.jsonl", KeyLimits(tokens_per_day=21)
    log = AnswerLog(path)
    log.write(ANSWER)
    log.close()
    anna, bob = ApiKey("sk-anna-0123456789", "anna", limits), ApiKey("sk-bob-0123456789", "bob", limits)
    for day in (23, 24):
        now = datetime(2026, 11, day, 20, tzinfo=UTC).timestamp()
        log, metrics = AnswerLog(path), GatewayMetrics()
        accounts = Accounts((anna, bob), log=log, wall=lambda now=now: now, metrics=metrics)  # type: ignore[misc]
        await accounts.open()
        with accounts.request(key_digest(bob.secret)):
            pass
        if day == 23:
            with pytest.raises(HttpRefusal) as refused, accounts.request(key_digest(anna.secret)):
                pass
            assert refused.value.failure.code == "insufficient_quota"
        else:
            with accounts.request(key_digest(anna.secret)):
                pass
        accounts.close()


def test_without_files_nothing_was_used(tmp_path: Path) -> None:
    assert AnswerLog(tmp_path / "answers.jsonl").tokens_by_key(DAY) == {}


def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot read the request log"):
        AnswerLog(tmp_path / "answers.jsonl").tokens_by_key(DAY)


@given(st.binary())
def test_any_file_can_be_read(junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.jsonl"
        path.write_bytes(
            junk + b'\n{"time": "2026-11-23' + junk + b"\n" + json.dumps(asdict(ANSWER)).encode()
        )
        assert AnswerLog(path).tokens_by_key(DAY)["anna"] == 21


SECRET = "sk-anna-0123456789"
FIGURES = b'{"usage": {"prompt_tokens": 12, "completion_tokens": 9, "cached_tokens": 7}}'


def met(**more: object) -> AnswerMeter:
    """The figures of an answer."""
    meter = AnswerMeter(status=200, **more)  # type: ignore[arg-type]  # fields of it
    meter.see(FIGURES)
    return meter


@pytest.mark.virtual
@pytest.mark.parametrize("keys", [True, False])
async def test_an_answer_is_charged_logged_and_measured_when_it_ends(tmp_path: Path, keys: bool) -> None:
    path, metrics = tmp_path / "answers.jsonl", GatewayMetrics()
    of_keys = (ApiKey(SECRET, "anna"), ApiKey("sk-bob-0123456789", "bob")) if keys else ()
    log = AnswerLog(path)
    accounts = Accounts(of_keys, log=log, wall=lambda: NOON, metrics=metrics)
    key = key_digest(SECRET) if keys else b""
    now = asyncio.get_running_loop().time
    turns, meter = Turns(FakeUpstream(Path("/s"), slots=1)), met(came=now() - 1, turn=0.0)
    with turns.enter("other") as other, turns.enter(key) as turn:
        await asyncio.sleep(0.25)
        assert (other.waited, other.computed, turn.waited, turn.computed) == (0, 0.25, 0.25, 0)
    with turns.enter(key) as turn, accounts.request(key):
        with accounts.counted_answer(key, "tiny", "/v1/messages", meter, turn):
            await asyncio.sleep(2)
            meter.first, meter.losses = now(), 3
            await asyncio.sleep(1.5)
        assert not keys or [(used.name, used.active) for used in accounts.status] == [("anna", 1), ("bob", 0)]
    accounts.close()
    [line] = path.read_text().splitlines()
    assert json.loads(line) == asdict(
        LoggedAnswer(
            time=utc_text(NOON),
            key="anna" if keys else None,
            model="tiny",
            path="/v1/messages",
            prompt_tokens=12,
            cached_tokens=7,
            generated_tokens=9,
            waited_s=0.0,
            computed_s=3.5,
            status=200,
        )
    )
    if keys:
        anna, bob = accounts.status
        assert (anna.answers, anna.prompt_tokens, anna.generated_tokens, anna.tokens_today) == (1, 12, 9, 21)
        assert (anna.active, bob.answers, bob.tokens_today) == (0, 0, 0)
    else:
        assert accounts.status == ()
    found = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
    assert found["meshd_time_to_first_token_seconds_sum"] == 3.25
    assert (found["meshd_prompt_tokens_total"], found["meshd_cached_prompt_tokens_total"]) == (12, 7)
    assert found["meshd_answer_losses_total"] == 3 and found["meshd_request_queue_seconds_count"] == 1


def observed(meter: AnswerMeter, *, has_turn: bool = True) -> dict[str, float]:
    """What is measured of an answer that ends at once."""

    async def main() -> dict[str, float]:
        metrics = GatewayMetrics()
        accounts = Accounts((), log=None, wall=lambda: NOON, metrics=metrics)
        with (
            Turns().enter("a") as turn,
            accounts.counted_answer(b"", "tiny", "/", meter, turn if has_turn else None),
        ):
            pass
        return {sample.name: sample.value for family in metrics.collect() for sample in family.samples}

    return run(main())


@pytest.mark.parametrize(("tokens", "each"), [(1, None), (2, 0.4), (5, 0.1)])
def test_the_time_of_a_token_leaves_out_the_first(tokens: int, each: float | None) -> None:
    timings = AnswerTimings(3, 0.2, tokens, 0.4)
    found = observed(AnswerMeter(timings=timings))
    assert found.get("meshd_time_per_output_token_seconds_sum") == each
    assert found["meshd_prompt_seconds_total"] == 0.2 and found["meshd_generated_seconds_total"] == 0.4


@pytest.mark.parametrize(
    ("turn", "has_turn", "count"), [(1.0, True, 1), (None, True, None), (1.0, False, None)]
)
def test_the_wait_is_that_of_answers_whose_turn_came_here(
    turn: float | None, has_turn: bool, count: int | None
) -> None:
    found = observed(AnswerMeter(turn=turn), has_turn=has_turn)
    assert found.get("meshd_request_queue_seconds_count") == count


@pytest.mark.parametrize(
    ("error", "status"), [(HttpRefusal(Failure(418, "no")), 418), (asyncio.CancelledError(), CLIENT_GONE)]
)
@pytest.mark.virtual
async def test_the_status_of_an_answer_that_fails_is_logged(
    tmp_path: Path, error: BaseException, status: int
) -> None:
    log = AnswerLog(tmp_path / "answers.jsonl")
    accounts = Accounts((), log=log, wall=lambda: NOON, metrics=GatewayMetrics())
    meter = AnswerMeter(asked=b'{"prompt": "hello there"}')
    with pytest.raises(type(error)):
        with Turns().enter("a") as turn, accounts.counted_answer(b"", "tiny", "/", meter, turn):
            raise error
    accounts.close()
    line = json.loads((tmp_path / "answers.jsonl").read_text())
    assert line["status"] == status and line["generated_tokens"] == 0
    assert line["prompt_estimated"] is (status == CLIENT_GONE), "llama-server may have computed it"
    assert (line["prompt_tokens"] is not None) is (status == CLIENT_GONE)


@pytest.mark.virtual
async def test_the_tokens_of_a_day_are_checked_between_answers() -> None:
    accounts = Accounts(
        (ApiKey(SECRET, "anna", KeyLimits(tokens_per_day=21)),),
        log=None,
        wall=lambda: NOON,
        metrics=GatewayMetrics(),
    )
    key = key_digest(SECRET)
    accounts.check_tokens(key)
    with accounts.counted_answer(key, "tiny", "/", met()):
        accounts.check_tokens(key)
    with pytest.raises(HttpRefusal) as refused:
        accounts.check_tokens(key)
    assert refused.value.failure.code == "insufficient_quota"
