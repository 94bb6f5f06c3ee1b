"""The patches as commits and back: what is not changed keeps its bytes."""

from pathlib import Path

import pytest

from tests.native.patch_series import commit_series, git, write_series

MESSAGE = "rpc : {0}\n\nWhy: to see it.\n\nUpstream: none known.\nTest: this one."


def change(source: Path, line: str, *words: str) -> None:
    with (source / "a.txt").open("a") as file:
        file.write(f"{line}\n")
    git(source, "commit", "--quiet", "--all", "--message", MESSAGE.format(line), *words)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """With two patches in `patches`, the first as another git has written it."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.txt").write_text("stock\n")
    (tmp_path / "patches").mkdir()
    commit_series(made, tmp_path / "patches")
    change(made, "one")
    change(made, "two")
    write_series(made, tmp_path / "patches")
    first = tmp_path / "patches" / "0001-rpc-one.patch"
    first.write_text(first.read_text().replace("| 1 +\n", "|    1 +\n"))
    first.rename(first.with_name("0001-rpc-one-by-another-name.patch"))
    again = tmp_path / "again"
    again.mkdir()
    (again / "a.txt").write_text("stock\n")
    commit_series(again, tmp_path / "patches")
    return again


def test_what_is_as_it_was_keeps_its_bytes(tmp_path: Path, source: Path) -> None:
    patches = tmp_path / "patches"
    assert "|    1 +\n" in (patches / "0001-rpc-one-by-another-name.patch").read_text()
    assert write_series(source, patches) == []
    change(source, "three")
    assert write_series(source, patches) == ["0003-rpc-three.patch"]
    assert [path.name[:4] for path in sorted(patches.iterdir())] == ["0001", "0002", "0003"]
    assert "\nFrom: meshd maintainers <meshd@localhost>\n" in (patches / "0003-rpc-three.patch").read_text()


def test_a_changed_message_and_a_patch_that_is_gone_are_seen(tmp_path: Path, source: Path) -> None:
    patches = tmp_path / "patches"
    git(source, "commit", "--quiet", "--amend", "--message", MESSAGE.format("two, better"))
    assert write_series(source, patches) == ["0002-rpc-two-better.patch", "0002-rpc-two.patch"]
    git(source, "reset", "--quiet", "--hard", "HEAD^")
    assert write_series(source, patches) == ["0002-rpc-two-better.patch"]
    assert [path.name for path in patches.iterdir()] == ["0001-rpc-one-by-another-name.patch"]


def test_a_patch_before_others_changes_only_their_numbers(tmp_path: Path, source: Path) -> None:
    patches = tmp_path / "patches"
    second = (patches / "0002-rpc-two.patch").read_text()
    git(source, "reset", "--quiet", "--hard", "HEAD^")
    (source / "b.txt").write_text("new\n")
    git(source, "add", "b.txt")
    git(source, "commit", "--quiet", "--message", MESSAGE.format("between"))
    git(source, "am", "--quiet", str(patches / "0002-rpc-two.patch"))
    write_series(source, patches)
    assert (patches / "0003-rpc-two.patch").read_text() == second
    assert not (patches / "0002-rpc-two.patch").exists()
