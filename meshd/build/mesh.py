"""Names by which other packages still know what is in native.py."""

from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.native import build, find, read_bin_dir
from meshd.build.native import filled_tree as untouched
from meshd.build.native import folder_of_ours as folder_of

__all__ = ["build", "find", "folder_of", "not_built", "read_bin_dir", "untouched"]


def not_built(_cache: Path, what: str) -> UserError:
    """As native.not_built."""
    return native.not_built(what)
