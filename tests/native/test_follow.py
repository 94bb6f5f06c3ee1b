"""Test what follow.py says of a release: how tests are counted, the table, and the releases it knows."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from meshd.build.interface import LLAMA_SERVER, MESH_PROGRAM
from meshd.build.pin import read_pin

from tests.e2e.models import stock
from tests.native import build, suite
from tests.native.build import MeshBuild
from tests.native.follow import Outcome, table
from tests.native.releases import package_version, read_releases
from tests.native.suite import FILES, Count, count, run_mesh_tests, run_processes, split

GOOD = Count(passed=3)


def _program(folder: Path, body: str) -> MeshBuild:
    program = folder / "mesh-tests"
    program.write_text(f"#!{sys.executable}\n{body}\n")
    program.chmod(0o755)
    return MeshBuild(folder)


def test_the_releases_are_older_than_the_pin() -> None:
    versions = [tuple(map(int, one.version.split("."))) for one in (*read_releases(), read_pin())]
    assert len(versions) >= 3
    assert versions == sorted(set(versions))
    for release in read_releases():
        assert len(release.sdist.sha256) == 64
        assert package_version(release) in release.sdist.file


def test_a_test_is_counted_by_what_came_of_it() -> None:
    report = ElementTree.fromstring(
        "<r><testcase/><testcase/><testcase><skipped/></testcase>"
        "<testcase><failure/></testcase><testcase><error/></testcase></r>"
    )
    found = count(report.iter("testcase"))
    assert found == Count(passed=2, failed=2, skipped=1)
    assert str(found) == "2 of 4, 1 skipped"
    assert not found.good
    assert not Count().good  # nothing has run
    assert GOOD.good


def test_tests_of_texts_are_counted_by_themselves() -> None:
    report = ElementTree.fromstring(
        '<r><testcase name="test_a_head_answers_as_one_node_does[1]"/><testcase name="test_loss"/>'
        '<testcase name="test_it_is_answered_as_by_one_node"><failure/></testcase></r>'
    )
    assert split(list(report)) == (Count(1, 1), Count(1))


def test_a_run_that_came_to_no_end_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "FILES", (Path("tests/e2e/test_that_is_not_there.py"),))
    monkeypatch.setattr(suite, "JOBS", 0)
    texts, others = run_processes(None)
    assert not texts.good
    assert others.failed == 1


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("print('passed one'); print('passed two')", Count(2)),
        ("print('passed one'); print('FAILED two: why'); raise SystemExit(1)", Count(1, 1)),
        ("print('passed one', flush=True); import os; os.abort()", Count(1, 1)),  # as a sanitizer does
        ("raise SystemExit(1)", Count(0, 1)),
    ],
)
def test_mesh_tests_are_counted_by_their_lines(body: str, expected: Count, tmp_path: Path) -> None:
    assert run_mesh_tests(_program(tmp_path, body)) == expected


def test_the_table_says_what_is_not_good(capsys: pytest.CaptureFixture[str]) -> None:
    good = Outcome("0.3.36", "0.25.3", True, GOOD, GOOD, Count(2, 0, 1), 1.6)
    unbuilt = Outcome("0.3.37", "", False, Count(), Count(), Count(), 0.2)
    wrong = Outcome("0.3.38", "0.26.0", True, GOOD, Count(1, 1), GOOD, 2)
    assert [one.good for one in (good, unbuilt, wrong)] == [True, False, False]
    assert table([good, unbuilt, wrong]).splitlines()[2:] == [
        "| 0.3.36 | 0.25.3 | yes | 3 of 3 | 3 of 3 | 2 of 2, 1 skipped | 2 |",
        "| 0.3.37 |  | NO |  |  |  | 0 |",
        "| 0.3.38 | 0.26.0 | yes | 3 of 3 | 1 of 2 | 3 of 3 | 2 |",
    ]


def test_the_suite_takes_the_other_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both its programs and its llama-server."""
    monkeypatch.setenv(build.OTHER, str(tmp_path))
    stock.cache_clear()
    try:
        assert stock().binaries == {LLAMA_SERVER: tmp_path / "llama-server"}
    finally:
        stock.cache_clear()
    found = build.find()
    assert found is not None
    assert found.server == tmp_path / MESH_PROGRAM


def test_the_suite_has_the_tests_of_texts_losses_and_pushes() -> None:
    names = [path.name for path in FILES]
    assert {"test_mesh_server.py", "test_mesh_server_hung.py", "test_mesh_server_push.py"} <= {*names}
    assert "test_mesh_server_hostile.py" in names
    assert "test_mesh_push.py" not in names
