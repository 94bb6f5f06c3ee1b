"""Sockets under QUIC pipes: one for each connection that is dialled, one for all that a listener takes in."""

import asyncio
import socket
from collections.abc import Callable, Sequence

from meshd.link.net.udp_sockets import BatchSocket, Origin
from meshd.link.quic import ID_BYTES
from meshd.link.quic.pipe import QuicPipe
from meshd.wire.dialable import Dialable


class DialPort:
    """The socket of one connection that we make: a new one, or `sock`, bound to what the peer expects."""

    def __init__(self, candidate: Dialable, *, sock: socket.socket | None = None) -> None:
        family = socket.AF_INET6 if candidate.is_v6 else socket.AF_INET
        fresh = sock is None
        sock = sock or socket.socket(family, socket.SOCK_DGRAM)
        try:
            if fresh:
                sock.bind(("::" if candidate.is_v6 else "0.0.0.0", 0))
            self._socket = BatchSocket(
                sock,
                on_datagrams=self._received,
                on_batch=self._batch,
                on_drained=self._batch,
                on_error=self._error,
                answers=False,
            )
        except BaseException:
            sock.close()
            raise
        self.pipe: QuicPipe | None = None
        self.origin = Origin((candidate.host, candidate.port))
        self.error: OSError | None = None
        self.probe = self._socket.probe
        self.mtu = self._socket.mtu
        self.close = self._socket.close
        self.report_errors = self._socket.report_errors

    def attach(self, pipe: QuicPipe, ids: Sequence[bytes]) -> None:
        """Take the pipe that is dialled; `ids` are its own connection ids."""
        self.pipe = pipe

    @property
    def full(self) -> bool:
        return self._socket.full

    @property
    def local(self) -> tuple[str, int]:
        return self._socket.local_host(self.origin), self._socket.port

    def send(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        self._socket.send(datagrams, origin)

    def renamed(self, pipe: QuicPipe, new: Sequence[bytes], old: Sequence[bytes]) -> None:
        """Do nothing: every datagram that comes is for the one pipe."""

    def forget(self, pipe: QuicPipe) -> None:
        self._socket.close()

    def _received(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        now = asyncio.get_running_loop().time()
        if self.pipe is not None:
            for data in datagrams:
                self.pipe.datagram(data, origin, now)

    def _batch(self) -> None:
        if self.pipe is not None:
            self.pipe.advance()

    def _error(self, error: OSError) -> None:
        """Handle a kernel error: final while nobody has answered, else left to the timers."""
        if self.pipe is not None and not self.pipe.engine.secured and self.error is None:
            self.error = error
            self.pipe.fail("the network refused")


class Door:
    """One socket of a listener: sorts datagrams by connection id."""

    def __init__(self, sock: socket.socket, stranger: Callable[["Door", bytes, Origin], None]) -> None:
        self._pipes: dict[bytes, QuicPipe] = {}
        self._ids: dict[QuicPipe, set[bytes]] = {}
        self._touched: dict[QuicPipe, None] = {}
        self._stranger = stranger
        self.socket = BatchSocket(
            sock,
            on_datagrams=self._received,
            on_batch=self.batch,
            on_drained=self._drained,
            on_error=self._error,
            answers=True,
        )
        self.send = self.socket.send
        self.probe = self.socket.probe
        self.mtu = self.socket.mtu

    @property
    def full(self) -> bool:
        return self.socket.full

    def add(self, pipe: QuicPipe, ids: Sequence[bytes]) -> None:
        self._ids[pipe] = set(ids)
        for connection_id in ids:
            self._pipes[connection_id] = pipe
        self._touched[pipe] = None

    def renamed(self, pipe: QuicPipe, new: Sequence[bytes], old: Sequence[bytes]) -> None:
        known = self._ids.get(pipe)
        if known is None:
            return
        for connection_id in new:
            self._pipes[connection_id] = pipe
            known.add(connection_id)
        for connection_id in old:
            self._pipes.pop(connection_id, None)
            known.discard(connection_id)

    def forget(self, pipe: QuicPipe) -> None:
        for connection_id in self._ids.pop(pipe, ()):
            self._pipes.pop(connection_id, None)
        self._touched.pop(pipe, None)

    def _received(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        now = asyncio.get_running_loop().time()
        for data in datagrams:
            pipe = self._pipes.get(destination(data))
            if pipe is not None:
                self._touched[pipe] = None
                pipe.datagram(data, origin, now)
            else:
                self._stranger(self, data, origin)

    def batch(self) -> None:
        """Pass on what came since the last call."""
        touched, self._touched = self._touched, {}
        for pipe in touched:
            pipe.advance()

    def _drained(self) -> None:
        for pipe in list(self._ids):
            pipe.transmit()

    def _error(self, error: OSError) -> None:
        """Ignore a datagram that did not leave: it is as good as lost, and its connection's timers handle
        that.
        """


class SharedPort:
    """One connection that we make from the port at which a listener takes others in.

    Peers know where that port is seen from outside, and our NAT lets in those that we have sent to from it:
    two nodes that dial each other so at the same time need nothing else to get through most NATs.
    """

    def __init__(self, door: Door, candidate: Dialable) -> None:
        self._door = door
        self.pipe: QuicPipe | None = None
        self.origin = Origin((candidate.host, candidate.port))
        self.error: OSError | None = None
        self.send = door.send
        self.probe = door.probe
        self.mtu = door.mtu
        self.renamed = door.renamed
        self.forget = door.forget

    def attach(self, pipe: QuicPipe, ids: Sequence[bytes]) -> None:
        """Take the pipe that is dialled; `ids` are its own connection ids."""
        self.pipe = pipe
        self._door.add(pipe, ids)

    @property
    def full(self) -> bool:
        return self._door.full

    @property
    def local(self) -> tuple[str, int]:
        return self._door.socket.local_host(self.origin), self._door.socket.port

    def report_errors(self, on: bool) -> None:
        """Do nothing: on a shared port an error cannot be attributed to a connection."""

    def close(self) -> None:
        """Forget the connection; the port stays open."""
        if self.pipe is not None:
            self.forget(self.pipe)


def destination(data: bytes) -> bytes:
    """Return the connection id that a QUIC datagram is for (RFC 8999 section 5); empty when there is none."""
    if data and data[0] & 0x80:
        return data[6 : 6 + data[5]] if len(data) > 6 else b""
    return data[1 : 1 + ID_BYTES]
