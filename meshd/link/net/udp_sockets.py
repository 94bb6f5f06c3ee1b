"""UDP sockets under QUIC and ICE: many datagrams for each call of the kernel, answers from the address asked.

Where the kernel can (Linux 4.18 and later), datagrams of one size go out in one call (UDP_SEGMENT) and come
in in one (UDP_GRO): a call for each costs a third of what QUIC in Python costs altogether. On a socket that
is bound to every address, an answer leaves from the address that the question came to (IP_PKTINFO, RFC 9000
section 9.5: a client drops what comes from elsewhere). Datagrams may be fragmented on their way, which is
slow and works, but for those that are sent to find out what a path takes (`probe`).

`BatchSocket` is such a socket; `UdpSocket` is one of an ICE connection, bound to one host, which never waits.
"""

import asyncio
import contextlib
import errno
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from meshd.base.errors import UserError
from meshd.base.sockets import source_towards
from meshd.link.net.one_port import open_on_one_port

SOCKET_BUFFER_BYTES = 4 << 20  # asked of the kernel; the default of 208 KiB loses packets on a clean path
_READ_BYTES = 64 << 10  # the most that one call can bring: the largest UDP datagram, or a run of small ones
READS_EACH_TURN = 4  # then other tasks get a turn
BACKLOG_BYTES = 1 << 20  # of datagrams that the kernel did not take; more are dropped, as a full router does
MOST_SEGMENTS = 44  # of 1452 bytes in one call; the kernel takes 64, and 65507 bytes

_ON_LINUX = sys.platform == "linux"
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104  # linux/udp.h
_IP_PKTINFO, _IP_MTU_DISCOVER, _IP_RECVERR = 8, 10, 11  # linux/in.h
_IPV6_MTU_DISCOVER, _IPV6_RECVERR, _IPV6_RECVPKTINFO, _IPV6_PKTINFO = 23, 25, 49, 50  # linux/in6.h
_PMTUDISC_DONT, _PMTUDISC_PROBE = 0, 3
_IP_MTU, _IPV6_MTU = 14, 24  # linux/in.h, linux/in6.h
ETHERNET_MTU = 1500
HEADER_BYTES = 48  # of IPv6 and UDP
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h: beyond the limit, with CAP_NET_ADMIN
_ANCILLARY_BYTES = socket.CMSG_SPACE(4) + socket.CMSG_SPACE(20)
_NO_GSO = {errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP}

Address = tuple[str, int]  # host and port
Ancillary = list[tuple[int, int, bytes]]
MOST_KNOWN = 64  # addresses whose origin is kept


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a datagram came from, and (where the kernel tells) which address of ours it was sent to."""

    address: Address
    # struct in_pktinfo or in6_pktinfo, ready to be sent back; whom we talk to does not depend on it
    local: bytes = field(default=b"", compare=False)


class BatchSocket:
    """One socket on the running loop. Gives each run of datagrams to `on_datagrams`, with one origin.

    `on_batch` is called after a few of them, `on_drained` when `full` ends; `on_error` gets what the kernel
    says about the other side, while `report_errors` is on. `answers`: the socket takes in strangers, who
    must be answered from the address that they asked.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_datagrams: Callable[[Sequence[bytes], Origin], None],
        on_batch: Callable[[], None],
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
        answers: bool,
    ) -> None:
        self._sock = sock
        self._on_datagrams = on_datagrams
        self._on_batch = on_batch
        self._on_drained = on_drained
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self.v6 = sock.family == socket.AF_INET6
        self._gso = _ON_LINUX
        self._space = memoryview(bytearray(_READ_BYTES))
        self._backlog: deque[tuple[Sequence[bytes], Ancillary, Address]] = deque()
        self._backlog_bytes = 0
        self._origins: dict[tuple[str, int, bytes], Origin] = {}
        self._closed = False
        self.dropped = 0  # datagrams, so far
        _tune(sock, answers=answers)
        self._loop.add_reader(sock, self._readable)

    @property
    def full(self) -> bool:
        """True while the kernel takes no more: sending now would only fill our own backlog."""
        return bool(self._backlog)

    def local_host(self, origin: Origin) -> str:
        """Return the address of ours that `origin` talks to."""
        if origin.local:
            raw = origin.local[:16] if self.v6 else origin.local[4:8]
            return socket.inet_ntop(self._sock.family, raw)
        host = str(self._sock.getsockname()[0])
        return host if host not in ("0.0.0.0", "::") else source_towards(self._sock.family, origin.address)

    @property
    def port(self) -> int:
        """Our port."""
        return int(self._sock.getsockname()[1])

    def send(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        """Send to `origin`, from the address of ours that it knows. What the kernel does not take waits."""
        ancillary: Ancillary = []
        if origin.local:
            level, kind = (
                (socket.IPPROTO_IPV6, _IPV6_PKTINFO) if self.v6 else (socket.IPPROTO_IP, _IP_PKTINFO)
            )
            ancillary = [(level, kind, origin.local)]
        at = 0
        while at < len(datagrams):
            stop = _run_end(datagrams, at) if self._gso else at + 1
            self._send_run(datagrams[at:stop], ancillary, origin.address)
            at = stop

    def probe(self, datagram: bytes, origin: Origin) -> None:
        """Send one datagram that no router may fragment: it arrives whole or not at all."""
        self._set_discovery(_PMTUDISC_PROBE)
        try:
            self.send([datagram], origin)
        finally:
            self._set_discovery(_PMTUDISC_DONT)

    def mtu(self, origin: Origin) -> int:
        """Return the bytes of an IP packet that the first hop towards `origin` takes, as far as the kernel
        tells.
        """
        return mtu_towards(self._sock.family, origin.address)

    def report_errors(self, on: bool) -> None:
        """Turn the kernel's reports on (Linux) that nobody listens there; off again once somebody
        answered.
        """
        if _ON_LINUX and not self._closed:
            level, name = (
                (socket.IPPROTO_IPV6, _IPV6_RECVERR) if self.v6 else (socket.IPPROTO_IP, _IP_RECVERR)
            )
            self._sock.setsockopt(level, name, int(on))

    def close(self) -> None:
        """Close the socket; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._backlog.clear()
        self._sock.close()

    # --- inside

    def _set_discovery(self, value: int) -> None:
        if _ON_LINUX and not self._closed:
            if self.v6:
                self._sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, value)
            else:
                self._sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, value)

    def _send_run(self, run: Sequence[bytes], ancillary: Ancillary, address: Address) -> None:
        if self._closed:
            return
        if self._backlog:
            self._wait_with(run, ancillary, address)
            return
        try:
            self._sendmsg(run, ancillary, address)
        except (BlockingIOError, InterruptedError):
            self._wait_with(run, ancillary, address)
            self._loop.add_writer(self._sock, self._writable)
        except OSError as error:
            if len(run) > 1 and error.errno in _NO_GSO:
                self._gso = False
                for datagram in run:
                    self._send_run([datagram], ancillary, address)
            else:
                self._on_error(error)

    def _sendmsg(self, run: Sequence[bytes], ancillary: Ancillary, address: Address) -> None:
        if len(run) > 1:
            segment = (_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", len(run[0])))
            self._sock.sendmsg(run, [*ancillary, segment], 0, address)
        elif ancillary:
            self._sock.sendmsg(run, ancillary, 0, address)
        else:
            self._sock.sendto(run[0], address)

    def _wait_with(self, run: Sequence[bytes], ancillary: Ancillary, address: Address) -> None:
        size = sum(map(len, run))
        if self._backlog_bytes + size > BACKLOG_BYTES:
            self.dropped += len(run)
            return
        self._backlog.append((run, ancillary, address))
        self._backlog_bytes += size

    def _writable(self) -> None:
        waiting, self._backlog = self._backlog, deque()
        self._backlog_bytes = 0
        self._loop.remove_writer(self._sock)
        for run, ancillary, address in waiting:
            self._send_run(run, ancillary, address)
        if not self._backlog and not self._closed:
            self._on_drained()

    def _readable(self) -> None:
        try:
            self._read()
        finally:
            self._on_batch()

    def _read(self) -> None:
        for _ in range(READS_EACH_TURN):
            if self._closed:
                return
            try:
                size, ancillary, _, sender = self._sock.recvmsg_into([self._space], _ANCILLARY_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._on_error(error)
                continue
            segment, local = size, b""
            for _level, kind, value in ancillary:
                if kind == _UDP_GRO:
                    segment = int.from_bytes(value[:4], sys.byteorder)
                elif kind in (_IP_PKTINFO, _IPV6_PKTINFO):
                    local = bytes(value)
            if size:
                self._on_datagrams(self._split(size, segment), self._origin(sender, local))

    def _split(self, size: int, segment: int) -> list[bytes]:
        space = self._space
        if segment >= size or segment <= 0:
            return [bytes(space[:size])]
        return [bytes(space[at : min(at + segment, size)]) for at in range(0, size, segment)]

    def _origin(self, sender: tuple[str, int], local: bytes) -> Origin:
        """Return the same object for the same peer, so that comparing is cheap."""
        if local and not self.v6:
            local = bytes(4) + local[8:12] + bytes(4)  # the address asked, as the source of the answer
        elif local:
            local = local[:16] + bytes(4)
        key = (sender[0], sender[1], local)
        origin = self._origins.get(key)
        if origin is None:
            if len(self._origins) >= 256:  # anybody can send from anywhere
                self._origins.clear()
            origin = self._origins[key] = Origin((sender[0], sender[1]), local)
        return origin


def _run_end(datagrams: Sequence[bytes], at: int) -> int:
    """Return the end of the run of equal-sized datagrams from `at`; a shorter one may be its last."""
    size = len(datagrams[at])
    stop = at + 1
    most = min(len(datagrams), at + max(1, min(MOST_SEGMENTS, 65000 // max(size, 1))))
    while stop < most and len(datagrams[stop]) == size:
        stop += 1
    if stop < most and len(datagrams[stop]) < size:
        stop += 1
    return stop


def _tune(sock: socket.socket, *, answers: bool) -> None:
    sock.setblocking(False)
    for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        if not (_ON_LINUX and _set(sock, socket.SOL_SOCKET, force, SOCKET_BUFFER_BYTES)):
            _set(sock, socket.SOL_SOCKET, plain, SOCKET_BUFFER_BYTES)  # as much as `rmem_max` allows
    if _ON_LINUX:
        _set(sock, _SOL_UDP, _UDP_GRO, 1)
        v6 = sock.family == socket.AF_INET6
        level = socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP
        _set(sock, level, _IPV6_MTU_DISCOVER if v6 else _IP_MTU_DISCOVER, _PMTUDISC_DONT)
        if answers and sock.getsockname()[0] in ("0.0.0.0", "::"):
            _set(sock, level, _IPV6_RECVPKTINFO if v6 else _IP_PKTINFO, 1)


def _set(sock: socket.socket, level: int, name: int, value: int) -> bool:
    """Set an option; False where the kernel does not know or allow it."""
    try:
        sock.setsockopt(level, name, value)
    except OSError:
        return False
    return True


def mtu_towards(family: int, address: Address) -> int:
    """Return the MTU of the route to `address`; nothing is sent. Ethernet's where the kernel does
    not tell.
    """
    v6 = family == socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(address)
            if _ON_LINUX:
                return asking.getsockopt(
                    socket.IPPROTO_IPV6 if v6 else socket.IPPROTO_IP, _IPV6_MTU if v6 else _IP_MTU
                )
    except OSError:
        pass  # no route any more: the connection will find out
    return ETHERNET_MTU


def bind_udp(host: str, port: int) -> list[socket.socket]:
    """Return UDP sockets at `host:port`, all on one port; port 0 picks one. Empty host: every address.

    Raises PortTaken, UserError. A name is looked up, which blocks.
    """
    return open_on_one_port(host, port, _bind_at, cannot=_cannot)


def _bind_at(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _cannot(host: str, port: int, error: OSError) -> UserError:
    reason = (error.strerror or str(error)).lower()
    return UserError(f"cannot use UDP on `{host}` port `{port}`: {reason}")


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
