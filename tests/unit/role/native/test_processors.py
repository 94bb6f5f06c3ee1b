"""As many threads as llama.cpp takes by itself."""

from pathlib import Path

import pytest
from meshd.role.native import processors


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
