"""Test how steps of a clock are counted by the phases of a head's log."""

from tests.bench.start_trips import lines, role_began, trips
from tests.bench.stepped import Step, steps_of

LOG = """2026-11-26T10:00:00.000000Z [info     ] link_up peer=a
2026-11-26T10:00:02.000000Z [info     ] mesh_joined mesh=m
2026-11-26T10:00:03.000000Z [info     ] link_up peer=b
2026-11-26T10:00:04.000000Z [info     ] link_up peer=c
2026-11-26T10:00:05.000000Z [info     ] load_started count=2
2026-11-26T10:00:06.000000Z [info     ] plan why=x
2026-11-26T10:00:07.000000Z [info     ] model_state model=m state=loading
2026-11-26T10:00:08.000000Z [info     ] model_state model=m state=ready
no line of the log
"""
BEGAN = 1795687201.0  # 10:00:01


def test_steps_since_the_beginning_are_counted_until_each_phase() -> None:
    steps = [Step(BEGAN + seconds, True, 0) for seconds in (-0.5, 0.5, 2.5, 3.5, 4.5, 6.5)]
    assert trips(LOG, steps, BEGAN) == {
        "joined": 0.5,
        "first link": 0.5,
        "asking": 1.5,
        "plan": 2.0,
        "ready": 2.5,
    }


def test_the_role_begins_with_the_first_state_of_its_model() -> None:
    assert role_began(LOG, BEGAN) == BEGAN + 6


def test_the_fewest_count() -> None:
    assert lines("new", 2, [{"joined": 5.0, "ready": 9.0}, {"joined": 3.5}]) == [
        "new home, 2 workers, until joined: 3.5 (5, 3.5)",
        "new home, 2 workers, until ready: 9 (9)",
    ]


def test_steps_are_read_from_what_the_networks_print() -> None:
    log = '{"pid": 3}\n{"step": 1, "at": 5.5, "quiet": false, "bytes": 7}\n'
    assert steps_of(log) == [Step(5.5, False, 7)]
