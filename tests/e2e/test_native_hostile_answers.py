"""A worker whose answers are wrong: llama-server ends with an error or answers, and never by a signal.

What the head's daemon checks is checked here by the same code (rpc/device_check.py); all else is for
llama-server itself. Wrong numbers in a tensor are not found: what a worker computes only it knows.
"""

import itertools
import random
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER

from tests.e2e.liar import DAMAGES, Liar
from tests.e2e.models import patched, smollm2
from tests.e2e.native_rig import Head, Worker
from tests.hostile.draw import drawn_seed
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

ANSWERS = 12  # a load has seven, and each token one
DRAWN = counts(16, ANSWERS * len(DAMAGES))
# each was found to end llama-server, or is the only one of its kind
ALWAYS = [(1, "random", 1), (1, "flipped", 1), (0, "says it is huge", 1), (9, "says it is large", 1)]


def test_wrong_answers_end_no_llama_server(tmp_path: Path) -> None:
    binaries = patched().binaries
    rng = random.Random(drawn_seed())
    drawn = rng.sample(list(itertools.product(range(ANSWERS), DAMAGES)), DRAWN)
    for number, name, seed in [*ALWAYS, *((number, name, rng.randrange(1 << 30)) for number, name in drawn)]:
        print(f"answer {number}, {name}, seed {seed}")  # noqa: T201
        with (
            Worker(binaries[RPC_SERVER], tmp_path) as worker,
            Liar(worker.port, number=number, damage=DAMAGES[name], seed=seed) as liar,
            Head(binaries[LLAMA_SERVER], tmp_path, smollm2(), [liar.endpoint], ready=False) as head,
        ):
            code = head.wait_ready_or_end()
            if code is None:
                head.stream(tokens=12)
                code = head.process.poll()
            assert code in (None, 1), head.output[-3000:]
            assert liar.lied
