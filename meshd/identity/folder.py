"""A private folder: files of 0600 in a folder of 0700, replaced atomically, checked when read.

Every file begins with its kind, a version and a checksum, so that a damaged one is told apart from one
that is missing: damage is an error that names the file, never a silent fresh start.
"""

import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.base.files import open_regular

DAEMON = "daemon"  # purpose of the lock that a daemon holds on its home
MEMBERSHIP = "membership"  # file of a home: the mesh that its node is in
INVITE = "join"  # file of a home, of no form: an invite that `meshd service install` left for the first start

_FOLDER_VERSION = 1  # of the form of files: raise it when an older meshd must not use one
_LOOSE = 0o077
_WRITABLE = 0o022
_MAX_LOCK_BYTES = 64


class DamagedFile(UserError):
    """A file whose content cannot be used."""


class NewerFile(UserError):
    """A file that a newer meshd wrote."""


class PrivateFolder:
    """`path` is made at the first write. `mark` is a file whose presence says that the folder is ours."""

    def __init__(self, path: Path, *, mark: str) -> None:
        self.path = path
        self._mark = mark

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return the payload of file `name`, None when there is none. Raises UserError."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            _check_file(path, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(limit + 256)
        except OSError as error:
            raise _unusable(path, error) from None
        finally:
            os.close(descriptor)
        return _unwrap(path, data, limit)

    def exists(self, name: str) -> bool:
        """Return True when there is such a file."""
        return (self.path / name).exists()

    def names(self, ending: str) -> list[str]:
        """Return the sorted names of files with this ending; none when there is no folder. Raises
        UserError.
        """
        try:
            return sorted(path.name for path in self.path.glob(f"*{ending}"))
        except OSError as error:
            raise _unusable(self.path, error) from None

    def write(self, name: str, payload: bytes) -> None:
        """Replace file `name` so that after a crash either the old or the new one is there, whole."""
        self.prepare()
        path = self.path / name
        kind = f"meshd {name} {_FOLDER_VERSION}\n{hashlib.sha256(payload).hexdigest()}\n"
        temporary = self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(kind.encode() + payload)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            self._sync()
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise _unusable(path, error) from None

    def remove(self, name: str) -> None:
        """Delete file `name`, if it exists."""
        try:
            (self.path / name).unlink(missing_ok=True)
            if self.path.exists():
                self._sync()
        except OSError as error:
            raise _unusable(self.path / name, error) from None

    def prepare(self) -> None:
        """Create the folder, or check that it is safe. Raises UserError with the remedy."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check()
        except FileExistsError:
            raise _unusable(self.path, NotADirectoryError()) from None
        except OSError as error:
            raise _unusable(self.path, error) from None

    @contextmanager
    def lock(self, *, holder: str, purpose: str = "") -> Iterator[None]:
        """Lock the folder exclusively; the operating system unlocks it when the process ends, however it
        ends.

        `purpose` is one word for `lock_holder`. Raises UserError naming the pid that holds it.
        """
        self.prepare()
        path = self.path / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from None
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _lock_words(file.read(_MAX_LOCK_BYTES))[0] or "not known"
                raise UserError(
                    f"`{self.path}` is in use by another {holder} (pid {pid})",
                    hint="run `meshd stop`, or set MESHD_HOME to another directory for a second node",
                ) from None
            words = f"{os.getpid()} {purpose}".strip().encode() + b"\n"
            with suppress(OSError):  # it names the holder to others, no more; the lock holds without
                file.seek(0)
                file.write(words)  # over the old one, which takes no room on a full disk
                file.truncate(len(words))
            self._sweep()
            yield

    def _check(self) -> None:
        status = self.path.stat()
        _check_owner(self.path, status)
        loose = stat.S_IMODE(status.st_mode) & _LOOSE
        if not loose:
            return
        # A fresh or an own folder is closed; one that serves something else is left as it is.
        if self.exists(self._mark) and loose & _WRITABLE:
            raise UserError(
                f"`{self.path}` can be written by other users",
                hint=f"check that its files are still yours, then run `chmod 700 {self.path}`",
            )
        if self.exists(self._mark) or not any(self.path.iterdir()):
            self.path.chmod(0o700)
        elif loose & _WRITABLE:
            raise UserError(
                f"`{self.path}` can be written by other users",
                hint=f"run `chmod 700 {self.path}`, or set MESHD_HOME to your own directory",
            )

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        """Remove what killed writers left behind; call it only under the lock."""
        for left in self.path.glob(".*.tmp"):
            with suppress(OSError):
                left.unlink()


def lock_holder(path: Path, *, purpose: str) -> int | None:
    """Return the pid that holds the lock of folder `path` for `purpose`, or None."""
    try:
        with os.fdopen(open_regular(path / "lock"), "rb") as file:
            pid, word = _lock_words(file.read(_MAX_LOCK_BYTES))
            if word != purpose or not pid.isdecimal():
                return None
            try:
                os.kill(int(pid), 0)  # first: trying the lock could be in the way of one that just starts
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(pid)
    except OSError:
        pass
    return None


def _lock_words(data: bytes) -> tuple[str, str]:
    words = [*data.decode("ascii", "replace").split(), "", ""]
    return words[0], words[1]


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UserError(
            f"`{path}` belongs to another user (uid {status.st_uid})",
            hint="run meshd as that user, or set MESHD_HOME to your own directory",
        )


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"`{path}` is not a regular file", hint="move it away")
    _check_owner(path, status)
    if stat.S_IMODE(status.st_mode) & _LOOSE:
        raise UserError(
            f"`{path}` can be read by other users (mode {stat.S_IMODE(status.st_mode):04o})",
            hint=f"run `chmod 600 {path}`; if others use this machine, consider its secrets exposed",
        )


def _unwrap(path: Path, data: bytes, limit: int) -> bytes:
    head, _, rest = data.partition(b"\n")
    checksum, _, payload = rest.partition(b"\n")
    words = head.split(b" ")
    if words[:2] != [b"meshd", path.name.encode()] or len(words) != 3:
        raise damaged(path, "its first line is wrong")
    if not words[2].isdigit() or int(words[2][:9]) < _FOLDER_VERSION:
        raise damaged(path, "its first line is wrong")
    if int(words[2][:9]) > _FOLDER_VERSION:
        raise NewerFile(
            f"`{path}` was written by a newer meshd: it has form {words[2][:9].decode()}, "
            f"and meshd {__version__} reads form {_FOLDER_VERSION}",
            hint="run `meshd upgrade`; or, to stay with this version, restore the directory from a backup "
            "that it made",
        )
    if len(payload) > limit:
        raise damaged(path, f"it has more than {limit} bytes")
    if hashlib.sha256(payload).hexdigest().encode() != checksum:
        raise damaged(path, "its checksum does not match")
    return payload


def damaged(path: Path, why: str) -> DamagedFile:
    """Return the error for a file whose content cannot be used."""
    return DamagedFile(
        f"`{path}` is damaged: {why}",
        hint="restore it from a backup, or move it away: its contents will be lost, and this node "
        "may need a new invite",
    )


def _unusable(path: Path, error: OSError) -> UserError:
    if isinstance(error, NotADirectoryError):
        file = next((parent for parent in (path, *path.parents) if parent.is_file()), path)
        return UserError(f"`{file}` is not a directory", hint="set MESHD_HOME to a directory")
    reason = (error.strerror or type(error).__name__).lower()
    return UserError(f"`{path}` cannot be used: {reason}", hint="check the directory, its owner and its disk")
