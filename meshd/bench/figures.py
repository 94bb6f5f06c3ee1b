"""Show the figures of `bench load|nodes|latency`: medians, tables, promises kept or not. Pure."""

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
LOAD_BYTES = 100_000  # between the nodes for a load, when each worker has the weights
TOKEN_RATIOS = {2: 0.85, 4: 0.75}  # most of stock's time for a token, by workers, at a distance
NEAR_RATIO = 1.03  # most of stock's time for a token, at no distance
LAW_MS = 2.0  # beyond computing and (workers + 1) times one direction


def without(what: str) -> str:
    """Return the name of the setup of meshd without a part of WITHOUT."""
    return f"{MESHD} without {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One measurement. Without workers, `setup` is LOCAL or ENDS_ON_CPU, else another of those above.

    `rtt_ms`: of the distance, or of computing. Times are in seconds: `load` from the start of llama-server to
    the first token, with `load_bytes` sent between the nodes in both directions until then. `prompt` and
    `token` are 0 if not measured. `text`: the generated text.
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
    """All figures of one call."""

    runs: tuple[BenchRun, ...]
    one_way: Mapping[float, float] = field(default_factory=dict)
    """Measured seconds in one direction through the proxy, by round trip in ms."""

    def cells(self) -> list[tuple[int, float]]:
        """Return the measured pairs of workers and round trip, sorted."""
        found = {(run.workers, run.rtt_ms) for run in self.runs if run.setup in (STOCK, MESHD)}
        return sorted(found)

    def lesser(self) -> list[str]:
        """Return the measured setups of meshd without a part, in the order of WITHOUT."""
        found = {run.setup for run in self.runs}
        return [setup for setup in map(without, WITHOUT) if setup in found]

    def median(self, setup: str, workers: int, rtt_ms: float, what: str) -> float | None:
        """Return the median of `load`, `prompt`, `token` or `load_bytes`; None if not measured."""
        measured = self.values(setup, workers, rtt_ms, what)
        return statistics.median(measured) if measured else None

    def values(self, setup: str, workers: int, rtt_ms: float, what: str) -> list[float]:
        """Return the measured values of `what`, sorted."""
        values: list[float] = [
            getattr(run, what)
            for run in self.runs
            if (run.setup, run.workers, run.rtt_ms) == (setup, workers, rtt_ms)
        ]
        return sorted(value for value in values if value)

    def shown(self, setup: str, workers: int, rtt_ms: float, what: str, factor: float) -> str:
        """Format the median and, for several runs, minimum and maximum; empty if not measured."""
        values = [value * factor for value in self.values(setup, workers, rtt_ms, what)]
        return with_spread([statistics.median(values)] if what == "load_bytes" and values else values)

    @property
    def compute(self) -> float | None:
        """Seconds for a token on one node without meshd, with the model's ends where meshd has them."""
        ends = self.median(ENDS_ON_CPU, 0, 0.0, "token")
        return self.median(LOCAL, 0, 0.0, "token") if ends is None else ends

    def texts_differ(self) -> list[str]:
        """Name the runs whose greedy text differs from that of one node alone.

        meshd's runs are compared with ENDS_ON_CPU if it was measured.
        """
        texts = {run.setup: run.text for run in self.runs if not run.workers and run.text}
        stock = texts.get(LOCAL)
        ours = texts.get(ENDS_ON_CPU, stock)
        return [
            f"{run.setup}, {count_of(run.workers, 'worker')}, {run.rtt_ms:g} ms"
            for run in self.runs
            if run.workers
            and run.setup != DEFAULTS  # which repacks weights, and rounds differently
            and run.text
            and run.text != ((ours if run.setup.startswith(MESHD) else stock) or run.text)
        ]


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound that meshd promises to keep, and the measured value."""

    what: str
    value: float
    most: float
    unit: str

    @property
    def held(self) -> bool:
        """True if the promise was kept."""
        return self.value <= self.most


def promises(figures: Figures) -> list[Promise]:
    """Return the promises that the measurements can judge."""
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
        sent = figures.median(MESHD, workers, rtt, "load_bytes")
        if sent is not None:
            yield Promise(f"load, {_name(workers, rtt)}: bytes", sent / 1000, LOAD_BYTES / 1000, "kB")


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
    """Format a count: `1 worker`, `2 workers`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def cell_table(figures: Figures) -> Table:
    """Return a row for each cell: stock, meshd and their ratio. The first row is one node alone.

    After the ratio follow the setups of meshd without a part, if measured.
    """
    # headers, for what was measured
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
    # one node alone
    rows: list[Sequence[str]] = []
    alone = [figures.shown(LOCAL, 0, 0.0, what, factor) for what, _, factor in columns]
    if any(alone):
        row = ["0", "-"]
        for value in alone:
            row += [value, "", "", *[""] * len(lesser)]
        rows.append(row)
    # the cells
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
    """Return a row for each cell in which stock also ran as upstream ships it, beside stock and meshd."""
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
    """Return a row for each promise."""
    rows: list[Sequence[str]] = [
        (
            promise.what,
            f"{promise.value:.3g} {promise.unit}",
            f"≤ {promise.most:.3g}",
            "yes" if promise.held else "no",
        )
        for promise in kept
    ]
    return ("PROMISE", "MEASURED", "BOUND", "HELD"), rows


def with_spread(values: Sequence[float], form: str = ".3g") -> str:
    """Format the median and, for several values, minimum and maximum in brackets; empty for none."""
    if len(values) < 2:
        return "".join(f"{value:{form}}" for value in values)
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"
