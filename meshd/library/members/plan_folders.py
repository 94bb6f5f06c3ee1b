"""Folders with the headers of models for one plan each: removed with the plan, or later if that was killed.

Of models of Hugging Face they are in a folder of the cache, of models of members beside other models. Several
nodes of a user may share them, so that only what is older than any plan is removed by others.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from meshd.library.members.part_files import PARTS_FOLDER, lock_of
from meshd.library.walk import folders_in

PLAN_KIND = "plan"  # with which the names of those beside other models begin
_HEADERS_FOLDER = ".headers"  # in the cache
_OLD_SECONDS = 24 * 3600.0


def hub_plans(cache: Path) -> Path:
    """Where those of models of Hugging Face are."""
    return cache / _HEADERS_FOLDER


def remove_old_plans(cache: Path, models: Path) -> None:
    """Those that plans have left behind; no error for what cannot be removed."""
    with suppress(OSError):
        places = [
            *folders_in(models, f"{PLAN_KIND}-"),
            *folders_in(models / PARTS_FOLDER, f"{PLAN_KIND}-"),
            *folders_in(hub_plans(cache), ""),
        ]
        if places:
            began_before = _now(cache) - _OLD_SECONDS
            for place in places:
                _remove_old(place, began_before)


def _now(folder: Path) -> float:
    """By the clock that stamps files. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime


def _remove_old(place: Path, began_before: float) -> None:
    with suppress(OSError):
        if place.lstat().st_mtime < began_before:
            shutil.rmtree(place, ignore_errors=True)
            lock_of(place).unlink(missing_ok=True)
