"""Names by which other packages still know what is in native.py."""

from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build import native
from meshd.build.native import build, filled_tree, find, read_bin_dir
from meshd.build.pin import read_pin

__all__ = ["build", "find", "folder_of", "not_built", "read_bin_dir", "untouched"]

untouched = filled_tree


def folder_of(cache: Path, backend: str = "cpu") -> Path:
    """Of the build of the sources as they are now."""
    return builds.folder_of(cache, builds.ours_key(read_pin(), backend))


def not_built(_cache: Path, what: str) -> UserError:
    """As native.not_built."""
    return native.not_built(what)
