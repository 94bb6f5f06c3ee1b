"""Compare greedy answers whose sums were added in another order: alike but where two tokens are as likely."""

from collections.abc import Mapping, Sequence
from typing import Any

Tokens = Sequence[Mapping[str, Any]]
"""Of llama-server's `completion_probabilities`, asked for with WANTED: each token, and the two best there."""
WANTED = {"n_probs": 2}
# By tensors, logprobs of SmolLM2 (Q4_1) were up to 0.19 from one process (docs/decisions/0092):
# 8-bit rounding that another order of adding tips over, as it does with `-fa off` (up to 0.13).
NEAR = 0.2
# Answers of 24 tokens that leave did so with the 15th; those that leave sooner were hardly compared.
LEAST = 12


def check_near(one: Tokens, other: Tokens, *, near: float = NEAR, least: int = LEAST) -> None:
    """Raise AssertionError if more differs than rounding explains, or fewer than `least` tokens are the same.

    What follows a token that is another one cannot be compared: the text before is another one.
    """
    assert len(one) == len(other)
    for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if mine["id"] != theirs["id"]:
            first, second = theirs["top_logprobs"][:2]
            assert first["logprob"] - second["logprob"] < near, f"token {number} is another one"
            assert number >= least, f"only {number} tokens are the same"
            return
        assert abs(mine["logprob"] - theirs["logprob"]) < near, f"token {number}"
    assert len(one) >= least
