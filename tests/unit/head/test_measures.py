"""Test what is measured of a run: speed, the bytes of a token, busy times, and the spans that count."""

import pytest
from meshd.gateway.interface import AnswerTimings
from meshd.head.measures import (
    BUSY_SECONDS,
    FIRST_TOKENS,
    SAMPLE_TOKENS,
    AwayTimes,
    BusySpan,
    BusyTimes,
    MeasuredSpeed,
    RunningAnswer,
    TimedAnswers,
    TokenCost,
    choose_rounds,
    choose_spans,
)
from meshd.model.status import Speeds
from meshd.model.time_account import TokenRounds
from meshd.rpc import mesh_protocol as wire


def test_nothing_is_known_before_the_first_answer() -> None:
    assert MeasuredSpeed().speeds is None


def test_prompts_and_generated_tokens_count_by_themselves() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(100, 2.0, 3, 9.0))
    assert speed.speeds == Speeds(50.0, None), "three tokens measure a start"
    speed.answered(AnswerTimings(5, 9.0, 20, 4.0))
    assert speed.speeds == Speeds(50.0, 5.0), "a short prompt measures a start"


def test_the_rate_without_drafts_is_that_of_answers_in_which_nothing_was_drafted() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(0, 0.0, 20, 1.0, 8, 8))
    assert (speed.undrafted_tok_s, speed.undrafted_answers) == (None, 0)
    speed.answered(AnswerTimings(0, 0.0, 20, 4.0))
    assert (speed.undrafted_tok_s, speed.undrafted_answers) == (5.0, 1)
    assert speed.speeds == Speeds(None, 8.0)


def test_longer_answers_count_more() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(0, 0.0, 10, 10.0))
    speed.answered(AnswerTimings(0, 0.0, 90, 9.0))
    assert speed.speeds == Speeds(None, round(100 / 19, 2))


def test_what_was_long_ago_fades() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(0, 0.0, 10_000, 10_000.0))
    for _ in range(60):
        speed.answered(AnswerTimings(0, 0.0, 1000, 100.0))
    assert speed.speeds is not None and (speed.speeds.generate_tok_s or 0) == pytest.approx(10.0, rel=0.05)


def test_an_answer_that_took_no_time_is_no_rate() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(100, 0.0, 100, 0.0))
    assert speed.speeds is None


PROMPT, TOKEN = 50_000, 700


class Line:
    """A head's links: each answer costs its prompt once, and each token the same."""

    def __init__(self) -> None:
        self.crossed = 1234
        self.looks = 0
        self.cost = TokenCost(self._look)

    def _look(self) -> int:
        self.looks += 1
        return self.crossed

    def answer(self, tokens: int, *, alone: bool = True, step: int = 1) -> None:
        self.crossed += PROMPT
        for total in range(step, tokens + 1, step):
            self.crossed += TOKEN * step
            self.cost.generated(total, alone=alone)


def test_nothing_is_known_before_an_answer() -> None:
    assert TokenCost(lambda: 7).bytes_per_token is None


def test_a_token_costs_what_it_costs_whatever_the_prompt() -> None:
    line = Line()
    line.answer(40)
    assert line.cost.bytes_per_token == TOKEN
    line.answer(25, step=2)
    assert line.cost.bytes_per_token == TOKEN
    assert line.looks <= (40 + 25) / SAMPLE_TOKENS + 2


def test_a_short_answer_tells_nothing() -> None:
    line = Line()
    for _ in range(9):
        line.answer(FIRST_TOKENS + SAMPLE_TOKENS - 1)
    assert line.cost.bytes_per_token is None


def test_answers_at_the_same_time_tell_nothing_nor_does_what_was_before() -> None:
    line = Line()
    line.answer(20, alone=False)
    assert line.cost.bytes_per_token is None
    line.cost.generated(FIRST_TOKENS, alone=True)
    line.crossed += PROMPT  # of another answer, which begins now
    line.cost.generated(FIRST_TOKENS + 1, alone=False)
    line.cost.generated(FIRST_TOKENS + SAMPLE_TOKENS, alone=True)
    assert line.cost.bytes_per_token is None


def test_tokens_of_all_answers_count_and_those_of_the_first_moment_came_before() -> None:
    it = BusyTimes()
    it.requested(3)
    assert it.span is None
    it.generated(2, 10.0)
    assert it.span is None, "there is no time yet in which they came"
    it.generated(1, 10.5)
    it.generated(3, 11.0)
    assert it.span == BusySpan(10.0, 11.0, 4, 0)


def test_what_came_before_a_time_without_requests_is_another_time() -> None:
    it = BusyTimes()
    for begin in (10.0, 50.0):
        it.requested(2)
        it.generated(1, begin)
        it.requested(1)
        it.generated(1, begin + 1)
        it.requested(0)
        assert it.span == BusySpan(begin, begin + 1, 1, 0), "it is remembered until the next one"


def test_the_newest_part_of_a_long_time_is_looked_at() -> None:
    it = BusyTimes()
    for second in range(100):
        it.generated(5, float(second))
    assert it.span == BusySpan(99 - BUSY_SECONDS, 99.0, 5 * int(BUSY_SECONDS), 0)


def test_prompts_and_drafts_pass_the_devices_too() -> None:
    it = BusyTimes()
    it.generated(1, 1.0)
    it.answered(AnswerTimings(100, 0.5, 21, 0.9, drafted=30, accepted=10), 2.0)
    it.answered(AnswerTimings(700, 0.5, 21, BUSY_SECONDS + 1), 2.5)
    it.generated(20, 3.0)
    assert it.span == BusySpan(1.0, 3.0, 20, 120), "the other prompt was computed long before"


class Clock:
    """Moved by tests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = AwayTimes(lambda: self.now)

    def at(self, now: float, *numbers: int) -> None:
        self.now = now
        for number in numbers:
            self.away.seen(number)


def test_from_the_first_request_of_a_step_to_its_last_result() -> None:
    it = Clock()
    it.at(1.0, wire.WRITE, wire.COMPUTE)
    it.at(1.1, wire.COMPUTE, wire.READ, wire.READ)
    it.at(1.5, wire.DATA)
    it.at(2.0, wire.DATA, wire.DATA)
    assert it.away.away(0, 10) == pytest.approx(1.0)
    assert it.away.away(1.25, 1.5) == pytest.approx(0.25)


def test_between_two_steps_it_is_not_away() -> None:
    it = Clock()
    for begin in (0.0, 1.0, 2.0):
        it.at(begin, wire.COMPUTE, wire.READ)
        it.at(begin + 0.25, wire.DATA)
    assert it.away.away(0, 10) == pytest.approx(0.75)


def test_steps_are_counted_by_their_ends() -> None:
    it = Clock()
    for begin in (0.0, 1.0, 2.0):
        it.at(begin, wire.COMPUTE, wire.READ)
        it.at(begin + 0.25, wire.DATA)
    assert [it.away.steps(*span) for span in ((0.0, 10.0), (0.25, 2.25), (0.3, 2.2))] == [3, 2, 1]


def test_bytes_of_several_tunnels_are_held_once() -> None:
    it = Clock()
    it.at(1.0)
    it.away.peer_waits(True)
    it.at(1.5)
    it.away.peer_waits(True)
    it.at(2.0)
    it.away.peer_waits(False)
    it.at(3.0)
    it.away.peer_waits(False)
    it.away.target_waits(True)
    assert it.away.held(0, 10) == pytest.approx(2.0) and it.away.away(0, 10) == 0


TIMINGS = AnswerTimings(100, 0.5, 21, 2.0)


def log(*answers: tuple[float, bool]) -> TimedAnswers:
    """Answers that ended then, alone or not; each a second in the queue."""
    found = TimedAnswers()
    for ended, alone in answers:
        found.answered(TIMINGS, ended, alone=alone, seconds=3.5)
    return found


def test_an_answer_is_a_queue_a_prompt_and_what_was_generated() -> None:
    [one] = log((10.0, True)).answers
    assert (one.queue, one.first_token) == (1.0, 8.0)
    spans = choose_spans(log((10.0, True)))
    assert (spans.token, spans.made) == ((8.0, 10.0), TokenRounds(20, 20, 20))
    assert (spans.prompt, spans.prompt_tokens, spans.queue) == ((7.5, 8.0), 100, 1.0)


def test_the_last_one_that_was_alone_is_looked_at() -> None:
    spans = choose_spans(log((10.0, True), (20.0, True), (30.0, False)))
    assert spans.token == (18.0, 20.0)
    none = choose_spans(log((30.0, False)))
    assert none.token is None and none.prompt is None


def test_one_that_runs_goes_before_those_that_ended() -> None:
    it = log((10.0, True))
    it.requested(1)
    for number in range(1, 10):
        assert choose_spans(it).token == (8.0, 10.0), "too few tokens"
        it.generated(number, 1, 20.0 + number, alone=True)
    assert it.running == RunningAnswer(21.0, 29.0, 9)
    spans = choose_spans(it)
    assert (spans.token, spans.made) == ((21.0, 29.0), TokenRounds(8, 8, 8))
    assert spans.prompt == (7.5, 8.0), "nothing is known of its own yet"


def test_one_that_is_not_alone_any_more_is_not_divided() -> None:
    it = log()
    it.generated(20, 1, 1.0, alone=True)
    it.requested(2)
    assert it.running is None and it.active == 2
    it.generated(30, 1, 2.0, alone=True)
    it.generated(31, 1, 3.0, alone=False)
    assert it.running is None


def test_another_answer_begins_anew() -> None:
    it = log()
    it.generated(20, 1, 1.0, alone=True)
    it.generated(1, 1, 5.0, alone=True)
    assert it.running == RunningAnswer(5.0, 5.0, 1)


def test_of_a_long_answer_the_end_is_looked_at() -> None:
    it = TimedAnswers()
    it.answered(AnswerTimings(1, 0.0, 8001, 80.0), 100.0, alone=True, seconds=80.0)
    spans = choose_spans(it)
    assert (spans.token, spans.made) == ((60.0, 100.0), TokenRounds(4000, 4000, 4000))


def test_drafts_that_are_accepted_make_rounds_of_several_tokens() -> None:
    it = TimedAnswers()
    it.answered(AnswerTimings(100, 0.5, 101, 2.0, drafted=90, accepted=75), 10.0, alone=True, seconds=3.0)
    assert choose_spans(it).made == TokenRounds(tokens=100, rounds=25, computed=115)
    it.answered(AnswerTimings(1, 0.0, 8001, 80.0, 4000, 4000), 100.0, alone=True, seconds=80.0)
    assert choose_spans(it).made == TokenRounds(4000, 2000, 4000)
    it.answered(AnswerTimings(1, 0.0, 3, 0.1, 9, 9), 101.0, alone=True, seconds=0.1)
    assert choose_spans(it).made == TokenRounds(2, 1, 10), "whatever llama-server says"


def test_with_drafts_only_whole_answers_are_divided() -> None:
    """Nobody says in how many rounds the tokens of one that runs came."""
    it = log((10.0, True))
    it.generated(1, 1, 20.0, alone=True)
    it.generated(30, 1, 21.0, alone=True)
    assert choose_spans(it).token == (20.0, 21.0)
    assert choose_spans(it, drafts=True).token == (8.0, 10.0)


class Steps(AwayTimes):
    """Llama-server waits once a second, for half of it."""

    def __init__(self, count: int) -> None:
        self.clock = 0.0
        super().__init__(lambda: self.clock)
        for second in range(count):
            self.clock = second + 0.25
            self.seen(wire.COMPUTE)
            self.seen(wire.READ)
            self.clock = second + 0.75
            self.seen(wire.DATA)


def test_of_several_answers_at_once_the_rounds_are_looked_at() -> None:
    it = log((1.0, True))
    it.requested(3)
    for second in range(2, 22):
        for _ in range(3):
            it.generated(second, 1, float(second), alone=False)
    spans = choose_spans(it)
    assert spans.token == (-1.0, 1.0), "the last one that was alone"
    found = choose_rounds(it, Steps(40), spans.token)
    assert (found.span, found.made) == ((2.0, 21.0), TokenRounds(57, 19, 57)) and not found.why_not


def test_one_that_runs_with_drafts_is_divided_by_rounds() -> None:
    it = log()
    for second in range(2, 22):
        it.generated(4 * second, 4, float(second), alone=True)
    assert choose_spans(it, drafts=True).token is None
    assert choose_rounds(it, Steps(40), None).made == TokenRounds(76, 19, 76)
    without = choose_rounds(it, Steps(40), choose_spans(it).token)
    assert without.span is None and "of the same time" in without.why_not


def test_why_there_are_no_rounds() -> None:
    it = log((1.0, False))
    assert "no answer was streamed" in choose_rounds(it, Steps(40), None).why_not
    for second in range(2, 9):
        it.generated(second, 1, float(second), alone=False)
    assert choose_rounds(it, Steps(40), None).why_not == "of 6 rounds no mean is worth anything"
    assert "this node alone" in choose_rounds(it, Steps(0), None).why_not


def test_so_many_are_kept() -> None:
    assert [one.ended for one in log(*((float(n), True) for n in range(40))).answers] == list(range(24, 40))
