"""Test what a real child prints: a flood is bounded on disk and in memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.process import output
from meshd.process.interface import ChildSpec
from meshd.process.output import TAIL_LINES
from meshd.process.run import run_to_end

from tests.process.scenes import argv

MIB = 1 << 20


def spec(folder: Path, *flags: str, limit: int = MIB) -> ChildSpec:
    command = argv(*flags, "--die-after", "0")
    return ChildSpec(name="child", argv=command, log=folder / "child.log", log_bytes=limit)


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


async def test_a_flood_is_bounded_on_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "READ_RATE", 64 * MIB)  # as fast as it prints
    tracemalloc.start()
    try:
        ended = await run_to_end(spec(tmp_path, "--flood", str(16 * MIB)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.code == 0
    assert ended.tail[-2:] == ("ready", "last words")
    assert len(ended.tail) == TAIL_LINES
    assert peak < 2 * MIB
    logs = sizes(tmp_path)
    assert sorted(logs) == ["child.log", "child.log.1"] and sum(logs.values()) <= 2 * MIB
    assert "bytes of output were dropped" in (tmp_path / "child.log").read_text()


async def test_a_flood_is_read_no_faster_than_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "READ_RATE", 64 << 10)
    monkeypatch.setattr(output, "READ_SLICE", 0.001)

    ended = await run_to_end(spec(tmp_path, "--flood", str(MIB)))
    assert ended.tail[-1] == "last words", "paused reads must come back until the end"


async def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    ended = await run_to_end(spec(tmp_path, "--long-line", str(MIB)))
    assert ended.tail[0] == f"{'y' * 4096} [{MIB - 4096} bytes more]"


async def test_the_log_is_private_and_kept_over_starts(tmp_path: Path) -> None:
    for _ in range(2):
        await run_to_end(spec(tmp_path))
    log = tmp_path / "child.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert log.read_text().count("last words") == 2


async def test_a_log_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "child.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write log"):
        await run_to_end(spec(tmp_path))


async def test_a_line_may_be_shown_otherwise_than_it_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    made = replace(spec(tmp_path), on_line=told.append, log_filter=lambda line: line.replace("last", "final"))
    ended = await run_to_end(made)
    assert ended.tail == ("ready", "final words")
    assert told == ["ready", "last words"]
    assert "last" not in (tmp_path / "child.log").read_text()
