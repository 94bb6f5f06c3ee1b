"""Folders with the headers of models for one plan each: removed with the plan, or later if that was killed.

Of models of Hugging Face they are in a folder of the cache, of models of members beside other models. Several
nodes of a user may share them, so that only what is older than any plan is removed by others.
"""

import shutil
import time
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
    began_before = time.time() - _OLD_SECONDS
    for folder, prefix in (
        (models, f"{PLAN_KIND}-"),
        (models / PARTS_FOLDER, f"{PLAN_KIND}-"),
        (hub_plans(cache), ""),
    ):
        with suppress(OSError):
            for place in folders_in(folder, prefix):
                _remove_old(place, began_before)


def _remove_old(place: Path, began_before: float) -> None:
    with suppress(OSError):
        if place.lstat().st_mtime < began_before:
            shutil.rmtree(place, ignore_errors=True)
            lock_of(place).unlink(missing_ok=True)
