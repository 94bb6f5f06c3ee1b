"""What a token costs is measured on streamed answers, and on nothing else that crosses."""

from meshd.head.measures import FIRST_TOKENS, SAMPLE_TOKENS, TokenCost

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
