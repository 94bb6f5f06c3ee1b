"""The table of `tests.native.bench_table`: medians, the fastest plain process, and the goals."""

from pathlib import Path

from tests.native.bench_table import GOALS, ONE, Found, table

RATES = {
    "box": {"prompt 512": [100.0, 90.0, 110.0], ONE: [50.0]},
    "box, no reuse": {"prompt 512": [120.0], ONE: [40.0]},
    "alone": {"prompt 512": [130.0]},
    "mesh": {"prompt 512": [102.0], ONE: [46.0]},
}


def test_what_is_compared_is_the_fastest_plain_process_of_the_row() -> None:
    lines, met = table(RATES)
    [box, fast, alone, mesh] = [line for line in lines if line.startswith("prompt 512")]
    assert "100 (90 to 110)" in box and "0.83" in box
    assert "1.00" in fast and "1.08" in alone, "one device is no box"
    assert mesh.endswith(f"0.85 goal {GOALS['prompt 512']:g} met")
    assert met


def test_a_goal_that_is_missed_is_said_and_others_have_none() -> None:
    slow = {**RATES, "mesh, one slot": {ONE: [45.0], "prompt 4096": [10.0]}}
    lines, met = table(slow)
    assert not met
    [missed] = [line for line in lines if line.startswith(ONE) and "one slot" in line]
    assert missed.endswith("0.90 goal 0.92 missed")
    [without] = [line for line in lines if line.startswith("prompt 4096")]
    assert "goal" not in without
    assert not any(" requests" in line for line in lines)


def test_what_is_far_is_held_to_no_goal() -> None:
    far = {**RATES, "mesh, one slot u256 20 ms": {ONE: [5.0]}}
    lines, met = table(far)
    assert met
    [line] = [line for line in lines if "20 ms" in line]
    assert "goal" not in line


def test_what_was_measured_too_seldom_is_lacking(tmp_path: Path) -> None:
    found = Found(tmp_path / "found.json")
    found.add("box u512", "prompt 512", 100.0)
    found.add("box u512", "prompt 512", 110.0)
    found.add("mesh", "prompt 512", 90.0)
    expected = {"box u512": ["prompt 512"], "mesh": ["prompt 512", ONE]}
    assert found.lacking(expected, 2) == ["mesh, prompt 512", f"mesh, {ONE}"]
    assert found.lacking({"box u512": ["prompt 512"]}, 2) == []
    assert "box u512" in (tmp_path / "found.txt").read_text()


def test_the_box_is_the_fastest_of_all_micro_batches() -> None:
    rates = {"box u512": {ONE: [50.0]}, "box, no reuse u256": {ONE: [100.0]}, "mesh u512": {ONE: [80.0]}}
    [_, _, mesh] = table(rates)[0]
    assert " 0.80" in mesh and mesh.endswith("missed")
