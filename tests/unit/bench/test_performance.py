"""`make bench`: every figure of the page is measured as often as its neighbours."""

from pathlib import Path

import pytest
from meshd.bench import distance, rpc
from meshd.bench.figures import Figures
from meshd.bench.interface import BenchOutput, DistanceArgs, RpcBenchArgs
from meshd.bench.rpc import RpcRow

from tests.bench import performance, readiness
from tests.bench.readiness import ReadyArgs
from tests.bench.ready_figures import ReadinessFigures


def test_each_part_of_the_page_is_measured_as_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def far(args: DistanceArgs, _out: BenchOutput) -> Figures:
        asked.append(args.pairs)
        return Figures(())

    def direct(args: RpcBenchArgs, _out: BenchOutput) -> list[RpcRow]:
        asked.append(args.pairs)
        return []

    def ready(args: ReadyArgs, _out: BenchOutput) -> ReadinessFigures:
        asked.append(args.runs)
        return ReadinessFigures(())

    monkeypatch.setattr(distance, "measure", far)
    monkeypatch.setattr(rpc, "measure_all", direct)
    monkeypatch.setattr(readiness, "measure", ready)
    assert performance.main(["--write", str(tmp_path / "page.md"), "--pairs", "4"]) == 0
    assert len(asked) > 4
    assert set(asked) == {4}
