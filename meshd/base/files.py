"""Open, read and write files with care: logs of bounded size, cache files, and files that users name.

A log is a RotatedFile. A cache file is replaced as a whole or not at all (for state that must survive a
crash: identity/folder.py). A file that a user names may be a pipe or a device by mistake: these never end, or
hang. A service or a container may run as a user id that has no name, no home directory and no variable HOME.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from meshd.base.errors import UserError

ROOT = Path("/")
SECRETS = Path("run/secrets")  # where Docker, Podman and Kubernetes put files for one container
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_CONTAINER_KIND = "run/systemd/container"  # systemd writes it, in LXC and nspawn, for example
_IN_MEMORY = ("tmpfs", "ramfs")
NEW_PREFIX = ".new-"  # of a name that a writer which was killed leaves


class RotatedFile:
    """A file (0600: it may hold prompts) of at most `most` bytes; a full one becomes `NAME.1`.

    A full disk or a folder that has gone costs lines, never the program: `on_lost` hears of the first one.
    """

    def __init__(self, path: Path, *, most: int, on_lost: Callable[[OSError], object] | None = None) -> None:
        self.path = path
        self._most = most
        self._on_lost = on_lost
        self._fd = -1
        self._size = 0
        self.trouble = ""  # why nothing can be written now
        self._lost = 0  # writes, since `take_lost` told

    def open(self) -> None:
        """Create the file and its folder (0700) if needed. Raises OSError; `write` opens it without
        raising.
        """
        if self._fd < 0:
            _make_private(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
            self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append whole lines; `data` larger than the limit gets a file of its own."""
        try:
            self.open()
            if self._size and self._size + len(data) > self._most:
                self.close()
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self.open()
            self._append(data)
        except OSError as error:
            self.close()
            first, self.trouble = not self.trouble, (error.strerror or type(error).__name__).lower()
            self._lost += 1
            if self._on_lost is not None and first:
                self._on_lost(error)

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):  # the disk became full in the middle of a line
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self.trouble = ""

    def take_lost(self) -> int:
        """Return how many writes were lost, once the file can be written again; 0 before and after."""
        if self.trouble:
            return 0
        lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        """Close the file. Idempotent; a later write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LogEnd(NamedTuple):
    """The end of a log: `data` with that of the file before it; size and inode of the newer file."""

    data: bytes
    size: int
    inode: int


def end_of_log(path: Path, most: int) -> LogEnd:
    """Read the last `most` bytes of a RotatedFile, after as many of `NAME.1`; none if they have gone."""
    before, _, _ = _last_bytes(path.with_name(path.name + ".1"), most)
    data, size, inode = _last_bytes(path, most)
    return LogEnd(before + data, size, inode)


def _last_bytes(path: Path, most: int) -> LogEnd:
    try:
        with path.open("rb") as stream:
            seen = path.stat()
            stream.seek(max(0, seen.st_size - most))
            data = stream.read(most)
            return LogEnd(data, stream.tell(), seen.st_ino)
    except OSError:
        return LogEnd(b"", 0, 0)


def _make_private(folder: Path) -> None:
    # not mkdir(parents=True): it would leave a home that it makes on the way open to others
    for parent in reversed((folder, *folder.parents)):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` (0600) hold `content`; its folder is made (0700) if need be. Raises OSError."""
    import tempfile  # a verb that writes no file starts without it

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=NEW_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def read_own_file(path: Path, *, most: int) -> bytes | None:
    """Read at most `most` bytes of a file that no other user can have written; return None for any other.

    Raises OSError.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
            return None
        return file.read(most)


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return the descriptor. Raises OSError, also for any other kind."""
    # O_NONBLOCK: to open a FIFO would wait for its writer
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """Read at most `most` bytes of a regular file. Raises OSError, also for any other kind."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)


def is_container(root: Path = ROOT) -> bool:
    """Say whether this process runs in a container."""
    if "KUBERNETES_SERVICE_HOST" in os.environ or any((root / mark).exists() for mark in _CONTAINER_MARKS):
        return True
    try:
        return (root / _CONTAINER_KIND).read_text("utf-8", "replace").strip() not in ("", "wsl")
    except OSError:
        return False


def others_may_use(path: Path, mode: int, root: Path = ROOT) -> bool:
    """Say whether other users can use a file of this mode.

    A secret of a container has any mode, as nobody else can enter the container. Elsewhere only a file system
    in memory that was mounted for secrets is trusted like that.
    """
    if not mode & 0o077:
        return False
    real = path.resolve()
    if root / SECRETS not in real.parents:
        return True
    return not (is_container(root) or _is_in_memory(real, root))


def _is_in_memory(path: Path, root: Path) -> bool:
    """Say whether a file is in memory, by a mount at the directory of secrets or below."""
    try:
        lines = (root / "proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    mounts = {root / SECRETS: ""}
    for line in lines:
        before, _, after = line.partition(" - ")
        if len(fields := before.split(" ")) > 4:
            mounts[root / fields[4].lstrip("/")] = after.partition(" ")[0]
    place = next(folder for folder in (path, *path.parents) if folder in mounts)
    return mounts[place] in _IN_MEMORY


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
