"""Compute how many tokens to draft, from the cost of a round with drafts and the tokens that it makes.

A round computes the last token and `length` drafted ones at once, and produces the accepted ones and one
more. With the share `a` of drafted tokens that are accepted if all before them were:

    tokens  = 1 + a + a^2 + ... + a^length = (1 - a^(length + 1)) / (1 - a)
    seconds = round + base + length x token  round: of one token; token: drafting and checking one more
    gain    = tokens x round / seconds       against a round for each token

`base` is the fixed cost of a round that drafts: a draft model also computes each token that was made.

The text decides `a`, but a length is for all texts. So a length is safe if text of which little is accepted,
such as sampled prose, is not slowed down by more than 5 %.
"""

from collections.abc import Callable
from dataclasses import dataclass

MOST_FREE = 24  # tokens found in the text: longer drafts would be checked in vain more often
MOST_MODEL = 16  # tokens of a draft model
POOR_ACCEPTANCE = (
    0.4  # sampled prose: 0.55 with the model as its own draft, and a small one is right less often
)
LEAST_POOR_GAIN = 0.95
_STEPS = 40  # halvings of an interval of 1: more than a double can distinguish


@dataclass(frozen=True, slots=True)
class Drafts:
    """The maximum draft lengths of llama-server per round; 0: no drafts of that kind.

    `free`: tokens that followed the same text before. `model`: tokens of a draft model.
    """

    free: int = 0
    model: int = 0

    @property
    def longest(self) -> int:
        """The maximum number of drafted tokens of a round."""
        return max(self.free, self.model)

    @property
    def text(self) -> str:
        """The limits for people."""
        parts = [f"up to {self.model} tokens by the draft model"] if self.model else []
        parts += [f"up to {self.free} repeated ones"] if self.free else []
        return " or ".join(parts) or "none"


def tokens_of_round(acceptance: float, length: int) -> float:
    """Return the mean number of tokens that a round produces."""
    if acceptance >= 1:
        return length + 1.0
    return (1 - acceptance ** (length + 1)) / (1 - acceptance)


def gain(
    round_seconds: float, token_seconds: float, acceptance: float, length: int, base: float = 0.0
) -> float:
    """Return the speed-up by rounds with `length` drafted tokens; 1 without drafts."""
    taken = round_seconds + (base + length * token_seconds if length else 0.0)
    return tokens_of_round(acceptance, length) * round_seconds / taken if taken > 0 else 1.0


def is_safe(round_seconds: float, token_seconds: float, length: int, base: float) -> bool:
    """Say whether drafts of this length slow down no text noticeably."""
    return gain(round_seconds, token_seconds, POOR_ACCEPTANCE, length, base) >= LEAST_POOR_GAIN


def best_length(round_seconds: float, checking: Callable[[int], float], acceptance: float, most: int) -> int:
    """Return the length with the largest gain, 0 if none is above 1.

    `checking`: seconds for a draft's tokens.
    """
    gains = [1.0]
    gains += [gain(round_seconds, 0.0, acceptance, n, checking(n)) for n in range(1, most + 1)]
    return gains.index(max(gains))


def best_safe_length(
    round_seconds: float, token_seconds: float, acceptance: float, most: int, base: float
) -> int:
    """Return the safe length with the largest gain; 0 if none gains."""

    def gain_of(length: int) -> float:
        return gain(round_seconds, token_seconds, acceptance, length, base)

    lengths = [n for n in range(most + 1) if is_safe(round_seconds, token_seconds, n, base)]
    return max(lengths, key=gain_of)


def acceptance_of(accepted: float, length: int) -> float:
    """Return the acceptance, from 0 to 1, that yields so many accepted tokens of drafts of `length`."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if tokens_of_round(middle, length) - 1 < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
