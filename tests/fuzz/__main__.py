"""`python -m tests.fuzz [--inputs N] [--target NAME] [--seed S] [--only NUMBER]`.

By default a million inputs, shared out over all targets. Prints a line for each target; the first input
that does what none may do ends the run with exit code 1 and the command that repeats it.
"""

import argparse
import sys
import time

from tests.fuzz import (
    browsers,
    channels,
    compressed,
    frames,
    mesh,
    models,
    network,
    punching,
    quic,
    relays,
    routers,
    texts,
    trust,
)
from tests.fuzz.run import Found, Outcome, run_target
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *texts.TARGETS,
    *frames.TARGETS,
    *trust.TARGETS,
    *punching.TARGETS,
    *network.TARGETS,
    *routers.TARGETS,
    *relays.TARGETS,
    *browsers.TARGETS,
    *channels.TARGETS,
    *quic.TARGETS,
    *mesh.TARGETS,
    *models.TARGETS,
    *compressed.TARGETS,
)
DEFAULT_INPUTS = 1_000_000


def shares(inputs: int, targets: tuple[Target, ...]) -> dict[str, int]:
    """Return how many inputs each target gets; together at least `inputs`."""
    whole = sum(target.share for target in targets)
    return {target.name: -(-inputs * target.share // whole) for target in targets}


def main() -> int:
    """Run; returns the exit code."""
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=DEFAULT_INPUTS, help="of all targets together")
    parser.add_argument("--target", action="append", choices=names, help="may repeat (default: all)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", type=int, help="the number of one input, to see it again")
    given = parser.parse_args()
    targets = tuple(one for one in TARGETS if not given.target or one.name in given.target)
    counts = shares(given.inputs, targets)
    _say(f"seed {given.seed}")
    _say(f"{'target':<14}{'inputs':>9}{'refused':>9}{'seconds':>9}{'slowest':>10}{'peak':>11}{'growth':>10}")
    outcomes = []
    for target in targets:
        try:
            outcomes.append(run_target(target, inputs=counts[target.name], seed=given.seed, only=given.only))
        except Found as found:
            _say(f"FOUND {found}")
            return 1
        _say(_line(outcomes[-1]))
    total = sum(one.inputs for one in outcomes)
    _say(f"{total} inputs in {sum(one.seconds for one in outcomes):.0f} s: nothing but the declared errors")
    return 0


def _line(one: Outcome) -> str:
    return (
        f"{one.name:<14}{one.inputs:>9}{one.refused:>9}{one.seconds:>9.1f}{one.slowest_ms:>7.1f} ms"
        f"{one.peak_bytes / 1024:>7.0f} KiB{one.growth_bytes / 1024:>6.0f} KiB"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
