"""As many threads as llama.cpp takes by itself."""

from pathlib import Path

import pytest
from meshd.devices import processors
from meshd.wire.capacity import CORE_SET_LETTERS


@pytest.mark.parametrize(
    ("siblings", "count", "threads"),
    [(["3", "3", "c", "c"], 4, 2), (["1", "2"], 2, 2), ([], 4, 4), ([], 16, 8), (["f"], 1, 1)],
)
def test_cores_count_and_not_their_halves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, siblings: list[str], count: int, threads: int
) -> None:
    for number, text in enumerate(siblings):
        (tmp_path / str(number)).write_text(text)
    monkeypatch.setattr(processors, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr("os.cpu_count", lambda: count)
    assert processors.llama_threads() == threads


def test_a_head_computes_with_no_more_threads_than_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "llama_threads", lambda: 16)
    for usable, threads in ((2, 2), (16, 16), (32, 16)):
        monkeypatch.setattr(processors, "usable_processors", lambda usable=usable: usable)
        assert processors.head_threads() == threads


def test_nodes_on_other_processors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_use(*numbers: int) -> str:
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(numbers), raising=False)
        return processors.core_set()

    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert may_use(0, 1, 2, 3) == ""
    assert may_use(0, 1) == may_use(1, 0) != may_use(2, 3) and len(may_use(0)) == CORE_SET_LETTERS


def test_the_processors_of_a_core_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, text in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / str(number)).write_text(text)
    monkeypatch.setattr(processors, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {3, 2, 1, 0, 9}, raising=False)
    assert processors.cores_of_machine() == [(0, 2), (1, 3), (9,)]
