"""A direct connection between two nodes on one machine, for what need not cross their links.

The node that opens the connection listens on a Unix socket with a random name. It tells the other node the
name and a random secret in the metadata of a stream, which is encrypted and authenticates both. The other
node connects at once, before it accepts that stream, and sends the secret. So when the stream has been
accepted, the first node finds the connection, or there is none: neither waits.

The name leads nowhere outside this machine, and on Linux nowhere outside its network namespace. Both sides
also ask the kernel which user has the other end, and reject any user but their own before a secret is sent.
"""

import hmac
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

from meshd.base.processes import peer_of

LOCAL = "local"  # in the metadata of a stream: name and secret, in case both nodes are on one machine
NAME_BYTES = 16
SECRET_BYTES = 16
OFFERED_BYTES = NAME_BYTES + SECRET_BYTES
_PREFIX = "meshd-push-"
_WAITING = 4  # connections in the queue: only one is expected, and strangers are rejected


class LocalOffer:
    """A rendezvous for one other node. Raises OSError if it cannot be created."""

    def __init__(self) -> None:
        name, self._secret = secrets.token_bytes(NAME_BYTES), secrets.token_bytes(SECRET_BYTES)
        self.offered = name + self._secret
        """The name and the secret, for the other node."""
        self._address = _address(name, make=True)
        self._listener = socket(AF_UNIX, SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind(self._address)
            self._listener.listen(_WAITING)
        except OSError:
            self.close()
            raise

    def take(self) -> socket | None:
        """Return the connection if the other node has connected by now, else None. Never waits.

        A node that was asked again, because the first stream broke, has connected again: its last
        connection counts.
        """
        found: socket | None = None
        with suppress(OSError):  # no more connections wait
            # No more connections can wait; strangers who keep connecting cannot prolong this loop.
            for _ in range(_WAITING + 1):
                end, _ = self._listener.accept()
                if not self._is_invited(end):
                    end.close()
                    continue
                if found is not None:
                    found.close()
                found = end
        return found

    def _is_invited(self, end: socket) -> bool:
        try:
            end.setblocking(False)
            return _is_own_user(end) and hmac.compare_digest(end.recv(SECRET_BYTES), self._secret)
        except OSError:
            return False

    def close(self) -> None:
        """Stop accepting connections and end connections that were not taken. Idempotent."""
        self._listener.close()
        if not self._address.startswith("\0"):
            Path(self._address).unlink(missing_ok=True)


@contextmanager
def offered(*, wanted: bool) -> Iterator[LocalOffer | None]:
    """Yield an offer for the time of the block, or None if it is not wanted or cannot be created."""
    offer = None
    if wanted:
        with suppress(OSError):
            offer = LocalOffer()
    try:
        yield offer
    finally:
        if offer is not None:
            offer.close()


def come(offered: bytes) -> socket | None:
    """Connect to the rendezvous that another node offers. Never waits.

    Returns None if the rendezvous is out of reach, or is not for this node.
    """
    if len(offered) != OFFERED_BYTES:
        return None
    with suppress(OSError):  # another machine, another network namespace, strangers that fill the queue
        end = socket(AF_UNIX, SOCK_STREAM)
        try:
            end.setblocking(False)
            end.connect(_address(offered[:NAME_BYTES], make=False))
            if _is_own_user(end) and end.send(offered[NAME_BYTES:]) == SECRET_BYTES:
                return end
        except OSError:
            end.close()
            raise
        end.close()
    return None


def _is_own_user(end: socket) -> bool:
    """Ask the kernel whether this user has the other end, or listens there."""
    user, _pid = peer_of(end)
    return user == os.geteuid()


def _address(name: bytes, *, make: bool) -> str:
    """Return the address for this name; `make` creates its folder if one is needed. Raises OSError."""
    if sys.platform == "linux":
        return f"\0{_PREFIX}{name.hex()}"
    else:
        return str(folder_for_sockets(Path(tempfile.gettempdir()), make=make) / name.hex())


def folder_for_sockets(parent: Path, *, make: bool) -> Path:
    """Return the folder in `parent` that only this user can enter. Raises OSError if others can enter it."""
    folder = parent / f"{_PREFIX}{os.geteuid()}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PermissionError(f"others may enter `{folder}`")
    return folder
