"""API authentication: keys from a private file, compared in constant time."""

import hmac
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.gateway.api_key import ApiKey, parse_keys
from meshd.identity.key_proof import key_digest

MAX_KEY_FILE_BYTES = 1 << 20


def load_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read API keys, with names and limits: see `parse_keys`.

    The file must be a plain file that only its owner can read (0600) and that belongs to this user or
    root. Raises UserError, which never repeats a key.
    """
    keys = parse_keys(_read_private(path), label=str(path))
    if not keys:
        raise UserError(
            f"the key file `{path}` contains no key",
            hint=f"put one key on each line, for example: `openssl rand -hex 24 > {path}`",
        )
    return keys


def _read_private(path: Path) -> str:
    try:
        # O_NONBLOCK: a FIFO given by mistake must not hang the start
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(
            f"cannot read the key file `{path}`: {_reason(error)}", hint="check the path given as key file"
        ) from error
    try:
        _check_private(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_KEY_FILE_BYTES:
        raise UserError(
            f"the key file `{path}` is larger than 1 MiB", hint="name a text file with one key per line"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the key file `{path}` is not text", hint="name a text file with one key per line"
        ) from error


def _check_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UserError(
            f"the key file `{path}` is not a regular file", hint="name a text file with one key per line"
        )
    if found.st_mode & 0o077:
        raise UserError(
            f"the key file `{path}` is accessible to others (mode {stat.S_IMODE(found.st_mode):04o})",
            hint=f"run `chmod 600 {path}`",
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise UserError(
            f"the key file `{path}` belongs to another user (uid {found.st_uid})",
            hint="make your own copy, with mode 0600",
        )


def _reason(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


class KeyRing:
    """The keys that open the API; without any, every client may use it."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        # digests have one length: the comparison does not tell how long a key is
        self.digests = tuple(key_digest(key.secret) for key in keys)

    def __len__(self) -> int:
        return len(self.digests)

    def share_of(self, most: int) -> int:
        """What one key may have of `most` for all: of several, none takes everything."""
        return most if len(self.digests) < 2 else max(1, most * 3 // 4)

    def match(self, headers: Mapping[str, str]) -> bytes | None:
        """The digest of the key of ours that `Authorization: Bearer KEY` or `x-api-key: KEY` carries; None:
        neither does. Empty where no key is asked for."""
        if not self.digests:
            return b""
        found: bytes | None = None
        for digest in given_keys(headers):
            for known in self.digests:
                # no early exit: the time does not tell which key was close
                found = known if hmac.compare_digest(digest, known) else found
        return found


def given_keys(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """Digests of the keys that these headers carry."""
    given = []
    scheme, _, value = headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        given.append(value.strip())
    if key := headers.get("X-Api-Key", "").strip():
        given.append(key)
    return tuple(map(key_digest, given))
