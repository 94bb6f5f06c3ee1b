"""A cache's file is the old one or the new one, whole, and nothing is left beside it."""

from pathlib import Path

import pytest
from meshd.base.replaced_file import replace_file


def test_a_file_is_made_with_its_folder_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept"
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_replaced_stays_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
