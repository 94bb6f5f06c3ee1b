"""A direct connection between the mesh-servers of two workers on one machine (base/local_way.py).

Each worker hands its mesh-server a duplicate of its end. It keeps the original to cut the connection, and
never reads or writes it again.
"""

import os
from contextlib import suppress
from socket import SHUT_RDWR, SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, socket

from meshd.identity.keys import PeerId
from meshd.tunnel.interface import LISTEN_LOCAL, TunnelStatus
from meshd.wire.lease import PUSH_SERVICE

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
            listen=LISTEN_LOCAL,
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


def way_over(peer: PeerId, end: socket | None) -> LocalWay | None:
    """Return the connection over `end`, or None without one, or if no descriptor is free."""
    with suppress(OSError):
        return None if end is None else LocalWay(peer, end)
    return None
