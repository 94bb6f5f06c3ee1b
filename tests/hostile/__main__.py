"""`python -m tests.hostile [--messages N] [--seed S] [--only DOOR] [--jobs J]`.

A hostile member against two honest nodes with a live stream between them, on a virtual clock. Prints a line
every ten seconds; the first damage ends the run with exit code 1 and the command that repeats it.

The same seed and number of messages make the same run, in any process: a job's last line ends with a print of
its messages, the nodes' clock, and what they logged, dialled and echoed. Seconds, memory, longest turn and
share of a core are measured, and differ. `--jobs J` splits the messages: job N is the run of seed S+N.
"""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.hostile.damage import Damage
from tests.hostile.doors import DOORS
from tests.hostile.run import Outcome, run_member

DEFAULT_MESSAGES = 10_000_000
TELL_SECONDS = 10.0


class _Teller:
    """A line now and then."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._told = time.monotonic()

    def __call__(self, done: Outcome) -> None:
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            _say(f"[{self._job}] {_line(done)}")


def _line(done: Outcome) -> str:
    rate = done.messages / max(done.seconds, 0.001)
    return (
        f"{done.messages:>9} messages in {done.seconds:.0f} s ({rate:.0f}/s; {done.virtual_seconds:.0f} s of"
        f" the nodes), {done.growth_bytes / 1048576:+.1f} MiB, live stream {done.echoed >> 20} MiB,"
        f" longest stall {done.longest_stall:.2f} s of the nodes, longest turn {done.longest_turn:.2f} s,"
        f" {done.of_a_core:.1%} of a core, {done.dials} connections, {done.lines} lines logged, {done.print}"
    )


def _job(number: int, seed: int, messages: int, doors: tuple[str, ...]) -> tuple[str, Outcome | None]:
    """In a process of its own. What was found, or nothing and the figures."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = run_member(Path(folder), seed=seed, messages=messages, tell=_Teller(number), doors=doors)
        except Damage as damage:
            only = "".join(f" --only {door}" for door in doors)
            again = f"python -m tests.hostile --seed {seed} --messages {messages}{only}"
            return f"{damage}\n  again: {again}", None
    return "", done


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--messages", type=int, default=DEFAULT_MESSAGES, help="of all jobs together")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument(
        "--only", action="append", choices=tuple(DOORS), help="these doors; may repeat (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a seed of its own")
    given = parser.parse_args()
    doors = tuple(given.only or ())
    _say(f"seed {given.seed}")
    each = -(-given.messages // given.jobs)
    with ProcessPoolExecutor(given.jobs) as pool:
        running = [
            pool.submit(_job, number, given.seed + number, each, doors) for number in range(given.jobs)
        ]
        outcomes = [one.result() for one in running]
    for found, done in outcomes:
        _say(f"FOUND {found}" if done is None else _line(done))
    return 1 if any(done is None for _, done in outcomes) else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
