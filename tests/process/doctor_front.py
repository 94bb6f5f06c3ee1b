"""Takes something that a machine has once, then becomes another program, which holds it until its end.

`python doctor_front.py WHAT [WORDS…] -- COMMAND…`; only the standard library, as it starts before each run.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # prctl(2)
_LANDLOCK_CALL, _ENOSYS = 444, 38


def listening(port: str) -> int:
    """A TCP port of all addresses."""
    sock = socket.create_server(("", int(port)))
    return sock.detach()


def alone_on(port: str) -> int:
    """A UDP port that is not shared."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", int(port)))
    return sock.detach()


def locked(home: str) -> int:
    """The lock of a home, as a daemon has it."""
    descriptor = os.open(Path(home, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, f"{os.getpid()} daemon\n".encode())
    return descriptor


def mute(home: str) -> int:
    """A control socket at which nobody answers."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(Path(home, "control.sock")))
    sock.listen(8)
    return sock.detach()


def hung(folder: str) -> int:
    """A file system at `folder` that does not answer, as one in the network whose server is gone."""
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"hung", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    return descriptor


def without_landlock() -> int:
    """A kernel that does not know landlock_create_ruleset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # the number of the call
            (0x15, 0, 1, _LANDLOCK_CALL),
            (0x06, 0, 0, 0x00050000 | _ENOSYS),
            (0x06, 0, 0, 0x7FFF0000),
        )
    )
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
    return -1


TAKEN: dict[str, Callable[..., int]] = {
    one.__name__: one for one in (listening, alone_on, locked, mute, hung, without_landlock)
}


if __name__ == "__main__":
    words = sys.argv[1:]
    at = words.index("--")
    what, *arguments = words[:at]
    if (held := TAKEN[what](*arguments)) >= 0:
        os.set_inheritable(held, True)
    os.execvp(words[at + 1], words[at + 1 :])
