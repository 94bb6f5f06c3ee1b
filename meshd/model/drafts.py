"""How many tokens it pays to draft: what a round with drafts takes, and how many tokens it makes.

A round computes the last token and `length` drafted ones at once, and makes those that are accepted and one
more. With the share `a` of drafted tokens that are accepted where all before them were:

    tokens  = 1 + a + a^2 + ... + a^length = (1 - a^(length + 1)) / (1 - a)
    seconds = round + base + length x token  round: of one token; token: drafting and checking one more
    gain    = tokens x round / seconds       against a round for each token

`base` is what a round takes that drafts at all: a draft model also computes each token that was made.

The text decides `a`, and a length is for all texts. So a length is safe if text of which little is accepted,
as of sampled prose, is not slowed down by more than 5 %.
"""

from collections.abc import Callable
from dataclasses import dataclass

MOST_FREE = 24  # that are found in the text: a longer one would be checked in vain more often
MOST_MODEL = 16  # of a draft model
POOR_ACCEPTANCE = (
    0.4  # sampled prose: 0.55 with the model as its own draft, and a small one is right less often
)
LEAST_POOR_GAIN = 0.95
_STEPS = 40  # halvings of an interval of 1: more than a double tells apart


@dataclass(frozen=True, slots=True)
class Drafts:
    """What llama-server drafts in a round, at most; 0: nothing of that kind.

    `free`: tokens that followed where the text was the same before. `model`: of a draft model.
    """

    free: int = 0
    model: int = 0

    @property
    def longest(self) -> int:
        """Tokens of one round."""
        return max(self.free, self.model)

    @property
    def text(self) -> str:
        """For people."""
        parts = [f"up to {self.model} tokens by the draft model"] if self.model else []
        parts += [f"up to {self.free} repeated ones"] if self.free else []
        return " or ".join(parts) or "none"


def tokens_of_round(acceptance: float, length: int) -> float:
    """On the average."""
    if acceptance >= 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def gain(
    round_seconds: float, token_seconds: float, acceptance: float, length: int, base: float = 0.0
) -> float:
    """How much faster rounds with so many drafted tokens are; 1 without any."""
    taken = round_seconds + (base + length * token_seconds if length else 0.0)
    return tokens_of_round(acceptance, length) * round_seconds / taken if taken > 0 else 1.0


def is_safe(round_seconds: float, token_seconds: float, length: int, base: float) -> bool:
    """Whatever is written."""
    return gain(round_seconds, token_seconds, POOR_ACCEPTANCE, length, base) >= LEAST_POOR_GAIN


def best_length(round_seconds: float, checking: Callable[[int], float], acceptance: float, most: int) -> int:
    """With the largest gain; 0 where none is above 1. `checking`: seconds for so many drafted tokens."""
    gains = [1.0]
    gains += [gain(round_seconds, 0.0, acceptance, n, checking(n)) for n in range(1, most + 1)]
    return gains.index(max(gains))


def best_safe_length(
    round_seconds: float, token_seconds: float, acceptance: float, most: int, base: float
) -> int:
    """With the largest gain of those that are safe; 0 where none gains."""

    def gain_of(length: int) -> float:
        return gain(round_seconds, token_seconds, acceptance, length, base)

    lengths = [n for n in range(most + 1) if is_safe(round_seconds, token_seconds, n, base)]
    return max(lengths, key=gain_of)


def acceptance_of(accepted: float, length: int) -> float:
    """The share that leads to so many accepted tokens of a draft of `length`, from 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if tokens_of_round(middle, length) - 1 < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
