"""How much of what is repeated a run does: all of it with MESHD_SOAK=1, else a part that MESHD_SEED draws.

The seed is another one in each run, and pytest prints it; given, it repeats a run. It stays in the
environment, so that the processes of `pytest -n` draw the same.
"""

import os
import random
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
SEED = int(os.environ.setdefault("MESHD_SEED", str(random.SystemRandom().randrange(1 << 31))))
SOAK = os.environ.get("MESHD_SOAK") == "1"


def counts(short: int, full: int) -> int:
    """How often to do something."""
    return full if SOAK else short


def drawn(name: str, values: Iterable[T], short: int) -> list[T]:
    """All of them in a soak; else so many as the seed draws for `name`, in the order drawn."""
    listed = list(values)
    return listed if SOAK else random.Random(f"{SEED} {name}").sample(listed, short)
