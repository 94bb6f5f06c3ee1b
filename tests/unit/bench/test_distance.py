"""Test how often a cell and its distance are measured, and which curves are drawn of that."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from meshd.bench import distance
from meshd.bench.distance import as_json
from meshd.bench.figures import LOCAL, MESHD, STOCK, BenchRun, Figures, promises
from meshd.bench.interface import DistanceArgs
from meshd.bench.rig import Cell, Rig
from meshd.build.interface import NativeInfo

from tests.bench.performance import _Console
from tests.bench.speed_curve import draw_speeds

SVG = "{http://www.w3.org/2000/svg}"
RUNS = (
    BenchRun(setup=LOCAL, workers=0, rtt_ms=0.0, load=0.3, token=0.01),
    *(
        BenchRun(
            setup=setup, workers=workers, rtt_ms=rtt, load=1.0 + workers, token=0.01 * workers + rtt / 1000
        )
        for setup in (STOCK, MESHD)
        for workers in (1, 2)
        for rtt in (0.0, 20.0, 50.0)
    ),
)


@pytest.mark.parametrize(
    ("what", "names", "points"),
    [
        ("load", {"stock, 1 worker", "meshd, 1 worker", "stock, 2 workers", "meshd, 2 workers"}, 3),
        ("latency", {"stock, 1 worker", "meshd, 1 worker", "stock, 2 workers", "meshd, 2 workers"}, 3),
        ("nodes", {f"{setup}, RTT {rtt} ms" for setup in (STOCK, MESHD) for rtt in (0, 20, 50)}, 3),
    ],
)
def test_lines(what: str, names: set[str], points: int) -> None:
    """Test the lines: by round trip, for each number of workers; and by nodes, for each round trip."""
    root = ElementTree.fromstring(draw_speeds(what, Figures(RUNS)))
    assert names <= {element.text for element in root.iter(f"{SVG}text")}
    lines = [line.attrib["points"].split() for line in root.findall(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [points] * len(names)


def test_json_has_what_the_tables_have() -> None:
    figures = Figures(RUNS, one_way={20.0: 0.0101})
    found = as_json(figures, promises(figures))
    assert found.keys() == {"runs", "ways", "promises"}
    assert found["ways"] == {"20": 0.0101}
    runs, kept = found["runs"], found["promises"]
    assert isinstance(runs, list)
    assert [run["way"] for run in runs if isinstance(run, dict)] == [run.setup for run in RUNS]
    assert isinstance(kept, list)
    assert all({"what", "value", "most", "unit", "held"} == set(one) for one in kept if isinstance(one, dict))


def test_a_way_is_measured_as_often_as_the_cells_that_are_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, its moment would decide over all."""
    measured: Iterator[float] = iter((0.03, 0.011, 0.012))

    async def programs_and_model(*_asked: object) -> tuple[NativeInfo, Path]:
        return NativeInfo("pin", "sources", "cpu", Path(), {}), Path()

    async def run_meshd(_rig: Rig, cell: Cell) -> tuple[BenchRun, list[str]]:
        return await run_stock(_rig, cell, []), []

    async def run_stock(_rig: Rig, cell: Cell, _argv: list[str]) -> BenchRun:
        return BenchRun(setup=MESHD, workers=cell.workers, rtt_ms=cell.rtt_ms, load=1.0)

    async def one_way(round_trips: Iterable[float]) -> dict[float, float]:
        return {rtt: next(measured) for rtt in round_trips}

    for name, value in (
        ("programs_and_model", programs_and_model),
        ("run_meshd", run_meshd),
        ("run_stock", run_stock),
        ("measure_one_way", one_way),
        ("need_namespaces", lambda: None),
    ):
        monkeypatch.setattr(distance, name, value)
    asked = DistanceArgs(
        what="latency", model=Path(), cache=Path(), workers=(1,), round_trips=(20.0,), pairs=3
    )
    figures = asyncio.run(distance.measure_figures(asked, _Console()))
    assert figures.one_way == {20.0: 0.012}
    assert len(figures.values(MESHD, 1, 20.0, "load")) == 6
