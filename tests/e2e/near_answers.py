"""Compare greedy answers whose sums were added in another order: alike but where two tokens are as likely."""

from collections.abc import Mapping, Sequence
from typing import Any

Tokens = Sequence[Mapping[str, Any]]
"""Of llama-server's `completion_probabilities`, asked for with WANTED: each token, and the two best there."""
WANTED = {"n_probs": 2}
# Another order of adding moves logprobs as much as `-fa on` against `-fa off` in one process: by up to 0.16
# with SmolLM2 (docs/decisions/0092-tensor-split.md).
NEAR = 0.3


def check_near(one: Tokens, other: Tokens, *, near: float = NEAR) -> int:
    """Return how many tokens are the same. Raises AssertionError if more differs than rounding explains."""
    assert len(one) == len(other)
    for number, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        first, second = theirs["top_logprobs"][:2]
        if mine["id"] != theirs["id"]:
            assert first["logprob"] - second["logprob"] < near
            return number
        assert abs(mine["logprob"] - theirs["logprob"]) < near
    return len(one)
