"""What `bench load|nodes|latency` found, and what follows: medians, tables, promises kept or not. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from meshd.bench.interface import WITHOUT

STOCK, MESHD, LOCAL = "stock", "meshd", "local"
DEFAULTS = "stock, upstream's defaults"  # with neither the options nor the environment of meshd's programs
ENDS_ON_CPU = (
    "local, ends on the processor"  # one node alone, which computes each part on what meshd computes it on
)
LOAD_ROUND_TRIPS = 8  # a load over a distance takes the local time and at most so many round trips
TOKEN_RATIOS = {2: 0.85, 4: 0.75}  # most of stock's time for a token, by workers, at a distance
NEAR_RATIO = 1.03  # most of stock's time for a token, at no distance
LAW_MS = 2.0  # beyond computing and (workers + 1) times one direction


def without(what: str) -> str:
    """The setup of meshd without something of WITHOUT."""
    return f"{MESHD} without {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One measurement. No workers: `setup` is LOCAL or ENDS_ON_CPU; else any other of those above.

    `rtt_ms`: of the distance, or of computing. Seconds, `load` from the start of llama-server until the first
    token was answered; `load_bytes` of both directions between the nodes until then.
    `prompt`, `token` 0: not measured. `text` is what was generated.
    """

    setup: str
    workers: int
    rtt_ms: float
    load: float
    prompt: float = 0.0
    token: float = 0.0
    load_bytes: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """All of one call."""

    runs: tuple[BenchRun, ...]
    one_way: Mapping[float, float] = field(default_factory=dict)
    """Measured seconds in one direction through the proxy, by round trip in ms (one_way_delay.py)."""

    def cells(self) -> list[tuple[int, float]]:
        """Workers and round trip of those with both setups, in order."""
        found = {(run.workers, run.rtt_ms) for run in self.runs if run.setup in (STOCK, MESHD)}
        return sorted(found)

    def lesser(self) -> list[str]:
        """The setups of meshd without something, in the order of WITHOUT."""
        found = {run.setup for run in self.runs}
        return [setup for setup in map(without, WITHOUT) if setup in found]

    def median(self, setup: str, workers: int, rtt_ms: float, what: str) -> float | None:
        """Of `load`, `prompt`, `token` or `load_bytes`; None: not measured."""
        measured = self.values(setup, workers, rtt_ms, what)
        return statistics.median(measured) if measured else None

    def values(self, setup: str, workers: int, rtt_ms: float, what: str) -> list[float]:
        """Of all runs that measured it, the least first."""
        values: list[float] = [
            getattr(run, what)
            for run in self.runs
            if (run.setup, run.workers, run.rtt_ms) == (setup, workers, rtt_ms)
        ]
        return sorted(value for value in values if value)

    def shown(self, setup: str, workers: int, rtt_ms: float, what: str, factor: float) -> str:
        """The median and, of several runs, the least and the most; empty: not measured."""
        values = [value * factor for value in self.values(setup, workers, rtt_ms, what)]
        return with_spread([statistics.median(values)] if what == "load_bytes" and values else values)

    @property
    def compute(self) -> float | None:
        """Seconds of a token on one node without meshd, with the model's ends where meshd's head has them."""
        ends = self.median(ENDS_ON_CPU, 0, 0.0, "token")
        return self.median(LOCAL, 0, 0.0, "token") if ends is None else ends

    def texts_differ(self) -> list[str]:
        """Runs with another greedy text than one node alone: for meshd's, ENDS_ON_CPU if it is there."""
        texts = {run.setup: run.text for run in self.runs if not run.workers and run.text}
        stock = texts.get(LOCAL)
        ours = texts.get(ENDS_ON_CPU, stock)
        return [
            f"{run.setup}, {count_of(run.workers, 'worker')}, {run.rtt_ms:g} ms"
            for run in self.runs
            if run.workers
            and run.setup != DEFAULTS  # which repacks weights, and rounds otherwise
            and run.text
            and run.text != ((ours if run.setup.startswith(MESHD) else stock) or run.text)
        ]


@dataclass(frozen=True, slots=True)
class Promise:
    """What meshd holds itself to, and whether it did here."""

    what: str
    value: float
    most: float
    unit: str

    @property
    def held(self) -> bool:
        """Whether it was kept."""
        return self.value <= self.most


def promises(figures: Figures) -> list[Promise]:
    """Those that can be judged by what was measured."""
    return [*_of_loads(figures), *_of_tokens(figures)]


def _of_loads(figures: Figures) -> Iterable[Promise]:
    local = figures.median(LOCAL, 0, 0.0, "load")
    for workers, rtt in figures.cells():
        ours = figures.median(MESHD, workers, rtt, "load")
        if rtt and ours is not None and local is not None:
            most = local + LOAD_ROUND_TRIPS * rtt / 1000
            yield Promise(
                f"load, {_name(workers, rtt)}: local + {LOAD_ROUND_TRIPS} round trips", ours, most, "s"
            )


def _of_tokens(figures: Figures) -> Iterable[Promise]:
    for workers, rtt in figures.cells():
        ours = figures.median(MESHD, workers, rtt, "token")
        stock = figures.median(STOCK, workers, rtt, "token")
        if ours is None or stock is None:
            continue
        name = f"token, {_name(workers, rtt)}"
        ratio = NEAR_RATIO if not rtt else TOKEN_RATIOS.get(workers) if rtt >= 20 else None
        if ratio is not None:
            yield Promise(f"{name}: {ratio} of stock", ours * 1000, ratio * stock * 1000, "ms")
        compute = figures.compute
        if rtt and compute is not None:
            one_way = figures.one_way.get(rtt, rtt / 2000) * 1000
            most = compute * 1000 + (workers + 1) * one_way + LAW_MS
            what = f"one node alone + {workers + 1} ways of {one_way:.4g} ms + {LAW_MS:g} ms"
            yield Promise(f"{name}: {what}", ours * 1000, most, "ms")


def _name(workers: int, rtt: float) -> str:
    return f"{count_of(workers, 'worker')}, RTT {rtt:g}"


def count_of(count: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def cell_table(figures: Figures) -> Table:
    """A row for each cell, stock and ours, with their ratio; the first row is one node alone.

    Behind the ratio ours without something, where that was measured, too.
    """
    lesser = figures.lesser()
    columns = [
        (what, title, factor)
        for what, title, factor in (
            ("load", "LOAD s", 1.0),
            ("prompt", "PROMPT s", 1.0),
            ("token", "ms/TOKEN", 1000.0),
            ("load_bytes", "LOAD MB", 1e-6),
        )
        if any(getattr(run, what) for run in figures.runs)
    ]
    headers = ["WORKERS", "RTT ms"]
    for _, title, _ in columns:
        headers += [
            f"{title} STOCK",
            "MESHD",
            "RATIO",
            *(setup.removeprefix(MESHD).upper()[1:] for setup in lesser),
        ]
    rows: list[Sequence[str]] = []
    alone = [figures.shown(LOCAL, 0, 0.0, what, factor) for what, _, factor in columns]
    if any(alone):
        row = ["0", "-"]
        for value in alone:
            row += [value, "", "", *[""] * len(lesser)]
        rows.append(row)
    for workers, rtt in figures.cells():
        row = [str(workers), f"{rtt:g}"]
        for what, _, factor in columns:
            stock, ours = (figures.median(setup, workers, rtt, what) for setup in (STOCK, MESHD))
            ratio = f"{ours / stock:.2f}" if stock and ours is not None else ""
            row += [figures.shown(setup, workers, rtt, what, factor) for setup in (STOCK, MESHD)]
            row += [ratio, *(figures.shown(setup, workers, rtt, what, factor) for setup in lesser)]
        rows.append(row)
    return headers, rows


def defaults_table(figures: Figures) -> Table:
    """Cells in which stock ran as upstream ships it, beside stock as meshd runs it, and meshd."""
    headers, rows = ["WORKERS", "RTT ms"], []
    for title in ("LOAD s", "ms/TOKEN"):
        headers += [f"{title} UPSTREAM'S DEFAULTS", "STOCK", "MESHD"]
    for workers, rtt in sorted({(run.workers, run.rtt_ms) for run in figures.runs if run.setup == DEFAULTS}):
        row = [str(workers), f"{rtt:g}"]
        for what, factor in (("load", 1.0), ("token", 1000.0)):
            row += [figures.shown(setup, workers, rtt, what, factor) for setup in (DEFAULTS, STOCK, MESHD)]
        rows.append(row)
    return headers, rows


def promise_table(kept: Sequence[Promise]) -> Table:
    """One row each."""
    rows: list[Sequence[str]] = [
        (one.what, f"{one.value:.3g} {one.unit}", f"≤ {one.most:.3g}", "yes" if one.held else "no")
        for one in kept
    ]
    return ("PROMISE", "MEASURED", "BOUND", "HELD"), rows


def with_spread(values: Sequence[float], form: str = ".3g") -> str:
    """The median and, of several, the least and the most in brackets; empty for none."""
    if len(values) < 2:
        return "".join(f"{value:{form}}" for value in values)
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
