"""The journal of systemd, by its native protocol: each line keeps its fields there.

systemd connects the stderr of a service with the journal, and says so in JOURNAL_STREAM. Lines that go to the
journal's own socket instead can be found by what they are about: `journalctl MESHD_PEER=q4x… -p warning`.
Format: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from struct import Struct

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
MOST_ENTRY_BYTES = 128 << 10  # in one datagram: well below the kernel's limit for sockets of this kind
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}  # of syslog
_LENGTH = Struct("<Q")


def leads_to_journal(descriptor: int, environ: Mapping[str, str]) -> bool:
    """Return True if systemd has connected this descriptor with the journal."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def open_journal(path: Path = JOURNAL_SOCKET) -> socket.socket | None:
    """Return a socket to the journal, each write to which is an entry; None if it cannot be reached."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.connect(os.fspath(path))
    except OSError:
        sock.close()
        return None
    return sock


def entry(message: str, level: str, fields: Mapping[str, object]) -> bytes:
    """Return an entry: `message` for people, and a field `MESHD_NAME` for each of `fields`.

    Fields for which there is no room are left out, the last ones first.
    """
    found = bytearray()
    for name, value in _named(message, level, fields):
        written = _field(name, value.encode(errors="replace")[: MOST_ENTRY_BYTES // 2])
        if len(found) + len(written) > MOST_ENTRY_BYTES:
            break
        found += written
    return bytes(found)


def _named(message: str, level: str, fields: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    yield "PRIORITY", str(_PRIORITIES.get(level, 6))
    yield "SYSLOG_IDENTIFIER", "meshd"
    yield "MESSAGE", message
    for name, value in fields.items():
        yield f"MESHD_{name.upper()}", str(value)


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), _LENGTH.pack(len(value)), value)
