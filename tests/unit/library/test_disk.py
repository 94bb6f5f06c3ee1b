"""Sizes, space and hints at the disk: at their bounds, and where something cannot be looked at."""

import errno
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library.disk import (
    RESERVED_BYTES,
    DiskFault,
    bytes_on_disk,
    cannot_write,
    check_space,
    free_bytes,
    hint_for_missing,
    is_file,
    is_folder,
    size_of,
)

from tests.unit.library.models import put

Usage = namedtuple("Usage", "total used free")
TOO_LONG = Path("/" + "x" * 5000)  # looking at it is an error


def test_what_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    path = put(tmp_path / "m.gguf", b"12345")
    assert is_file(path) and not is_folder(path) and is_folder(tmp_path) and not is_file(tmp_path)
    assert size_of(path) == 5 and bytes_on_disk(path) % 512 == 0
    for gone in (tmp_path / "gone", TOO_LONG):
        assert not is_file(gone) and not is_folder(gone)
        assert size_of(gone) == bytes_on_disk(gone) == 0


def test_holes_take_no_space(tmp_path: Path) -> None:
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(1 << 24)
    assert size_of(path) == 1 << 24 > bytes_on_disk(path)


@pytest.mark.parametrize(
    ("lacking", "beyond", "fits"),
    [(0, -RESERVED_BYTES, True), (10, 0, True), (10, -1, False), (10, -RESERVED_BYTES - 1, False)],
)
def test_what_is_lacking_fits_beside_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: int, beyond: int, fits: bool
) -> None:
    """`beyond`: what is free, beyond that and the reserve."""
    free = lacking + RESERVED_BYTES + beyond
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: Usage(1 << 40, 0, free))
    place = tmp_path / "to/be/made"
    assert free_bytes(place) == free
    if fits:
        check_space(place, lacking, hint="free some")
        return
    with pytest.raises(UserError) as caught:
        check_space(place, lacking, hint="free some")
    assert not isinstance(caught.value, DiskFault), "a member may have made the size up"
    assert caught.value.hint == "free some" and f"`{tmp_path}`" in caught.value.what
    assert ("must stay free" in caught.value.what) == (lacking <= free)


def test_a_repository_that_is_given_as_a_path_is_hinted_at(tmp_path: Path) -> None:
    repository = tmp_path / "org/repo"
    assert "`hf:org/repo`" in hint_for_missing(repository)
    (tmp_path / "org").mkdir()
    for other in (repository, tmp_path / "none/m.gguf", Path("m")):
        assert "hf:" not in hint_for_missing(other)


def test_a_failed_write_says_what_to_do(tmp_path: Path) -> None:
    full = cannot_write(tmp_path, OSError(errno.ENOSPC, "full"), space_hint="free some", variable="X")
    assert full.hint == "free some" and "full" in full.what and isinstance(full, DiskFault)
    denied = cannot_write(
        tmp_path, PermissionError(errno.EACCES, "Denied", str(tmp_path / "f")), space_hint="", variable="X"
    )
    assert "set X" in denied.hint and f"`{tmp_path / 'f'}`: denied" in denied.what
    nameless = cannot_write(tmp_path, OSError("Odd " + "x" * 999), space_hint="", variable="X")
    assert f"`{tmp_path}`: odd" in nameless.what and len(nameless.what) < 400
