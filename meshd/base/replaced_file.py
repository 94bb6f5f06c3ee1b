"""A file of a cache, written anew as a whole or not at all. What must survive a crash: identity/folder.py."""

import os
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
