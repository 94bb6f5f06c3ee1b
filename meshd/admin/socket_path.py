"""Name a home's sockets, and what both ends of the control socket know: names and bounds.

A path that is too long for a socket is replaced by a short one in a private folder under the runtime
folder; the home then holds a pointer file with it. Used by both ends, so it imports nothing heavy.

A Unix socket in the node's home carries one JSON object a line, request and reply in turn (server.py,
client.py). The values are in api.py; the daemon answers them (`Answers` of request.py).
Only the user who runs the daemon can open the socket, so the CLI needs no further authentication.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import read_regular

SOCKET_NAME = "control.sock"
POINTER_NAME = "control.sock.path"  # holds the true path where the home's own is too long for a socket
MAX_SOCKET_PATH_BYTES = 100  # sun_path takes 104 on macOS, 108 on Linux, with the final zero
_MAX_POINTER_BYTES = 4 << 10
MAX_LINE_BYTES = 64 << 10  # a request; replies may be as long as they are
MAX_REPLY_BYTES = 8 << 20
MAX_CONNECTIONS = 16


def find_socket(home: Path) -> Path:
    """Return the socket's path as a client looks for it; it need not exist."""
    try:
        # root asks daemons of other users, whose folders may hold anything
        pointed = read_regular(home / POINTER_NAME, _MAX_POINTER_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return home / SOCKET_NAME
    return Path(pointed) if pointed.startswith("/") else home / SOCKET_NAME


def choose_socket(home: Path, environ: Mapping[str, str]) -> Path:
    """Return the path for a daemon of this home to listen at; creates folder and pointer of a short one if
    needed.
    """
    pointer = home / POINTER_NAME
    chosen = socket_folder(home, environ) / SOCKET_NAME
    if chosen.parent == home:
        pointer.unlink(missing_ok=True)
        return chosen
    fresh = pointer.with_suffix(f".{os.getpid()}")
    fresh.write_text(f"{chosen}\n", encoding="utf-8")
    fresh.replace(pointer)
    return chosen


def socket_folder(home: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of a home's sockets: the home, or a private folder with a shorter path, created now.

    No name in it may be longer than SOCKET_NAME. Raises UserError when no path is short enough or private.
    """
    if is_short_enough(home):
        return home
    folder = _short_folder(home, environ)
    if not is_short_enough(folder):
        raise UserError(
            f"no path for the control socket is short enough: `{folder / SOCKET_NAME}`",
            hint=f"set MESHD_HOME to a path of at most {MAX_SOCKET_PATH_BYTES - len(SOCKET_NAME) - 1} bytes",
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def remove_socket_folder(folder: Path, home: Path) -> None:
    """Remove at a daemon's end what `socket_folder` created, if nothing is left in it. Idempotent."""
    if folder != home:
        with contextlib.suppress(OSError):
            folder.rmdir()


def is_short_enough(folder: Path) -> bool:
    """Return True if the path of a socket in this folder fits."""
    return len(os.fsencode(folder / SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES


def _short_folder(home: Path, environ: Mapping[str, str]) -> Path:
    import tempfile  # slow to import, and clients never need it

    digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:16]
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and Path(runtime).is_dir():
        return Path(runtime) / f"meshd-{digest}"
    return Path(tempfile.gettempdir()) / f"meshd-{os.geteuid()}-{digest}"


def check_private(folder: Path) -> None:
    """Raise UserError unless only this user can reach into `folder`: a shared /tmp may hold a trap."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        raise UserError(
            f"`{folder}` is not a directory that only this user can enter",
            hint=f"remove it, or take ownership and run `chmod 700 {folder}`",
        )
