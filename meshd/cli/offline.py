"""Verbs that work on the files of a home while no daemon runs, under the home's lock."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from meshd.admin.authority import Authority
from meshd.base.errors import UserError
from meshd.identity.keystore import Home


@contextlib.contextmanager
def home_locked(path: Path) -> Iterator[Home]:
    """Lock the home. Raises UserError when it does not exist, or is in use."""
    if not path.is_dir():
        raise UserError(
            f"there is no node in `{path}`",
            hint="set MESHD_HOME to a node's directory, or start one with `meshd worker` or `meshd serve`",
        )
    home = Home(path)
    with home.lock():
        yield home


@contextlib.contextmanager
def authority(path: Path) -> Iterator[tuple[Home, Authority]]:
    """Yield the locked home and what its node may decide. Raises UserError when it is in no mesh."""
    with home_locked(path) as home:
        yield home, Authority.load(home)
