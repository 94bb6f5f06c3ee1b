"""The demo's own files: what it lays beside the user's, and that it leaves the user's as it was."""

from pathlib import Path

import pytest
from meshd.demo.run import other_copy


@pytest.mark.parametrize("whole", [True, False])
def test_the_other_copy_leaves_the_file_untouched(tmp_path: Path, whole: bool) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF and more")
    before = model.stat()
    copy = other_copy(model, tmp_path / "demo", whole=whole)
    after = model.stat()
    assert copy.name != model.name
    assert copy.read_bytes() == model.read_bytes()
    assert (after.st_ctime_ns, after.st_nlink) == (before.st_ctime_ns, 1)
    assert copy.is_symlink() is not whole
