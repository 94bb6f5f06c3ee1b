"""Replaces a cache file as a whole or not at all. For state that must survive a crash: identity/folder.py."""

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

NEW_PREFIX = ".new-"  # of a name that a writer which was killed leaves


def replace_file(path: Path, content: bytes) -> None:
    """Make `path` (0600) hold `content`; its folder is made (0700) if need be. Raises OSError."""
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
    """Read at most `most` bytes of a file that no other user can have written; None otherwise. Raises
    OSError.
    """
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
            return None
        return file.read(most)
