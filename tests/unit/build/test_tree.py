"""meshd.build.tree: filling it, and what an interruption leaves."""

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build.pin import Pin, PinnedFile
from meshd.build.tree import Tree, renew

ONE = "line 1\nline 2\n"


def _pin(text: str = ONE) -> Pin:
    files = {"one.c": hashlib.sha256(text.encode()).hexdigest()}
    sdist = PinnedFile("x==1", "x-1.tar.gz", "", "x-1/vendor/up")
    return Pin("up", "1", "1", "c" * 40, "7.0.0", "MIT", sdist, files, "")


def _archive(path: Path, members: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            info.mode = 0o755 if name.endswith(".sh") else 0o600
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    archive = _archive(
        tmp_path / "x.tar.gz",
        {
            "x-1/other": "no",
            "x-1/vendor/up/one.c": ONE,
            "x-1/vendor/up/run.sh": "#!/bin/sh\n",
            "x-1/vendor/up/.git": "gitdir: nowhere",
            "x-1/vendor/up/models/large.gguf": "large",
            "x-1/vendor/up/../../../escaped": "evil",
        },
    )
    filled = Tree(tmp_path / "tree")
    filled.fill_from_archive(archive, _pin(), origin="c1")
    return filled


def test_takes_only_what_is_needed_from_the_archive(tree: Tree, tmp_path: Path) -> None:
    assert sorted(path.name for path in tree.source.rglob("*")) == ["one.c", "run.sh"]
    assert (tree.source / "run.sh").stat().st_mode & 0o100
    assert not list(tmp_path.rglob("escaped"))
    assert tree.holds("c1")
    assert not tree.holds("c2")


def test_another_commit_is_refused_and_does_not_count(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "x.tar.gz", {"x-1/vendor/up/one.c": "other\n"})
    tree = Tree(tmp_path / "tree")
    with pytest.raises(UserError, match=r"is not llama\.cpp at the pinned commit: `one\.c` differs"):
        tree.fill_from_archive(archive, _pin(), origin="c1")
    assert not tree.holds("c1")


def test_a_folder_of_the_users_is_copied_and_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in ("build-mine", "common", ".git", "models", "tools/models"):
        (source / folder).mkdir(parents=True)
    for file in ("build-mine/CMakeCache.txt", "common/build-info.in", ".git/HEAD", "tools/models/keep"):
        (source / file).touch()
    (source / "one.c").write_text(ONE)
    tree = Tree(tmp_path / "tree")
    tree.fill_from_folder(source, _pin(), origin="c1")
    (tree.source / "one.c").write_text("changed there")
    assert (source / "one.c").read_text() == ONE
    files = [str(path.relative_to(tree.source)) for path in tree.source.rglob("*") if path.is_file()]
    assert sorted(files) == ["common/build-info.in", "one.c", "tools/models/keep"]


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is not a llama\.cpp source tree"):
        Tree(tmp_path / "tree").fill_from_folder(tmp_path / "empty", _pin(), origin="c1")


def test_half_of_a_source_does_not_count(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filled anew, and stopped at the first file."""

    def stop(*_of: object) -> None:
        raise KeyboardInterrupt

    for removed in ("rmtree", "copytree"):
        tree.fill_from_folder(tree_source(tmp_path), _pin(), origin="c1")
        assert tree.holds("c1")
        with monkeypatch.context() as stopped:
            stopped.setattr(f"shutil.{removed}", lambda *_args, **_options: stop())
            with pytest.raises(KeyboardInterrupt):
                tree.fill_from_folder(tree_source(tmp_path), _pin(), origin="c1")
        assert not tree.holds("c1")


def tree_source(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "one.c").write_text(ONE)
    return source


def test_an_origin_that_cannot_be_read_means_begin_again(tree: Tree) -> None:
    for content in (b"", b"c", b"c11", b"\xff", b"c1" * 5000):
        (tree.folder / "origin").write_bytes(content)
        assert not tree.holds("c1")
    (tree.folder / "origin").unlink()
    assert not tree.holds("c1")


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
