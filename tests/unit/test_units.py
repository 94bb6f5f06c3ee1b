"""Test that what tests/netns measures is one unit of `pytest -n`, and any other file one by itself."""

from pathlib import Path

from tests.conftest import MEASURE, unit_of

ROOT = Path(__file__).parents[2]


def test_what_is_measured_is_one_unit() -> None:
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/netns").glob("test_*.py"))
    alone = [file for file in files if unit_of(f"{file}::test") == "netns"]
    assert {Path(file).name for file in alone} == MEASURE
    assert [unit_of(f"{file}::test") for file in files if file not in alone] == sorted({*files} - {*alone})
