"""One run of the hostile member: so many messages, in the same order for the same seed."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import Owner, first_error

from tests.conformance import nodes
from tests.hostile.damage import Damage, Lines
from tests.hostile.doors import Visit
from tests.hostile.network import OutsideLoop
from tests.hostile.scene import newcomer, scene

WARM = 1000  # messages, until memory is compared
FULL = 50_000  # until the tables of the honest are full
ROUND = 1000  # messages between two looks


@dataclass(slots=True)
class Outcome:
    """What was sent, and what it cost."""

    messages: int = 0
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    growth_bytes: int = 0
    longest_stall: float = 0.0
    echoed: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    ended: tuple[str, ...] = ()
    lines: int = 0  # that the honest nodes logged


async def _run(
    folder: Path,
    seed: int,
    messages: int,
    tell: Callable[[Outcome], None],
    doors: tuple[str, ...],
    lines: Lines,
) -> Outcome:
    chance = random.Random(seed)
    nodes._seeds = itertools.count(1)  # the same keys in every run
    done, began = Outcome(), time.monotonic()
    loop = asyncio.get_running_loop()
    async with scene(folder) as it, Owner() as owner:
        it.lines = lines
        visit = Visit(it.mallory(chance), [it.target(one) for one in it.victims], owner)
        if doors:
            visit.doors = {name: visit.doors[name] for name in doors}
        started, looked, settled = loop.time(), 0, 0
        while done.messages < messages:
            done.messages += await visit.once()
            if settled < 1 and done.messages >= WARM:
                settled = 1
                it.settle(full=False)
            elif settled < 2 and done.messages >= max(messages // 2, FULL):
                settled = 2
                it.settle(full=True)
            if done.messages - looked >= ROUND or done.messages >= messages:
                looked = done.messages
                it.check()
                done.seconds = time.monotonic() - began
                done.virtual_seconds = loop.time() - started
                done.growth_bytes, done.longest_stall = it.growth, it.live.longest
                done.echoed, done.sent, done.ended = it.live.echoed, visit.sent, tuple(visit.closed)
                done.lines = lines.counts.total()
                tell(done)
        await newcomer(it)
        owner.cancel()
    return done


def run_member(
    folder: Path,
    *,
    seed: int,
    messages: int,
    tell: Callable[[Outcome], None] = lambda _outcome: None,
    doors: tuple[str, ...] = (),
) -> Outcome:
    """Raises Damage, or what has ended a node."""
    lines = Lines()
    log.set_up(level="info", stream=lines)
    try:
        with asyncio.Runner(loop_factory=OutsideLoop) as runner:
            return runner.run(_run(folder, seed, messages, tell, doors, lines))
    except ExceptionGroup as group:
        error = first_error(group)
        raise Damage(f"{type(error).__name__}: {error}") from error
    finally:
        log.set_up(level="warning")
