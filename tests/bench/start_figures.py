"""Sum up what tests/bench/start.py measured: seconds by phase, medians and spread, in a table. Pure."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from meshd.bench.figures import Promise, Table

_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) \[(?:info|warning) +\] (\S+) (.*)$")
GOALS = {"warm": 2.0, "first": 5.0, "lost worker": 2.5, "lost head": 2.5}  # seconds, until the next token
TOKEN = "token"
# The last event of each phase, in order, and what its line contains beside that
PHASES: Mapping[str, tuple[str, str]] = {
    "first line": ("", ""),
    "api": ("api_listening", ""),
    "lost": ("model_lost", ""),
    "asking": ("load_started", ""),
    "plan": ("plan", ""),
    "server starts": ("child_starting", "child=llama-server"),
    "server ready": ("child_ready", "child=llama-server"),
    "model ready": ("model_state", "state=ready"),
}


@dataclass(frozen=True, slots=True)
class StartTimes:
    """One start or loss: `phases` are seconds from its beginning to the end of each, by name.

    `cpu`: processor seconds of the head's daemon until the token, which other work on the machine changes
    little; None after a loss.
    """

    kind: str
    phases: Mapping[str, float]
    cpu: float | None = None


def phases(log: str, began: float, token: float) -> dict[str, float]:
    """Seconds from `began` to the first event of each phase that a head logged since then.

    `began` and `token`, when the first (or next) token came, are seconds since 1970.
    """
    found: dict[str, float] = {}
    for line in log.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        at = datetime.fromisoformat(match[1]).timestamp()
        if not began <= at <= token:
            continue
        for name, (event, part) in PHASES.items():
            if event in ("", match[2]) and part in match[3]:
                found.setdefault(name, at - began)
    return {**dict(sorted(found.items(), key=lambda one: one[1])), TOKEN: token - began}


def medians(found: Sequence[StartTimes], kind: str) -> dict[str, float]:
    """Return the median of each phase that all tries of this kind have."""
    tries = [one.phases for one in found if one.kind == kind]
    names = [name for name in (tries[0] if tries else {}) if all(name in one for one in tries)]
    return {name: statistics.median(one[name] for one in tries) for name in names}


def cpu_median(found: Sequence[StartTimes], kind: str) -> float | None:
    """Return the processor seconds of the head, None where they were not counted."""
    counted = [one.cpu for one in found if one.kind == kind and one.cpu is not None]
    return statistics.median(counted) if counted else None


def promises(found: Sequence[StartTimes]) -> list[Promise]:
    """Hold the median of each kind to its goal."""
    kinds = dict.fromkeys(one.kind for one in found)
    return [
        Promise(f"{kind}: seconds to the token", medians(found, kind)[TOKEN], GOALS[kind], "s")
        for kind in kinds
    ]


def table(found: Sequence[StartTimes]) -> Table:
    """A row for each phase: when it ended, and how long it took, by the medians."""
    rows: list[Sequence[str]] = []
    for kind in dict.fromkeys(one.kind for one in found):
        tries = [one.phases[TOKEN] for one in found if one.kind == kind]
        before = 0.0
        for name, at in sorted(medians(found, kind).items(), key=lambda one: one[1]):
            spread = f"{min(tries):.2f} to {max(tries):.2f}" if name == TOKEN else ""
            goal = f"≤ {GOALS[kind]:.1f}" if name == TOKEN else ""
            cpu = cpu_median(found, kind) if name == TOKEN else None
            used = "" if cpu is None else f"{cpu:.2f}"
            rows.append((kind, name, f"{at:.2f}", f"{at - before:.2f}", spread, goal, used))
            before = at
    return ("KIND", "UNTIL", "AFTER s", "TOOK s", "MIN TO MAX", "GOAL", "HEAD'S CPU s"), rows
