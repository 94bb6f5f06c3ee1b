"""Verbs that work on the files of a home while no daemon runs, under the home's lock."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from meshd.admin.client import NotRunning, ask
from meshd.admin.request import Request
from meshd.base.errors import UserError

if TYPE_CHECKING:  # cryptography, which a running daemon spares the verb
    from meshd.admin.authority import Authority
    from meshd.identity.keystore import Home

R = TypeVar("R")


def ask_or_use_files(home: Path, request: Request[R], use_files: "Callable[[Authority, Home], R]") -> R:
    """Return the daemon's reply, or what `use_files` makes of the locked home if none runs.

    Raises MeshdError.
    """
    try:
        return ask(home, request)
    except NotRunning:
        from meshd.admin.authority import Authority

        with home_locked(home) as store:
            return use_files(Authority.load(store), store)


@contextlib.contextmanager
def home_locked(path: Path) -> "Iterator[Home]":
    """Lock the home. Raises UserError when it does not exist, or is in use."""
    from meshd.identity.keystore import Home

    if not path.is_dir():
        raise UserError(
            f"there is no node in `{path}`",
            hint="set MESHD_HOME to a node's directory, or start one with `meshd worker` or `meshd serve`",
        )
    home = Home(path)
    with home.lock():
        yield home
