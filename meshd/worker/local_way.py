"""A direct connection between the mesh-servers of two workers on one machine.

The worker that opens the connection listens on a Unix socket with a random name. It tells the other worker
the name and a random secret in the metadata of a stream, which is encrypted and authenticates both. The other
worker connects at once, before it accepts that stream, and sends the secret. So when the stream has been
accepted, the first worker finds the connection, or there is none: neither waits.

The name leads nowhere outside this machine, and on Linux nowhere outside its network namespace. Both sides
also ask the kernel which user has the other end, and reject any user but their own before a secret is sent.
Each worker hands its mesh-server a duplicate of its end. It keeps the original to cut the connection, and
never reads or writes it again.
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
from socket import AF_UNIX, SHUT_RDWR, SO_RCVBUF, SO_SNDBUF, SOCK_STREAM, SOL_SOCKET, socket

from meshd.base.other_process import peer_of
from meshd.identity.keys import PeerId
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import PUSH_SERVICE

LISTEN = "local"  # in status, instead of the address where a tunnel listens
NAME_BYTES = 16
SECRET_BYTES = 16
OFFERED_BYTES = NAME_BYTES + SECRET_BYTES
_PREFIX = "meshd-push-"
_WAITING = 4  # connections in the queue: only one is expected, and strangers are rejected
_BUFFER_BYTES = 1 << 20  # the kernel grants less where its limit is lower


class LocalWay:
    """One end of a local connection. The mesh-server's duplicate is given away once; `cut` is idempotent."""

    def __init__(self, peer: PeerId, end: socket) -> None:
        """Take over `end`. Raises OSError and closes `end` if no descriptor is free."""
        self._peer = peer
        self._end = end
        self._sent = self._received = 0
        try:
            end.setblocking(True)  # the duplicate shares this
            for option in (SO_SNDBUF, SO_RCVBUF):  # Linux uses the first option, macOS both
                end.setsockopt(SOL_SOCKET, option, _BUFFER_BYTES)
            self._servers = os.dup(end.fileno())
        except OSError:
            end.close()
            raise

    def give(self) -> int:
        """Return the mesh-server's descriptor, which the caller owns from here on."""
        given, self._servers = self._servers, -1
        return given

    def count(self, *, sent: int | None = None, received: int | None = None) -> None:
        """Note totals in bytes, as the mesh-server reports them."""
        self._sent = self._sent if sent is None else sent
        self._received = self._received if received is None else received

    @property
    def status(self) -> TunnelStatus:
        """The totals so far."""
        return TunnelStatus(
            peer=self._peer,
            service=PUSH_SERVICE,
            listen=LISTEN,
            streams=1,
            sent_bytes=self._sent,
            received_bytes=self._received,
        )

    def cut(self) -> None:
        """Cut the connection for both mesh-servers."""
        if self._servers >= 0:
            os.close(self.give())
        with suppress(OSError):  # closed here, or by the other side
            self._end.shutdown(SHUT_RDWR)
        self._end.close()


class LocalOffer:
    """A rendezvous for one other worker. Raises OSError if it cannot be created."""

    def __init__(self) -> None:
        name, self._secret = secrets.token_bytes(NAME_BYTES), secrets.token_bytes(SECRET_BYTES)
        self.offered = name + self._secret
        """The name and the secret, for the other worker."""
        self._address = _address(name, make=True)
        self._listener = socket(AF_UNIX, SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind(self._address)
            self._listener.listen(_WAITING)
        except OSError:
            self.close()
            raise

    def take(self, peer: PeerId) -> LocalWay | None:
        """Return the connection if the other worker has connected by now, else None. Never waits.

        A worker that was asked again, because the first stream broke, has connected again: its last
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
        with suppress(OSError):
            return None if found is None else LocalWay(peer, found)
        return None

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


def come(peer: PeerId, offered: bytes) -> LocalWay | None:
    """Connect to the rendezvous that `peer` offers. Never waits.

    Returns None if the rendezvous is out of reach, or is not for this worker.
    """
    if len(offered) != OFFERED_BYTES:
        return None
    with suppress(OSError):  # another machine, another network namespace, strangers that fill the queue
        end = socket(AF_UNIX, SOCK_STREAM)
        try:
            end.setblocking(False)
            end.connect(_address(offered[:NAME_BYTES], make=False))
            if _is_own_user(end) and end.send(offered[NAME_BYTES:]) == SECRET_BYTES:
                return LocalWay(peer, end)
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
