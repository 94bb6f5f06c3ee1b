"""One bound UDP socket of an ICE connection, by host: what ice/agent.py needs of batch_socket.py's.

Sending never waits. Datagrams are read and sent many at once where the kernel can.
"""

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from meshd.link.udp.batch_socket import Address, Origin
from meshd.link.udp.batch_socket import BatchSocket as BatchSocket

MOST_KNOWN = 64  # addresses whose origin is kept


class UdpReader(Protocol):
    """The receiver of a socket's datagrams."""

    def datagram_received(self, data: bytes, addr: Address) -> None:
        """Handle one datagram. Raises nothing."""
        ...

    def batch_ended(self) -> None:
        """Handle the end of a batch: all that had come is delivered."""
        ...

    def socket_lost(self, error: OSError | None) -> None:
        """Handle the end of the socket: closed by us (None), or failed."""
        ...


class UdpSocket:
    """A socket bound to `host`, read from `start` on. Raises OSError when it cannot be bound."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self._batch: BatchSocket | None = None
        self._reader: UdpReader | None = None
        self._origins: dict[Address, Origin] = {}
        try:
            self._sock.bind((host, port))
            name = self._sock.getsockname()
        except OSError:
            self._sock.close()
            raise
        self.local: Address = (name[0], name[1])

    @property
    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._sock.fileno()

    def start(self, reader: UdpReader) -> None:
        """Deliver to `reader` from here on."""
        self._reader = reader
        self._batch = BatchSocket(
            self._sock,
            on_datagrams=self._deliver,
            on_batch=reader.batch_ended,
            on_drained=reader.batch_ended,
            on_error=_unheard,
            answers=False,
        )

    def sendto(self, data: bytes, addr: Address) -> None:
        """Send one datagram, or lose it."""
        self.send_many((data,), addr)

    def send_many(self, datagrams: Sequence[bytes], addr: Address) -> None:
        """Send some to one address, in order."""
        if self._batch is not None:
            with contextlib.suppress(OSError):
                self._batch.send(datagrams, self._origin(addr))

    def probe(self, datagram: bytes, addr: Address) -> None:
        """Send one datagram that arrives whole or not at all."""
        if self._batch is not None:
            with contextlib.suppress(OSError):
                self._batch.probe(datagram, self._origin(addr))

    def close(self) -> None:
        """Close; `socket_lost` is called before this returns. Idempotent."""
        self._end(None)

    def fail(self, error: OSError) -> None:
        """End as if the kernel had taken the socket away."""
        self._end(error)

    def _deliver(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        for data in datagrams:
            if self._reader is not None:  # closed by what came before
                self._reader.datagram_received(data, origin.address)

    def _origin(self, addr: Address) -> Origin:
        origin = self._origins.get(addr)
        if origin is None:
            if len(self._origins) >= MOST_KNOWN:
                self._origins.clear()
            origin = self._origins[addr] = Origin(addr)
        return origin

    def _end(self, error: OSError | None) -> None:
        if self._sock.fileno() < 0:
            return
        if self._batch is not None:
            self._batch.close()
        self._sock.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.socket_lost(error)


OpenSocket = Callable[[str], UdpSocket]  # on a host; raises OSError


def _unheard(error: OSError) -> None:
    """Ignore a missing route or host: the checks find out in their own time."""
