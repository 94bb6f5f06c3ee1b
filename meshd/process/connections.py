"""Whose is a connection on loopback? For programs that can show no secret (a stock llama-server, a browser).

Linux tells through /proc: the connection's inode in /proc/net/tcp (proc(5)) must be one of the process's own
descriptors. Elsewhere nobody tells, and the answer is None. Where Linux cannot be asked just now (no free
descriptor, /proc not mounted or closed to us) the answer is no: keeping us from looking lets nobody in.
"""

import contextlib
import sys
from pathlib import Path

from meshd.base import log
from meshd.base.port_holder import proc_address

ESTABLISHED = "01"
LOG = log.get("process")


def owns_connection(pid: int, client: tuple[str, int], server: tuple[str, int]) -> bool | None:
    """Whether process `pid` holds the client's end of this connection; None: this system does not tell."""
    if sys.platform != "linux":
        return None
    wanted = f"{proc_address(client[0])}:{client[1]:04X}", f"{proc_address(server[0])}:{server[1]:04X}"
    try:
        inode = find_inode(Path("/proc/net/tcp").read_text(encoding="ascii"), *wanted)
    except OSError as error:
        _warn_unreadable(error)
        return False
    if inode is None:
        return False
    for link in _descriptors(pid):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return True
    return False


def user_has_connection(uid: int, client: tuple[str, int], server: tuple[str, int]) -> bool | None:
    """Whether a process of user `uid`, or root's, holds the client's end; None: this system does not tell."""
    if sys.platform != "linux":
        return None
    wanted = f"{proc_address(client[0])}:{client[1]:04X}", f"{proc_address(server[0])}:{server[1]:04X}"
    try:
        table = Path("/proc/net/tcp6" if ":" in client[0] else "/proc/net/tcp").read_text(encoding="ascii")
    except OSError as error:
        _warn_unreadable(error)
        return False
    return find_user(table, *wanted) in (uid, 0)


def _warn_unreadable(error: OSError) -> None:
    LOG.warning("connection_owner_unreadable", path=str(error.filename), why=(error.strerror or "").lower())


def find_user(table: str, local: str, remote: str) -> int | None:
    """Owner of the connection from `local` to `remote`, both as the table writes them.

    One that no process has open any more is shown as root's, with inode 0: it counts as nobody's.
    """
    for line in table.splitlines()[1:]:
        fields = line.split()
        if (
            len(fields) >= 10
            and fields[1:3] == [local, remote]
            and fields[9] != "0"
            and fields[7].isdecimal()
        ):
            return int(fields[7])
    return None


def find_inode(table: str, local: str, remote: str) -> int | None:
    """Inode of the established connection from `local` to `remote`, both as the table writes them."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 10 and fields[1:4] == [local, remote, ESTABLISHED] and fields[9].isdecimal():
            return int(fields[9])
    return None


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path("/proc", str(pid), "fd").iterdir())
    except OSError:  # another user's, or gone
        return []
