"""A target: how to make one hostile input, and who reads it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshd.base.errors import MeshdError

Make = Callable[[random.Random, Sequence[bytes]], bytes]
Feed = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`share` of all inputs; `most_bytes` is what reading one input may hold at its worst (tracemalloc)."""

    name: str
    samples: Sequence[bytes]  # good inputs to begin with
    make: Make
    feed: Feed
    allowed: tuple[type[MeshdError], ...]  # and nothing else may be raised
    share: int
    most_bytes: int = 2 << 20
