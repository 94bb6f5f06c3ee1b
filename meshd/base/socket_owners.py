"""Ask the system whose a TCP port or a connection of this machine is.

`port_holder` is for error messages (mesh port, API, a child's). It is in this layer because link, gateway and
process all need it and may not import each other (docs/decisions/0001).
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import in_thread

LSOF_SECONDS = 3.0
_TCP_LISTEN = "0A"  # include/net/tcp_states.h
Address = tuple[str, int]
LOG = log.get("process")


def port_holder(host: str, port: int) -> str | None:
    """Return who listens on `host`:`port`: "`name` (pid 123)", or a user's name if the pid is hidden; else
    None.

    For an error message only: asks /proc on Linux, `lsof` elsewhere (3 s at most; blocks).
    """
    return _holder_by_proc(host, port) if sys.platform == "linux" else _holder_by_lsof(port)


# --- Linux --------------------------------------------------------------------------------------------------


def parse_listeners(table: str, port: int) -> Iterator[tuple[str, int, int]]:
    """Yield (address in hex, uid, inode) of listeners on `port` from the text of /proc/net/tcp or tcp6
    (proc(5)).
    """
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _TCP_LISTEN:
            continue
        address, _, number = fields[1].rpartition(":")
        with contextlib.suppress(ValueError):
            if int(number, 16) == port:
                yield address, int(fields[7]), int(fields[9])


def proc_address(host: str) -> str | None:
    """Return `host` as /proc/net writes it: 32-bit words in native byte order, in hex; None: no address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            packed = socket.inet_pton(family, host)
            words = (packed[i : i + 4] for i in range(0, len(packed), 4))
            return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return None


def _holder_by_proc(host: str, port: int) -> str | None:
    found: list[tuple[str, int, int]] = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            found += parse_listeners(Path("/proc/net", name).read_text(encoding="ascii"), port)
    if not found:
        return None
    ours = proc_address(host)
    # the very address first; else one that covers all addresses
    found.sort(key=lambda entry: (entry[0] != ours, entry[0].strip("0") != ""))
    _, uid, inode = found[0]
    pid = _pid_with_socket(inode)
    if pid is not None:
        return f"`{_comm(pid)}` (pid {pid})"
    if uid == os.getuid():
        return None
    try:
        return f"a program of user `{pwd.getpwuid(uid).pw_name}`"
    except KeyError:
        return f"a program of user {uid}"


def _pid_with_socket(inode: int) -> int | None:
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            links = list(process.joinpath("fd").iterdir())
        except OSError:  # another user's, or gone
            continue
        for link in links:
            with contextlib.suppress(OSError):
                if str(link.readlink()) == wanted:
                    return int(process.name)
    return None


def _comm(pid: int) -> str:
    try:
        text = Path("/proc", str(pid), "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


# --- elsewhere ----------------------------------------------------------------------------------------------


def parse_lsof(text: str) -> str | None:
    """Return the first process in the output of `lsof -F pc` (a line `p` + pid, then `c` + command)."""
    pid = ""
    for line in text.splitlines():
        if line.startswith("p") and line[1:].isdecimal():
            pid = line[1:]
        elif line.startswith("c") and pid:
            command = "".join(letter if letter.isprintable() else "?" for letter in line[1:])
            return f"`{command}` (pid {pid})"
    return None


def _holder_by_lsof(port: int) -> str | None:
    program = shutil.which("lsof") or shutil.which("lsof", path="/usr/sbin:/usr/bin")
    if program is None:
        return None
    command = [program, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-F", "pc"]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=LSOF_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_lsof(answer.stdout.decode("utf-8", errors="replace"))


# --- connections -------------------------------------------------------------------------------------------


class ConnectionOwners:
    """Find the user whose program made a connection on loopback.

    Linux tells through /proc/net/tcp (proc(5)). Elsewhere nobody tells, and the answer is None. Where Linux
    cannot be asked just now (no free descriptor, /proc not mounted or closed to us) the answer is no: keeping
    us from looking lets nobody in. The table has a line for each connection of the whole machine, so it is
    read in a thread, up to the line that is wanted, by one asker at a time.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def user_has(self, uid: int, client: Address, server: Address) -> bool | None:
        """Return True if a process of user `uid`, or root's, holds the client's end; None: the system does
        not tell.
        """
        if sys.platform == "linux":
            async with self._turn:
                return await in_thread(user_has_connection, uid, client, server)
        else:
            return None

    async def user_of(self, client: Address, server: Address) -> int | None:
        """Return the user whose process holds the client's end; None: unknown."""
        if sys.platform == "linux":
            async with self._turn:
                return await in_thread(connection_user, client, server)
        else:
            return None


def user_has_connection(uid: int, client: Address, server: Address) -> bool:
    """Return True if user `uid` or root holds the client's end. Slow if there are many connections."""
    return connection_user(client, server) in (uid, 0)


def connection_user(client: Address, server: Address) -> int | None:
    """Return the user who holds the client's end, None if unknown. Slow if there are many connections."""
    try:
        if ":" in client[0]:
            return _user_in("/proc/net/tcp6", client, server)
        if (user := _user_in("/proc/net/tcp", client, server)) is not None:
            return user
        # a program may have made it with a socket of IPv6 (RFC 4291, 2.5.5.2), where there is IPv6
        mapped = [(f"::ffff:{host}", port) for host, port in (client, server)]
        return _user_in("/proc/net/tcp6", *mapped) if Path("/proc/net/tcp6").exists() else None
    except OSError as error:
        _warn_unreadable(error)
        return None


def _user_in(name: str, client: Address, server: Address) -> int | None:
    with Path(name).open(encoding="ascii") as table:
        return find_user(table, _end(client), _end(server))


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
