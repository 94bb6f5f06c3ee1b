"""The page of `python -m tests.bench.gpu`, made of what was measured. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.bench.figures import ENDS_ON_CPU, LOCAL, Figures, cell_table, promise_table, promises

from tests.bench.page import markdown

_SAME_ENDS = """\
Stock produced the same text as one node. meshd produced the same text as one node with the output layer on
its CPU, as on meshd's head: another kind of device rounds differently."""

Part = tuple[str, int, Figures, Sequence[str]]
"""A model's name, its bytes, its figures, and the cells that came to nothing."""

_PAGE = """\
# On GPUs: {backend}

Made by `python -m tests.bench.gpu` on {when}: {machine}; {devices}; {pin}; {times} of each, medians.
Head: the CPU. Workers: {placed}. Stock is upstream's build for {backend} behind a
delaying proxy for each worker; the first row is upstream alone on the first GPU. Terms and method:
[benchmarks.md](benchmarks.md).
"""
_PART = """
## {model}, {size:.2f} GB

{texts}

{cells}

{promises}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRunFacts:
    """When and with what."""

    when: str
    machine: str
    backend: str
    devices: tuple[str, ...]
    pin: str
    workers: tuple[int, ...]


def page(made: GpuRunFacts, parts: Sequence[Part]) -> str:
    """All of it, in Markdown."""
    shared = max(made.workers) > len(made.devices)
    head = _PAGE.format(
        backend=made.backend,
        when=made.when,
        machine=made.machine,
        devices=", ".join(made.devices),
        pin=made.pin,
        times=_times(parts),
        placed="distributed over the GPUs; some share one" if shared else "one GPU each",
    )
    return head + "".join(_part(*part) for part in parts)


def _times(parts: Sequence[Part]) -> str:
    """Return how often each was measured: `2`, or `1 to 2`."""
    runs = [
        (model, run.setup, run.workers, run.rtt_ms) for model, _, figures, _ in parts for run in figures.runs
    ]
    counts = Counter(runs).values()
    least, most = min(counts, default=0), max(counts, default=0)
    return str(most) if least == most else f"{least} to {most}"


def _part(model: str, size: int, figures: Figures, faults: Sequence[str]) -> str:
    came = [f"- {fault}" for fault in faults]
    return _PART.format(
        model=model,
        size=size / 1e9,
        texts="\n".join([_texts(figures), *(["", "Failed:", "", *came] if came else [])]),
        cells=markdown(cell_table(figures)),
        promises=markdown(promise_table(promises(figures))),
    )


def _texts(figures: Figures) -> str:
    differing = figures.texts_differ()
    if differing:
        return f"Text different from one node's: {'; '.join(differing)}."
    alone = {run.setup: run.text for run in figures.runs if not run.workers}
    if LOCAL not in alone:
        return "One node alone did not run: no text was compared."
    same = alone.get(ENDS_ON_CPU, alone[LOCAL]) == alone[LOCAL]
    return "All produced the same text." if same else _SAME_ENDS
