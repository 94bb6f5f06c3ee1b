"""Test what follows from starts that were timed: phases by the log, medians, goals."""

import pytest

from tests.bench.start_figures import StartTimes, medians, phases, promises, table

LOG = """\
2026-11-26T03:26:29.000000Z [info     ] load_started area=serve count=7
[meshd] started, pid 7
2026-11-26T03:26:32.100000Z [info     ] api_listening area=gateway url=http://127.0.0.1:1
2026-11-26T03:26:32.200000Z [info     ] load_started area=serve count=1
2026-11-26T03:26:32.300000Z [info     ] plan area=serve why=state=ready
2026-11-26T03:26:32.400000Z [info     ] child_ready area=process child=mesh-server
2026-11-26T03:26:32.500000Z [info     ] child_ready area=process child=llama-server
2026-11-26T03:26:32.600000Z [info     ] model_state area=serve state=ready why=''
2026-11-26T03:26:33.600000Z [info     ] load_started area=serve count=2
"""
BEGAN = 1795663591.0  # 03:26:31


def test_phases_end_with_the_first_event_after_the_beginning() -> None:
    found = phases(LOG, BEGAN, BEGAN + 2.0)
    assert found == pytest.approx(
        {
            "first line": 1.1,
            "api": 1.1,
            "asking": 1.2,
            "plan": 1.3,
            "server ready": 1.5,
            "model ready": 1.6,
            "token": 2.0,
        }
    )


def test_a_log_without_events_tells_only_of_the_token() -> None:
    assert phases("", BEGAN, BEGAN + 3.0) == {"token": 3.0}


@pytest.mark.parametrize(("seconds", "held"), [(2.0, True), (2.1, False)])
def test_the_median_of_each_kind_is_held_to_its_goal(seconds: float, held: bool) -> None:
    tries = [StartTimes("warm", {"api": 1.0, "token": one}, one / 10) for one in (0.5, seconds, 9.0)]
    assert medians(tries, "warm") == {"api": 1.0, "token": seconds}
    [promise] = promises(tries)
    assert promise.held is held
    headers, rows = table(tries)
    assert [row[:4] for row in rows] == [
        ("warm", "api", "1.00", "1.00"),
        ("warm", "token", f"{seconds:.2f}", f"{seconds - 1:.2f}"),
    ]
    assert rows[1][4:] == ("0.50 to 9.00", "≤ 2.0", f"{seconds / 10:.2f}") and {len(row) for row in rows} == {
        len(headers)
    }
