"""The hash that a store promises for a file's bytes, and the one that they have."""

import hashlib
from collections.abc import Callable
from pathlib import Path

_READ_BYTES = 1 << 20
_SHA256_DIGITS, _GIT_DIGITS = 64, 40


def hash_of(path: Path, promised: str, read: Callable[[int], None]) -> str:
    """Of the file's bytes, of the kind that `promised` is: SHA-256, or git's for a blob. Raises OSError.

    `read` is told how many bytes were read, again and again.
    """
    with path.open("rb") as file:
        if len(promised) == _SHA256_DIGITS:
            digest = hashlib.sha256()
        else:
            digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while data := file.read(_READ_BYTES):
            digest.update(data)
            read(len(data))
    return digest.hexdigest()


def promised_by(path: Path) -> str:
    """The hash in the name of the file that a store's path leads to; empty where there is none.

    Hugging Face's blobs are called HASH, Ollama's `sha256-HASH`. Only the first link counts: the blob itself
    may be one, into a store that several caches share and that has other names.
    """
    try:
        name = path.readlink().name if path.is_symlink() else path.name
    except OSError:
        return ""
    name = name.removeprefix("sha256-").lower()
    if len(name) in (_SHA256_DIGITS, _GIT_DIGITS) and all(char in "0123456789abcdef" for char in name):
        return name
    return ""
