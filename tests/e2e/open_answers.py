"""Answers that are open when something is lost: how long each stood still, and what became of them."""

import asyncio
import json
import math
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby

from tests.e2e.api_client import Api, Streamed

# Each line repeats enough of the one before for drafts (12 tokens), and counts; at least 1.3 ahead.
REPEATING = tuple(
    "".join(line.replace("N", str(first + number)) for number in range(8))
    for first, line in (
        (10, "line N: the sun is up, the sky is blue and the sea is still.\n"),
        (20, '{"id": N, "kind": "tree", "height": 12, "leaves": "green", "old": true}\n'),
        (40, "user-N,active,2024-01-01,Paris,France,admin,yes,no,no\n"),
        (60, "step N: open the door, walk in, close the door, walk out.\n"),
    )
)
_USERS = [{"id": number, "name": f"user-{number}", "active": True} for number in range(5)]
_FILE = f"The same file again:\n```json\n{json.dumps(_USERS, indent=1)}\n```\n"
# No two tokens of its answer are nearly as likely: drafted tokens are checked together, and how many depends
# on how busy this machine is, so near ties would fall otherwise from run to run.
COPY = _FILE * 3 + "The same file again:\n```json\n["
HIT_AFTER = 10  # pieces of each stream
_BEGIN_SECONDS = 60.0  # from the first stream's pieces to the last one's
_NOTED: list["Interruption"] = []


async def answers_under(
    api: Api,
    hit: Callable[[], object],
    prompts: Sequence[str],
    tokens: int,
    *,
    after: int = HIT_AFTER,
    when_open: Callable[[], Awaitable[object]] | None = None,
) -> tuple[list[Streamed], list[float]]:
    """Streams, `hit` when each has so many pieces; for how many seconds each stood still at most, after it.

    The last reader's thread calls `hit`, as answers may end before a busy loop gets to it; the loop does
    after `when_open`, which is awaited right before. Meanwhile no client reads.
    """
    loop, struck = asyncio.get_running_loop(), threading.Event()

    async def when_open_hit(opened: Callable[[], Awaitable[object]]) -> None:
        await opened()
        hit()

    def strike() -> None:
        if when_open is None:
            hit()
        else:
            asyncio.run_coroutine_threadsafe(when_open_hit(when_open), loop).result()
        struck.set()

    reached = threading.Barrier(len(prompts), strike, _BEGIN_SECONDS)
    stood = [0.0 for _ in prompts]

    def on_piece(number: int) -> Callable[[Streamed], None]:
        last, had = 0.0, 0

        def seen(streamed: Streamed) -> None:
            nonlocal last, had
            if streamed.pieces > after:
                stood[number] = max(stood[number], time.monotonic() - last)
            if had < streamed.pieces == after:
                with suppress(threading.BrokenBarrierError):  # a hit that failed tells why; else see below
                    reached.wait()
            last, had = time.monotonic(), streamed.pieces

        return seen

    running = [
        asyncio.ensure_future(api.stream(prompt, tokens, on_piece=on_piece(number)))
        for number, prompt in enumerate(prompts)
    ]
    streams = await asyncio.gather(*running)
    assert struck.is_set(), f"not all streams had {after} pieces"
    return streams, stood


@dataclass(slots=True)
class Interruption:
    """One run. `seconds`: for how long each stream stood still; `within`: what is no hang yet."""

    lost: str
    how: str
    within: float = math.inf
    seconds: list[float] = field(default_factory=list)
    incomplete: int = 0  # streams
    wrong: int = 0  # streams that are complete, with another text than one node's
    failed: bool = False

    @property
    def hung(self) -> int:
        """Streams."""
        return sum(one > self.within for one in self.seconds)


@contextmanager
def interruption(lost: str, how: str) -> Iterator[Interruption]:
    """One run. It is noted however it ends; afterwards none of the three may have happened."""
    noted = Interruption(lost, how)
    _NOTED.append(noted)
    try:
        yield noted
    except BaseException:
        noted.failed = True
        raise
    assert not (noted.incomplete or noted.wrong or noted.hung), noted


def noted_interruptions() -> Sequence[Interruption]:
    """Return the interruptions of this process, so far, and those it was told of."""
    return _NOTED


def note_interruptions(found: Iterable[Interruption]) -> None:
    """Take over what another process has noted."""
    _NOTED.extend(found)


def interruption_table(found: Sequence[Interruption]) -> list[str]:
    """A line for each kind, and one for all."""

    def key(one: Interruption) -> tuple[str, str]:
        return one.lost, one.how

    columns = ("runs", "streams", "median s", "worst s", "faults")
    lines = [_line("lost", "how", *columns)]
    lines += [_sums(*kind, list(group)) for kind, group in groupby(sorted(found, key=key), key)]
    return [*lines, _sums("all", "", found)]


def _sums(lost: str, how: str, found: Sequence[Interruption]) -> str:
    counts = (len(found), sum(len(one.seconds) for one in found))
    faults = {
        "cut": sum(one.incomplete for one in found),
        "wrong": sum(one.wrong for one in found),
        "hangs": sum(one.hung for one in found),
        "failed": sum(one.failed for one in found),
    }
    seconds = [second for one in found for second in one.seconds] or [math.nan]
    times = (statistics.median(seconds), max(seconds))
    return _line(lost, how, *map(str, counts), *(f"{second:.2f}" for second in times), faults_text(faults))


def faults_text(counts: Mapping[str, int]) -> str:
    """Return the faults that happened, such as `2 hangs, 1 wrong`, or 0."""
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "0"


def _line(lost: str, how: str, *numbers: str) -> str:
    return f"{lost:<14} {how:<17}" + "".join(f"{number:>10}" for number in numbers)
