"""Whose is a connection on loopback? For programs that cannot show a secret (a stock llama-server).

Linux tells through /proc: the connection's inode in /proc/net/tcp (proc(5)) must be one of the process's own
descriptors. Elsewhere nobody tells, and the answer is None.
"""

import contextlib
import sys
from pathlib import Path

from meshd.base.port_holder import proc_address

ESTABLISHED = "01"


def owns_connection(pid: int, client: tuple[str, int], server: tuple[str, int]) -> bool | None:
    """Whether process `pid` holds the client's end of this connection; None: this system does not tell."""
    if sys.platform != "linux":
        return None
    wanted = f"{proc_address(client[0])}:{client[1]:04X}", f"{proc_address(server[0])}:{server[1]:04X}"
    try:
        inode = find_inode(Path("/proc/net/tcp").read_text(encoding="ascii"), *wanted)
    except OSError:
        return None
    if inode is None:
        return False
    for link in _descriptors(pid):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return True
    return False


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
