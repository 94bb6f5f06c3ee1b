"""Identifies the other end of a unix socket, as reported by the kernel."""

import os
import socket
import struct
import sys

_XUCRED = struct.Struct("IIh2x16I")  # macOS, sys/ucred.h
_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2  # macOS, sys/un.h, level 0


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return user id and process id of the other end; pid 0 if unknown. Raises OSError."""
    if sys.platform == "darwin":
        raw = connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED.size)
        uid = int(struct.unpack_from("II", raw)[1])
        pid = connection.getsockopt(0, _LOCAL_PEERPID)
        return uid, pid
    else:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _gid = struct.unpack("3i", raw)
        return uid, pid


def allowed(uid: int) -> bool:
    """Return True if that user may talk to our daemon: the daemon's own user, and root."""
    return uid in (os.geteuid(), 0)
