"""Finds the user whose program made a connection on loopback.

Linux tells through /proc/net/tcp (proc(5)). Elsewhere nobody tells, and the answer is None. Where Linux
cannot be asked just now (no free descriptor, /proc not mounted or closed to us) the answer is no: keeping us
from looking lets nobody in.

The table has a line for each connection of the whole machine, so it is read in a thread, up to the line that
is wanted, by one asker at a time.
"""

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from meshd.base import log
from meshd.base.port_holder import proc_address
from meshd.base.tasks import in_thread

Address = tuple[str, int]
LOG = log.get("process")


class ConnectionOwners:
    """Asks the system. However many ask, one thread looks at a time, and the others wait for their turn."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def user_has(self, uid: int, client: Address, server: Address) -> bool | None:
        """Return True if a process of user `uid`, or root's, holds the client's end; None: the system does
        not tell.
        """
        if sys.platform == "linux":
            async with self._turn:
                return await in_thread(partial(user_has_connection, uid, client, server))
        else:
            return None


def user_has_connection(uid: int, client: Address, server: Address) -> bool:
    """Return True if user `uid` or root holds the client's end. Slow if there are many connections."""
    name = "/proc/net/tcp6" if ":" in client[0] else "/proc/net/tcp"
    try:
        with Path(name).open(encoding="ascii") as table:
            return find_user(table, _end(client), _end(server)) in (uid, 0)
    except OSError as error:
        _warn_unreadable(error)
        return False


def _end(address: Address) -> str:
    return f"{proc_address(address[0])}:{address[1]:04X}"


def _warn_unreadable(error: OSError) -> None:
    LOG.warning("connection_owner_unreadable", path=str(error.filename), why=(error.strerror or "").lower())


def find_user(table: Iterable[str], local: str, remote: str) -> int | None:
    """Return the owner of the connection from `local` to `remote`, both as the table has them.

    A connection that no process has open any more appears as root's, with inode 0: it counts as nobody's.
    """
    for fields in _lines_with(table, local, remote):
        if fields[9] != "0" and fields[7].isdecimal():
            return int(fields[7])
    return None


def _lines_with(table: Iterable[str], local: str, remote: str) -> Iterable[list[str]]:
    wanted = f" {local} {remote} "
    for line in table:
        if wanted in line and len(fields := line.split()) >= 10 and fields[1:3] == [local, remote]:
            yield fields
