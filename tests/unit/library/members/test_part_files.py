"""A model that is being pulled, on the disk: found again, never half believed, never filling it."""

import errno
import os
import stat
from collections import namedtuple
from pathlib import Path

import pytest
from blake3 import blake3
from meshd.base.errors import UserError
from meshd.library import disk
from meshd.library.members.part_files import (
    PARTS_FOLDER,
    PLAN_KIND,
    PartFiles,
    hub_plans,
    is_locked,
    lock_of,
    remove_old_plans,
)
from meshd.library.pulled_models import WHOLE_KIND
from meshd.model.weights_index import PIECE_BYTES, PieceIndex

DATA = (os.urandom(PIECE_BYTES) + b"x" * PIECE_BYTES + b"tail", b"second file")
NAMES = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
PIECES = [DATA[0][at : at + PIECE_BYTES] for at in range(0, len(DATA[0]), PIECE_BYTES)] + [DATA[1]]
INDEX = PieceIndex(tuple(map(len, DATA)), b"".join(blake3(one).digest() for one in PIECES))
Usage = namedtuple("Usage", "total used free")


def opened(folder: Path) -> PartFiles:
    files = PartFiles(folder, INDEX, NAMES)
    files.open()
    return files


def test_pieces_are_found_again_and_the_rest_is_not_believed(tmp_path: Path) -> None:
    files = opened(tmp_path)
    assert files.present(range(INDEX.count)) == set()
    for number in (3, 1):
        files.write(number, PIECES[number])
    files.close()
    path = files.part_paths[0]
    with path.open("r+b") as file:  # as a crash may leave it: something there that is no piece
        file.write(b"half")
    files = opened(tmp_path)
    assert files.present(range(INDEX.count)) == {1, 3}
    for number in (0, 2):
        files.write(number, PIECES[number])
    files.flush()
    states = files.finish()
    files.close()
    assert [path.read_bytes() for path in files.final_paths] == list(DATA)
    assert [path.name for path in files.final_paths] == list(NAMES)
    assert [state.size for state in states] == list(INDEX.sizes)
    assert not path.exists() and files.final_paths[0].parent.parent == tmp_path


def test_the_same_bytes_under_another_name_go_on(tmp_path: Path) -> None:
    files = opened(tmp_path)
    for number in (1, 3):
        files.write(number, PIECES[number])
    files.close()
    others = PartFiles(tmp_path, INDEX, ("m-00002-of-00002.gguf", "z.gguf"))
    others.open()
    assert others.present(range(INDEX.count)) == {1, 3}
    assert sorted(path.name for path in others.part_paths[0].parent.iterdir()) == sorted(
        path.name for path in others.part_paths
    )
    others.close()


def test_nothing_is_written_once_it_is_closed(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.close()
    with pytest.raises(UserError, match="not being pulled any more"):
        files.write(0, PIECES[0])


def test_one_at_a_time(tmp_path: Path) -> None:
    first = opened(tmp_path)
    second = PartFiles(tmp_path, INDEX, NAMES)
    with pytest.raises(UserError, match="is being pulled into"):
        second.open()
    second.close()
    first.close()
    opened(tmp_path).close()


def test_the_reserve_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(tmp_path)
    free = disk.RESERVED_BYTES + PIECE_BYTES
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, free))
    files.check_space(PIECE_BYTES)
    with pytest.raises(UserError, match="are needed") as caught:
        files.check_space(PIECE_BYTES + 1)
    assert "not fetched again" in caught.value.hint
    files.write(0, PIECES[0])
    free -= 1
    with pytest.raises(UserError, match="not enough space"):
        files.write(1, PIECES[1])
    files.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    files = opened(tmp_path)

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        with pytest.raises(UserError, match="cannot write" if code == errno.EIO else "the disk is full"):
            files.write(0, PIECES[0])
    files.close()


def test_a_file_that_is_too_long_is_cut(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(3, PIECES[3])
    files.close()
    with files.part_paths[1].open("ab") as file:
        file.write(b"more")
    files = opened(tmp_path)
    assert files.present([3]) == {3} and files.part_paths[1].stat().st_size == len(DATA[1])
    files.discard()
    files.close()
    assert not files.part_paths[0].exists()


@pytest.mark.parametrize("is_lock", [False, True])
def test_a_link_in_place_of_a_file_or_the_lock_is_not_followed(tmp_path: Path, is_lock: bool) -> None:
    files = PartFiles(tmp_path, INDEX, NAMES)
    part = files.part_paths[0].parent
    part.mkdir(parents=True)
    link = part.with_name(f"{part.name}.lock") if is_lock else files.part_paths[0]
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot write"):
        files.open()
    files.close()
    assert not (tmp_path / "elsewhere").exists()


def test_its_folders_are_this_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = opened(tmp_path / "cache/models")
    finally:
        os.umask(before)
    part = files.part_paths[0].parent
    for folder in (tmp_path / "cache/models", part.parent, part):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files.finish()
    assert stat.S_IMODE(files.final_paths[0].parent.stat().st_mode) == 0o700
    files.close()


def test_files_of_another_kind_are_apart_and_have_holes(tmp_path: Path) -> None:
    """Test that a header's files begin apart from the whole model's, and lack what nobody wanted."""
    whole = opened(tmp_path)
    names = ("m-1.header", "m-2.header")
    files = PartFiles(tmp_path, INDEX, names, kind="header")
    files.open()
    assert files.part_paths[0].parent != whole.part_paths[0].parent
    whole.close()
    files.write(0, PIECES[0])
    assert files.read(0, PIECE_BYTES - 4, 8) == PIECES[0][-4:]
    files.lengthen()
    assert files.present(range(INDEX.count)) == {0}
    files.finish()
    files.close()
    assert [path.name for path in files.final_paths] == list(names)
    assert files.final_paths[0].parent.name.startswith("header-")
    assert files.final_paths[0].read_bytes() == PIECES[0] + bytes(len(DATA[0]) - PIECE_BYTES)
    assert [path.stat().st_size for path in files.final_paths] == list(INDEX.sizes)


DAY = 24 * 3600.0


def folder_of(place: Path, *, age: float) -> Path:
    """A folder with a file in it and its lock beside it, which was last changed so long ago."""
    place.mkdir(parents=True)
    (place / "m.gguf").write_bytes(b"x")
    lock_of(place).touch()
    now = place.stat().st_mtime
    os.utime(place, (now - age, now - age))
    return place


def test_headers_that_plans_left_behind_go_after_a_day(tmp_path: Path) -> None:
    models, cache = tmp_path / "models", tmp_path / "cache"
    parts = models / PARTS_FOLDER
    old = [
        folder_of(place, age=DAY + 60)
        for place in (models / f"{PLAN_KIND}-1", parts / f"{PLAN_KIND}-2", hub_plans(cache) / "3")
    ]
    kept = [
        folder_of(models / f"{PLAN_KIND}-4", age=DAY - 60),
        folder_of(hub_plans(cache) / "5", age=0),
        folder_of(models / "model-6", age=9 * DAY),
        folder_of(parts / "7", age=9 * DAY),
    ]
    remove_old_plans(cache, models)
    assert [place.exists() or lock_of(place).exists() for place in old] == [False] * 3
    assert all((place / "m.gguf").exists() and lock_of(place).exists() for place in kept)
    remove_old_plans(tmp_path / "nothing", tmp_path / "nothing")


def test_a_lock_is_held_while_somebody_pulls(tmp_path: Path) -> None:
    lock = lock_of(tmp_path / "m")
    assert lock == tmp_path / "m.lock" and not is_locked(lock)
    files = opened(tmp_path)
    held = lock_of(files.part_paths[0].parent)
    assert is_locked(held)
    files.close()
    assert not is_locked(held)
    lock.symlink_to(held)
    with pytest.raises(OSError, match="symbolic"):
        is_locked(lock)


def test_a_model_in_its_folder_is_called_by_its_kind_and_content(tmp_path: Path) -> None:
    content = INDEX.content.hex()
    for kind, part in ((WHOLE_KIND, content), (PLAN_KIND, f"{PLAN_KIND}-{content}")):
        files = PartFiles(tmp_path, INDEX, NAMES, kind=kind)
        assert [path.parent for path in files.part_paths] == [tmp_path / PARTS_FOLDER / part] * 2
        assert [path.parent for path in files.final_paths] == [tmp_path / f"{kind}-{content[:16]}"] * 2
