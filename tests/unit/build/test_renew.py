"""meshd.build.renew: what a build folder compiles from, by content and not by the time of a file."""

import os
from pathlib import Path

from meshd.build.renew import renew

LONG_AGO = 1_000_000_000


def put(folder: Path, name: str, text: str, at: int = LONG_AGO) -> Path:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    os.utime(place, (at, at))
    return place


def test_only_what_differs_is_newer_than_what_was_compiled(tmp_path: Path) -> None:
    sources, copy = tmp_path / "sources", tmp_path / "copy"
    put(sources, "a.cpp", "a")
    put(sources, "tests/b.cpp", "b")
    renew(copy, sources)
    for name in ("a.cpp", "tests/b.cpp"):
        os.utime(copy / name, (LONG_AGO + 5, LONG_AGO + 5))
    put(sources, "a.cpp", "A", at=LONG_AGO - 5)  # of another checkout, and older
    put(sources, "c.cpp", "c")
    renew(copy, sources)
    assert {str(path.relative_to(copy)) for path in copy.rglob("*.cpp")} == {"a.cpp", "tests/b.cpp", "c.cpp"}
    assert (copy / "a.cpp").read_text() == "A"
    assert (copy / "a.cpp").stat().st_mtime > LONG_AGO + 5
    assert (copy / "tests/b.cpp").stat().st_mtime == LONG_AGO + 5


def test_what_is_gone_goes(tmp_path: Path) -> None:
    sources, copy = tmp_path / "sources", tmp_path / "copy"
    put(copy, "tests/old.cpp", "old")
    put(sources, "a.cpp", "a")
    renew(copy, sources)
    assert [path.name for path in copy.rglob("*") if path.is_file()] == ["a.cpp"]


def test_a_file_and_a_folder_change_places(tmp_path: Path) -> None:
    sources, copy = tmp_path / "sources", tmp_path / "copy"
    put(copy, "one/deep/old.cpp", "old")
    put(copy, "other", "old")
    put(sources, "one", "file")
    put(sources, "other/a.cpp", "a")
    renew(copy, sources)
    assert (copy / "one").read_text() == "file"
    assert (copy / "other/a.cpp").read_text() == "a"
