"""Test what follows from starts that were timed: spread, round trips on the path, what is held."""

from datetime import datetime

import pytest

from tests.bench.ready_figures import ReadinessFigures, ReadyTimes, asked_at, promises, table


def starts(workers: int, rtt: float, *seconds: float) -> list[ReadyTimes]:
    return [ReadyTimes(workers=workers, rtt_ms=rtt, seconds=one) for one in seconds]


@pytest.mark.parametrize(("seconds", "kept"), [(0.699, True), (0.701, False)])
def test_a_cell_is_held_to_one_machine_alone_and_eight_round_trips(seconds: float, kept: bool) -> None:
    found = ReadinessFigures((*starts(0, 0.0, 0.2, 0.3, 0.9), *starts(4, 50.0, 0.1, seconds, 0.8)))
    [one] = promises(found)
    assert one.what == "ready, 4 workers, RTT 50: alone + 8 round trips"
    assert one.most == pytest.approx(0.7)
    assert one.held is kept


def test_without_a_distance_nothing_is_promised() -> None:
    assert promises(ReadinessFigures((*starts(0, 0.0, 0.3), *starts(4, 0.0, 9.0)))) == []


def test_the_table_shows_the_spread_and_the_round_trips() -> None:
    runs = (*starts(0, 0.0, 0.3), *starts(2, 0.0, 0.4, 0.5, 0.45), *starts(2, 20.0, 0.59, 0.61, 0.6))
    headers, rows = table(ReadinessFigures(runs))
    assert [list(row) for row in rows] == [
        ["0", "-", "0.300", "0.300 to 0.300", "1", "", "0.000", "", ""],
        ["2", "0", "0.450", "0.400 to 0.500", "3", "", "0.000", "", ""],
        ["2", "20", "0.600", "0.590 to 0.610", "3", "7.5", "0.000", "≤ 0.460", "no"],
    ]
    assert {len(row) for row in rows} == {len(headers)}


LOG = """\
[meshd] started, pid 7
2026-11-21T21:48:46.000000Z [info     ] load_started area=serve count=4
2026-11-21T21:48:46.000001Z [info     ] model_state area=serve state=loading why='asking 4 workers'
2026-11-21T21:48:47.000000Z [info     ] model_state area=serve state=ready why='load_started by nobody'
2026-11-21T21:48:49.477105Z [info     ] load_started area=serve left_out=2 count=0
"""


def test_a_head_began_when_its_log_says_so() -> None:
    times = "2026-11-21T21:48:46+00:00", "2026-11-21T21:48:49.477105+00:00"
    assert asked_at(LOG) == [datetime.fromisoformat(time).timestamp() for time in times]


def test_a_log_without_a_start_tells_nothing() -> None:
    assert asked_at("[meshd] started, pid 7\n") == []
