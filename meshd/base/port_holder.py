"""Finds the process that holds a TCP port, for error messages (mesh port, API, a child's).

It asks the system, and is in this layer because link, gateway and process all need it and may not import each
other (docs/decisions/0001).
"""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LSOF_SECONDS = 3.0
_TCP_LISTEN = "0A"  # include/net/tcp_states.h


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
