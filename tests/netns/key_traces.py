"""Look for secrets where other programs could read them: in files, arguments and variables."""

import base64
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path


def written_forms(secret: bytes) -> set[bytes]:
    """The secret raw, as Python and JSON write it, in hex, and in base64 wherever it begins in a text."""
    hexadecimal = secret.hex().encode()
    forms = {secret, repr(secret)[2:-1].encode(), hexadecimal, hexadecimal.upper()}
    forms.add(", ".join(map(str, secret)).encode())
    forms.add(",".join(map(str, secret)).encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # Four characters at each end are left out if they depend on the bytes around it.
            whole = encode(bytes(before) + secret)
            end = len(whole) if (before + len(secret)) % 3 == 0 else -4
            forms.add(whole[4 if before else 0 : end])
    return forms


def found_in(secrets: Iterable[bytes], places: Iterable[tuple[str, bytes]]) -> list[str]:
    """Name the places in which one of the secrets is, in any form."""
    forms = {form for secret in secrets for form in written_forms(secret)}
    return [name for name, content in places if any(form in content for form in forms)]


def files_in(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name each regular file there, with what is in it."""
    for root, _folders, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            if stat.S_ISREG(path.lstat().st_mode):
                yield str(path), path.read_bytes()


def said_to_processes() -> Iterator[tuple[str, bytes]]:
    """Name what each process of this machine was started with: its arguments, and its variables."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            for kind in ("cmdline", "environ"):
                try:
                    yield f"{process}/{kind}", (process / kind).read_bytes()
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    pass  # it has ended, or is none of ours
