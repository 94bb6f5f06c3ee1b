"""Choose what is repeated in a run: all of it with MESHD_SOAK=1, else a part that MESHD_SEED draws.

The seed is another one in each run, and pytest prints it; given, it repeats a run. It stays in the
environment, so that the processes of `pytest -n` draw the same.
"""

import os
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
SEED = int(os.environ.setdefault("MESHD_SEED", str(random.SystemRandom().randrange(1 << 31))))
SOAK = os.environ.get("MESHD_SOAK") == "1"


def counts(short: int, full: int) -> int:
    """Return how often to do something."""
    return full if SOAK else short


def drawn(name: str, values: Iterable[T], short: int, *, always: Sequence[T]) -> list[T]:
    """All of them in a soak; else `always`, then `short` others as the seed draws them for `name`.

    `always`: the values that once found something which no other one finds. They are in each run.
    """
    listed = list(values)
    if unknown := [value for value in always if value not in listed]:
        raise ValueError(f"{name}: {unknown} cannot be drawn")
    others = [value for value in listed if value not in always]
    return listed if SOAK else [*always, *random.Random(f"{SEED} {name}").sample(others, short)]
