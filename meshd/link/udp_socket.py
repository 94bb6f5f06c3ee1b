"""UDP sockets that read in batches and have buffers big enough for a fast path.

asyncio's datagram transport reads one datagram for each turn of the loop, into a fresh buffer of 256 KiB.
This one reads until the socket is empty (at most 64, so that others get a turn) and then says so, which
lets the layer above acknowledge once for all of them. Sending never waits and keeps nothing: what the
kernel does not take is lost, as on any other hop.
"""

import asyncio
import contextlib
import socket
from typing import Protocol

BUFFER_BYTES = 4 << 20  # 330 ms at 100 Mbit/s; the usual 208 KiB lose packets on a loss-free path
READ_AT_ONCE = 64
MAX_DATAGRAM_BYTES = 2048  # longer ones are cut, and then fail their checksum
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32  # Linux: beyond rmem_max, with CAP_NET_ADMIN

Address = tuple[str, int]


class UdpReader(Protocol):
    """Who gets the datagrams of a socket."""

    def datagram_received(self, data: bytes, addr: Address) -> None:
        """One datagram. Raises nothing."""
        ...

    def batch_ended(self) -> None:
        """All that had come is delivered."""
        ...

    def socket_lost(self, error: OSError | None) -> None:
        """The socket is closed: by us (None), or because it failed."""
        ...


class UdpSocket:
    """One bound UDP socket, read by the running loop. Raises OSError when `host` cannot be bound."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader: UdpReader | None = None
        self._sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.lost_sends = 0
        try:
            self._sock.setblocking(False)
            widen(self._sock)
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
        self._loop.add_reader(self._sock, self._read)

    def sendto(self, data: bytes, addr: Address) -> None:
        """Send one datagram, or lose it."""
        try:
            self._sock.sendto(data, addr)
        except OSError:
            self.lost_sends += 1  # no route to this one, too long for it, or the buffer is full

    def close(self) -> None:
        """Close; `socket_lost` is called before this returns."""
        self._end(None)

    def fail(self, error: OSError) -> None:
        """As if the kernel had taken the socket away."""
        self._end(error)

    def _read(self) -> None:
        reader, sock = self._reader, self._sock
        if reader is None:
            return
        for _ in range(READ_AT_ONCE):
            try:
                data, addr = sock.recvfrom(MAX_DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                if sock.fileno() < 0:
                    return  # closed by what a datagram brought
                continue  # an ICMP error of an earlier send
            reader.datagram_received(data, addr[:2])
        reader.batch_ended()

    def _end(self, error: OSError | None) -> None:
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.socket_lost(error)


def widen(sock: socket.socket) -> None:
    """Buffers of 4 MiB both ways, or as much as the system allows (`net.core.rmem_max`)."""
    for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
