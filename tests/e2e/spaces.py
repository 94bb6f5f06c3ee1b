"""A network of its own for one node, so that it reaches others through a proxy of the test and no other way.

A network namespace with nothing but loopback, held by a small process. It hands out sockets, which stay in
their namespace wherever they are used: so a test takes connections in the one and makes them in the other.
Linux; without root where unprivileged user namespaces are allowed.
"""

import os
import shutil
import socket
import subprocess
import sys
from functools import cache
from types import TracebackType
from typing import Self

_HOLDER = """
import fcntl, socket, struct, sys
channel = socket.socket(fileno=0)
with socket.socket() as any_socket:
    name = struct.pack("16sh14x", b"lo", 1)  # SIOCSIFFLAGS, IFF_UP (netdevice(7))
    fcntl.ioctl(any_socket, 0x8914, name)
channel.send(b"up")
while request := channel.recv(16):
    made = socket.socket()
    if request != b"plain":
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(("127.0.0.1", int(request)))
        made.listen(64)
    socket.send_fds(channel, [b"."], [made.fileno()])
    made.close()
"""


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--"]


@cache
def skip_reason() -> str:
    """Why there are no network namespaces here; empty when there are."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "needs unshare and nsenter (Linux)"
    done = subprocess.run([*_unshare(), "true"], check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"network namespaces are not allowed here: {done.stderr.strip()}"


class Space:
    """Context manager."""

    def __enter__(self) -> Self:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen([*_unshare(), sys.executable, "-c", _HOLDER], stdin=theirs.fileno())
        theirs.close()
        self._channel.settimeout(30.0)
        assert self._channel.recv(16) == b"up"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        self._process.wait(30.0)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the command that runs a program inside."""
        user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
        return ("nsenter", f"--target={self._process.pid}", *user, "--net", "--")

    def listen(self, port: int) -> socket.socket:
        """A socket that listens on 127.0.0.1 in this namespace; port 0 picks one."""
        return self._get(str(port).encode())

    def connect(self, port: int) -> socket.socket:
        """A connection to 127.0.0.1 in this namespace. Raises OSError."""
        made = self._get(b"plain")
        try:
            made.connect(("127.0.0.1", port))
        except BaseException:
            made.close()
            raise
        return made

    def _get(self, request: bytes) -> socket.socket:
        self._channel.send(request)
        _, [descriptor], _, _ = socket.recv_fds(self._channel, 16, 1)
        return socket.socket(fileno=descriptor)
