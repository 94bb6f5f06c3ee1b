"""Results go from worker to worker: the text is that of one node, and the head waits once for each token.

Real processes without meshd between them; losses and hostile peers are in test_native_push_failures.py.
"""

from pathlib import Path

import pytest

from tests.e2e.models import smollm2, text_alone
from tests.e2e.push_rig import PEER_DATA, pushing

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build

COPY_TENSOR, GET_TENSOR, RECOMPUTE = 9, 8, 16
ANSWERED = (0, 1, 2, 3, 7, GET_TENSOR, COPY_TENSOR, 11, 13, 15, 65, 66)  # requests with an answer
LONG = "The capital of France is " + ", ".join(f"not the number {number}" for number in range(29))
TOKENS = 24


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_text_is_that_of_one_node_and_the_head_waits_once_a_token(tmp_path: Path, workers: int) -> None:
    few, many = 8, 40
    with pushing(tmp_path, smollm2(), workers) as (head, chain):
        assert head.complete() == text_alone(smollm2())
        waits, pushed = [], []
        for tokens in (few, many):
            before, data = chain.waited(ANSWERED), [side.counts.calls[PEER_DATA] for side in chain.sides]
            head.complete(tokens=tokens)
            waits.append([now - then for now, then in zip(chain.waited(ANSWERED), before, strict=True)])
            pushed.append(
                [side.counts.calls[PEER_DATA] - then for side, then in zip(chain.sides, data, strict=True)]
            )
        assert [more - less for less, more in zip(*waits, strict=True)] == [0] * (workers - 1) + [many - few]
        assert [more - less for less, more in zip(*pushed, strict=True)] == [many - few] * (workers - 1)
