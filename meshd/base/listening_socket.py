"""Listening sockets, set up in the same way everywhere: mesh port, API, children."""

import contextlib
import errno
import secrets
import socket
from pathlib import Path
from typing import Protocol

from meshd.base.errors import UserError

_BACKLOG = 128  # connections that the kernel holds until somebody accepts them
LOOPBACK_HOST = "127.0.0.1"  # for programs of this machine; others come through meshd
UNIX_BUFFER = 256 << 10
# errno of a socket that could not be made or accepted: this process, or this machine, has no more of them
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NO_ROOM_SECONDS = 1.0  # until a listener accepts again: something may have been closed
_NAME_TRIES = 100


class Sized(Protocol):
    """A socket, or what asyncio shows of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def listen_at(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A TCP socket that listens at the address `host`; port 0: any free one. It blocks.

    Raises OSError; what to tell the user depends on who wanted the port.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # a restart must not wait for old connections in TIME_WAIT
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # two sockets rather than one for both: then peers' addresses never come as ::ffff:1.2.3.4
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_in(folder: Path) -> tuple[socket.socket, Path]:
    """A unix socket that listens at a new path in `folder`, whose owner alone may enter that. It blocks.

    It is not inheritable until it is passed; the closer removes the file. Raises UserError.
    """
    try:
        return _listen_in(folder)
    except OSError as error:
        raise UserError(
            f"cannot create a socket in `{folder}`: {(error.strerror or str(error)).lower()}",
            hint="free space on that disk, and check that this user can write there",
        ) from error


def _listen_in(folder: Path) -> tuple[socket.socket, Path]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = _bind_in(folder, sock)
    except BaseException:
        sock.close()
        raise
    try:
        path.chmod(0o600)
        widen(sock)  # BSD hands it on to what is accepted
        sock.listen(_BACKLOG)
    except BaseException:
        path.unlink(missing_ok=True)
        sock.close()
        raise
    return sock, path


def widen(sock: Sized) -> None:
    """Room for some messages in a unix socket: macOS gives 8 KiB, less than the state of one token."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, UNIX_BUFFER)


def _bind_in(folder: Path, sock: socket.socket) -> Path:
    for left in reversed(range(_NAME_TRIES)):
        path = folder / f"rpc{secrets.token_hex(2)}.sock"  # a folder of sockets has room for no longer name
        try:
            sock.bind(str(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise
        else:
            break
    return path


def remove_stale(folder: Path) -> None:
    """Remove what `listen_in` made there for a process that was killed; none may use the folder now."""
    for path in folder.glob("rpc????.sock"):
        with contextlib.suppress(OSError):
            if path.is_socket():
                path.unlink()
