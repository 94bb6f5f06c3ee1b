"""Mend what is safe to mend: modes of our own files, what killed nodes left behind, kept results of trials.

Nothing of another user is touched, nothing needs root, and nothing is removed that cannot be made again.
"""

import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_number
from meshd.config.tree import Paths
from meshd.doctor.folders import left_downloads, left_files, stale_sockets
from meshd.doctor.kinds import Finding, Kind
from meshd.identity.keystore import IDENTITY, Home

_KEPT_RESULTS = ("device-trials", "native-choice", "native-checks")  # of the cache


@dataclass(frozen=True, slots=True)
class Mended:
    """The outcome of mending: what was done, or why nothing could be (`failed`)."""

    finding: Finding
    did: str = ""
    failed: str = ""


def mend(findings: Sequence[Finding], paths: Paths, now: float) -> list[Mended]:
    """Mend each finding that can be mended. `now`: Unix seconds."""
    done = []
    for found in findings:
        how = _MENDERS.get(found.code)
        if how is None:
            continue
        try:
            done.append(Mended(found, did=how(Path(found.path), paths, now)))
        except UserError as error:
            done.append(Mended(found, failed=error.with_hint))
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            done.append(Mended(found, failed=f"`{error.filename or found.path}`: {reason}"))
    return done


def _close_home(path: Path, paths: Paths, _now: float) -> str:
    _check_home(paths)
    return _limit(path, 0o700)


def _check_home(paths: Paths) -> None:
    """Raise UserError if the home has no key of a node: it may be a folder of something else."""
    if not (paths.home / IDENTITY).exists():
        raise UserError(f"`{paths.home}` holds no node of meshd", hint="check `MESHD_HOME`, which names it")


def _close_cache(path: Path, _paths: Paths, _now: float) -> str:
    return _limit(path, 0o755)


def _close_file(path: Path, _paths: Paths, _now: float) -> str:
    return _limit(path, 0o600)


def _limit(path: Path, most: int) -> str:
    """Take away the rights beyond `most`. Raises UserError for what other users have changed, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(descriptor)
        if about.st_uid != os.geteuid():
            raise UserError(f"`{path}` belongs to another user", hint="fix it as that user")
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISDIR(about.st_mode) and mode & 0o022:
            _check_content(path)
        os.fchmod(descriptor, mode & most)
    finally:
        os.close(descriptor)
    return f"changed the mode of `{path}` from {mode:04o} to {mode & most:04o}"


def _check_content(folder: Path) -> None:
    """Raise UserError if others have put something into a folder to which they could write."""
    for path in folder.iterdir():
        if path.lstat().st_uid != os.geteuid():
            raise UserError(
                f"`{path}` belongs to another user, who put it there", hint="remove it if it is not yours"
            )


def _remove_socket(path: Path, paths: Paths, _now: float) -> str:
    with Home(paths.home).lock():  # so that no node of this home starts meanwhile
        if path not in stale_sockets(paths.home):
            raise UserError(f"`{path}` is in use now")
        path.unlink()
    return f"removed `{path}`"


def _remove_left_files(path: Path, paths: Paths, now: float) -> str:
    _check_home(paths)
    with Home(paths.home).lock():  # which removes some of them itself
        left = left_files(path, now)
        for file in left:
            file.unlink()
    return f"removed temporary files in `{path}`"


def _remove_left_downloads(path: Path, _paths: Paths, now: float) -> str:
    left = [place for place in left_downloads(path, now) if place.lstat().st_uid == os.geteuid()]
    for place in left:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
    return f"removed {in_number(len(left), 'interrupted download')} in `{path}`"


def _forget_trials(_path: Path, paths: Paths, _now: float) -> str:
    for name in _KEPT_RESULTS:
        with suppress(FileNotFoundError):
            (paths.cache / name).unlink()
    return "removed saved checks of devices and programs: the next start repeats them"


_MENDERS: Mapping[str, Callable[[Path, Paths, float], str]] = {
    kind.code: how
    for how, kinds in (
        (_close_home, (Kind.HOME_READABLE, Kind.HOME_CHANGEABLE)),
        (_close_cache, (Kind.CACHE_CHANGEABLE,)),
        (_close_file, (Kind.STATE_READABLE, Kind.KEYS_READABLE, Kind.SETTINGS_READABLE)),
        (_remove_socket, (Kind.SOCKET_STALE,)),
        (_remove_left_files, (Kind.FILES_LEFT,)),
        (_remove_left_downloads, (Kind.DOWNLOADS_LEFT,)),
        (_forget_trials, (Kind.DEVICE_UNFIT,)),
    )
    for kind in kinds
}
