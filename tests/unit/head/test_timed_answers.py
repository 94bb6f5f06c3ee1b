"""The last answers, and the one that runs."""

from meshd.gateway.interface import AnswerTimings
from meshd.head.measures import AwayTimes, RunningAnswer, TimedAnswers, choose_rounds, choose_spans
from meshd.model.time_account import TokenRounds
from meshd.rpc import mesh_protocol as wire

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
