"""What `tests.bench.split_ways` says of its cells."""

from tests.bench.split_ways import LAYERS, TENSORS, SplitCell, line_of

_BY_LAYERS = SplitCell(workers=2, rtt_ms=0.5, way=LAYERS, prompt=[60.0], answer=[20.0, 10.0, 30.0])


def test_an_answer_by_tensors_is_compared_with_the_same_workers_by_layers() -> None:
    cell = SplitCell(
        workers=2, rtt_ms=0.5, way=TENSORS, prompt=[90.0, 80.0, 70.0], answer=[40.0], between=["sealed"]
    )
    line = line_of(cell, _BY_LAYERS)
    assert "RTT 0.5 ms" in line and "80.0 (70.0 to 90.0)" in line
    assert line.endswith("sealed  2.00 of layers")
    assert "of layers" not in line_of(_BY_LAYERS, _BY_LAYERS)


def test_a_cell_that_failed_has_its_reason_and_no_figure() -> None:
    cell = SplitCell(workers=3, rtt_ms=0.0, way=TENSORS, fault="no worker came")
    assert line_of(cell, None).endswith("failed: no worker came")
