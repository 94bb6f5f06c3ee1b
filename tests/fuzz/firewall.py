"""`python -m tests.fuzz.firewall [--frames N] [--seed S] [--jobs J] [--only SESSION]`: for the RPC firewall.

Sessions that a head could have with an rpc-server, in which one thing after the other is broken. What passes
is judged by rules that were written a second time, and what is good must pass. Exit code 1 with the command
that repeats it for the first frame that went wrong.
"""

import argparse
import gc
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.rpc_sessions import Found, Head
from tests.fuzz.run import MOST_GROWTH_BYTES, _resident_bytes

DEFAULT_FRAMES = 10_000_000
TELL_SECONDS = 10.0


def run_sessions(frames: int, *, seed: int, job: int = 0, tell: bool = False) -> Counter[str]:
    """At least so many frames; the numbers of their sessions count up. Raises Found."""
    counts: Counter[str] = Counter()
    began = told = time.monotonic()
    number, resident = 0, 0
    while counts["frames"] < frames:
        run_session(number, seed=seed, counts=counts)
        number += 1
        if not resident and counts["frames"] >= frames // 2:
            gc.collect()
            resident = _resident_bytes()
        now = time.monotonic()
        if tell and now - told >= TELL_SECONDS:
            told = now
            rate = counts["frames"] / (now - began)
            _say(f"[{job}] {counts['frames']:>9} frames, {counts['broken']} broken, {rate:.0f}/s")
    gc.collect()
    counts["growth"] = max(0, _resident_bytes() - resident) if resident else 0
    counts["resident"] = _resident_bytes()
    counts["sessions"] = number
    if counts["growth"] > MOST_GROWTH_BYTES:
        raise Found(f"the process grew by {counts['growth']} bytes over the second half")
    return counts


def run_session(number: int, *, seed: int, counts: Counter[str]) -> None:
    """One of a run: the same for the same seed, whatever came before. Raises Found."""
    try:
        Head(random.Random(seed * 1_000_003 + number), counts).run()
    except Found as found:
        again = f"python -m tests.fuzz.firewall --seed {seed} --only {number}"
        raise Found(f"{found}\n  again: {again}") from found


def _job(job: int, frames: int, seed: int) -> tuple[str, Counter[str]]:
    try:
        return "", run_sessions(frames, seed=seed, job=job, tell=True)
    except Found as found:
        return str(found), Counter()


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.firewall", description=__doc__)
    parser.add_argument("--frames", type=int, default=DEFAULT_FRAMES, help="of all jobs together")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a seed of its own")
    parser.add_argument("--only", type=int, help="the number of one session, to see it again")
    given = parser.parse_args()
    _say(f"seed {given.seed}")
    if given.only is not None:
        run_session(given.only, seed=given.seed, counts=Counter())
        return 0
    began, total = time.monotonic(), Counter[str]()
    with ProcessPoolExecutor(given.jobs) as pool:
        each = -(-given.frames // given.jobs)
        jobs = [pool.submit(_job, number, each, given.seed + number) for number in range(given.jobs)]
        for job in jobs:
            why, counts = job.result()
            if why:
                _say(f"FOUND {why}")
                return 1
            peak = max(total["resident"], counts["resident"])
            total += counts
            total["resident"] = peak
    seconds = time.monotonic() - began
    _say(
        f"{total['frames']} frames in {total['sessions']} sessions, {total['broken']} of them broken, "
        f"{total['refused']} refused, in {seconds:.0f} s ({total['frames'] / seconds:.0f}/s); "
        f"{total['resident'] / 1048576:.0f} MiB a process, which grew by {total['growth'] / 1024:.0f} KiB"
    )
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
