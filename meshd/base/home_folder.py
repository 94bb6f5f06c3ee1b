"""Find the user's home directory, and expand `~` in paths.

A service or a container may run as a user id that has no name, no home directory and no variable HOME.
"""

from pathlib import Path

from meshd.base.errors import UserError

_NOWHERE = Path("/nonexistent")  # as Debian writes it for users without a home directory


def home_folder() -> Path:
    """Return the user's home directory. Raises UserError if there is none."""
    try:
        return Path.home()
    except RuntimeError:
        raise UserError(
            "this user has no home directory",
            hint="set HOME, or MESHD_HOME and MESHD_CACHE, to directories that meshd may write to",
        ) from None


def expanded(path: Path | str) -> Path:
    """Return the path with `~` and `~USER` expanded. Raises UserError if there is no such home directory."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise UserError(
            f"`{path}` cannot be resolved: `{user}` has no known home directory",
            hint=f"give the path without `{user}`",
        ) from None


def in_home(path: str) -> Path:
    """Return a place that other programs use; without a home directory, one that does not exist."""
    try:
        return Path.home() / path
    except RuntimeError:
        return _NOWHERE / path
