"""One run of the hostile member: so many messages, in the same order for the same seed."""

import asyncio
import hashlib
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
from tests.hostile.approach import VIRTUAL, Pace
from tests.hostile.damage import Damage, Lines
from tests.hostile.doors import SILENT, Visit
from tests.hostile.network import OutsideLoop
from tests.hostile.scene import newcomer, scene

WARM = 1000  # messages, until memory is compared
FULL = 50_000  # until the tables of the honest are full
ROUND = 1000  # messages between two looks
_RARE_VISITS = 5  # of which some may find all victims away


@dataclass(slots=True)
class Outcome:
    """The numbers of a run: messages sent, and their cost."""

    messages: int = 0  # that honest nodes were given; volleys, where every door is silent
    seconds: float = 0.0
    virtual_seconds: float = 0.0
    growth_bytes: int = 0
    longest_stall: float = 0.0  # of the live stream, by the nodes' clock
    longest_turn: float = 0.0  # seconds that a node computed on end
    of_a_core: float = 0.0  # that the busier node took, by its own clock
    echoed: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    ended: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()  # doors at which no victim answered
    lines: int = 0  # that the honest nodes logged
    dials: int = 0  # connections to where peers' records led
    by_udp: int = 0  # of those
    print: str = ""  # of all that does not depend on the machine: the same for the same seed


async def _run(
    folder: Path,
    seed: int,
    messages: int,
    tell: Callable[[Outcome], None],
    doors: tuple[str, ...],
    lines: Lines,
    pace: Pace,
) -> Outcome:
    rng = random.Random(seed)
    nodes.key_seeds = itertools.count(1)  # the same keys in every run
    done, began = Outcome(), time.monotonic()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, OutsideLoop)
    log.set_up(level="info", stream=lines, clock=loop.time)
    async with scene(folder) as it, Owner() as owner:
        it.lines = lines
        visit = Visit(it.mallory(rng), [it.target(one) for one in it.victims], owner, pace=pace)
        if doors:
            visit.doors = {name: visit.doors[name] for name in doors}
        started, looked, settled = loop.time(), 0, 0
        is_silent = SILENT.issuperset(visit.doors)
        while done.messages < messages:
            await visit.once()
            done.messages = done.messages + 1 if is_silent else visit.said
            if settled < 1 and done.messages >= WARM:
                settled = 1
                it.settle(full=False)
            elif settled < 2 and done.messages >= max(messages // 2, FULL):
                settled = 2
                it.settle(full=True)
            if done.messages - looked >= ROUND or done.messages >= messages:
                looked = done.messages
                it.check(last=done.messages >= messages)
                done.seconds = time.monotonic() - began
                done.virtual_seconds = loop.time() - started
                done.growth_bytes, done.longest_stall = it.growth, it.live.longest
                done.longest_turn, done.of_a_core = loop.turns.longest, it.share_of_a_core
                done.echoed, done.sent, done.ended = it.live.echoed, visit.sent, tuple(visit.closed)
                done.lines, done.dials = lines.counts.total(), loop.dialled.total()
                done.by_udp = loop.by_proto["udp"]
                done.print = _print_of(done, lines)
                tell(done)
        await _visit_rare(visit)
        done.unheard = tuple(visit.unheard())
        await newcomer(it)
        owner.cancel()
    return done


async def _visit_rare(visit: Visit) -> None:
    """Go through the doors that chance has left out: a run has two or three visits to the rarest."""
    for name in sorted(SILENT.intersection(visit.unheard())):
        for _ in range(_RARE_VISITS):
            if name in visit.unheard():
                await visit.once(name)


def _print_of(done: Outcome, lines: Lines) -> str:
    what = (done.messages, done.virtual_seconds, done.echoed, done.dials, done.by_udp, done.ended)
    counts = (sorted(done.sent.items()), sorted(lines.counts.items()))
    return hashlib.sha256(repr((what, counts)).encode()).hexdigest()[:12]


def run_member(
    folder: Path,
    *,
    seed: int,
    messages: int,
    tell: Callable[[Outcome], None] = lambda _outcome: None,
    doors: tuple[str, ...] = (),
    pace: Pace = VIRTUAL,
) -> Outcome:
    """Raises Damage, or what has ended a node."""
    lines = Lines()
    try:
        with asyncio.Runner(loop_factory=OutsideLoop) as runner:
            return runner.run(_run(folder, seed, messages, tell, doors, lines, pace))
    except ExceptionGroup as group:
        error = first_error(group)
        raise Damage(f"{type(error).__name__}: {error}") from error
    finally:
        log.set_up(level="warning")
