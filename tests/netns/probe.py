"""Look at a NAT with plain sockets from both sides, so that the bench cannot lie about its kinds.

No waiting for what may not come: behind each packet that may be dropped goes one that cannot be (the *fence*,
from the place that was sent to). The lines of the bench keep the order, so what has not come before the
fence never will.
"""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from tests.netns.space import Namespace
from tests.netns.world import Host, family_of

SECONDS = 5.0  # until something that must come is missed


class Filtering(StrEnum):
    """Who may answer (RFC 4787, section 5)."""

    ENDPOINT = "endpoint-independent"
    ADDRESS = "address-dependent"
    ADDRESS_PORT = "address and port-dependent"


@dataclass(frozen=True, slots=True)
class Seen:
    """`mapped`: the ports under which three remote places saw one socket, in order of sending."""

    local: int
    mapped: tuple[int, ...]
    hosts: frozenset[str]

    @property
    def independent(self) -> bool:
        """One mapping for all destinations."""
        return len(set(self.mapped)) == 1


@contextmanager
def udp_socket(space: Namespace, host: str, port: int = 0) -> Iterator[socket.socket]:
    """A UDP socket inside, bound."""
    with space.socket(family_of(host), socket.SOCK_DGRAM) as made:
        made.bind((host, port))
        made.settimeout(SECONDS)
        yield made


def addresses_for(client: Host, server: Host) -> tuple[str, ...]:
    """The server's addresses of the family that the client has."""
    return server.v4 if client.v4 else server.v6


@contextmanager
def _places(client: Host, server: Host) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """Sockets of a public host: two ports of one address, and one of another address."""
    first, second = addresses_for(client, server)
    with (
        udp_socket(server.space, first) as a,
        udp_socket(server.space, first) as b,
        udp_socket(server.space, second) as c,
    ):
        yield a, b, c


def udp_mapping(client: Host, server: Host, local: int = 0) -> Seen:
    """Send from one socket to three places."""
    with udp_socket(client.space, client.address, local) as ours, _places(client, server) as places:
        found = [_ask(ours, place) for place in places]
        port = ours.getsockname()[1]
        return Seen(port, tuple(port for _, port in found), frozenset(host for host, _ in found))


def _ask(ours: socket.socket, place: socket.socket) -> tuple[str, int]:
    ours.sendto(b"who am I", place.getsockname())
    _, seen = place.recvfrom(64)
    return seen[0], seen[1]


def udp_filtering(client: Host, server: Host) -> Filtering:
    """Send to one place, be answered by all of them."""
    with udp_socket(client.space, client.address) as ours, _places(client, server) as (asked, port, address):
        mapped = _ask(ours, asked)
        address.sendto(b"address", mapped)
        port.sendto(b"port", mapped)
        asked.sendto(b"fence", mapped)
        came = set()
        while (data := ours.recv(64)) != b"fence":
            came.add(data)
    if b"address" in came:
        return Filtering.ENDPOINT
    return Filtering.ADDRESS if b"port" in came else Filtering.ADDRESS_PORT


def mapping_is_forgotten(client: Host, server: Host, forget: Callable[[], None]) -> bool:
    """Return True if an answer is lost once `forget()` was called."""
    with udp_socket(client.space, client.address) as ours, _places(client, server) as (asked, _, _):
        mapped = _ask(ours, asked)
        forget()
        asked.sendto(b"late", mapped)
        asked.sendto(b"fence", _ask(ours, asked))
        return ours.recv(64) == b"fence"


def tcp_mapping(client: Host, server: Host) -> Seen:
    """Connect from one local port to two places."""
    seen: list[tuple[str, int]] = []
    local = 0
    with ExitStack() as stack:
        for host in addresses_for(client, server):
            listener = stack.enter_context(tcp_listener(server, host))
            ours = stack.enter_context(tcp_socket(client, local))
            ours.connect(listener.getsockname())
            local = ours.getsockname()[1]
            theirs, place = listener.accept()
            stack.enter_context(theirs)
            seen.append((place[0], place[1]))
    return Seen(local, tuple(port for _, port in seen), frozenset(host for host, _ in seen))


@contextmanager
def tcp_listener(host: Host, address: str, port: int = 0) -> Iterator[socket.socket]:
    """A listening socket inside."""
    with host.space.socket(family_of(address), socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.settimeout(SECONDS)
        made.bind((address, port))
        made.listen(16)
        yield made


@contextmanager
def tcp_socket(host: Host, local: int = 0) -> Iterator[socket.socket]:
    """A socket inside that may share its port with others of ours; it waits for SECONDS at most."""
    with host.space.socket(family_of(host.address), socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.settimeout(SECONDS)
        made.bind((host.address, local))
        yield made


def udp_arrives(client: Host, server: Host) -> bool:
    """Return True if a UDP packet from `client` reaches a public host."""
    [host, *_] = addresses_for(client, server)
    with udp_socket(server.space, host) as place, udp_socket(client.space, client.address) as ours:
        ours.sendto(b"knock", place.getsockname())
        fence(client, server)
        return _has_come(place)


def tcp_arrives(client: Host, server: Host, port: int) -> bool:
    """Return True if a SYN from `client` reaches that port of a public host."""
    [host, *_] = addresses_for(client, server)
    with tcp_listener(server, host, port) as listener, tcp_socket(client) as ours:
        ours.setblocking(False)
        ours.connect_ex(listener.getsockname())
        fence(client, server)
        return bool(select.select([listener], [], [], 0)[0])


def fence(client: Host, server: Host) -> None:
    """Come back when all that `client` has sent to `server` has arrived, or never will.

    By TCP 443, which gets out everywhere.
    """
    [host, *_] = addresses_for(client, server)
    with tcp_listener(server, host, 443) as listener, tcp_socket(client) as ours:
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(SECONDS)
            theirs.sendall(b"fence")
            assert ours.recv(64) == b"fence"


def _has_come(place: socket.socket) -> bool:
    return bool(select.select([place], [], [], 0)[0])


def reaches(sender: Host, to: tuple[str, int], receiver: socket.socket, fence: Callable[[], None]) -> bool:
    """Return True if a datagram from `sender` to `to` comes out of `receiver`."""
    with udp_socket(sender.space, sender.address) as ours:
        ours.sendto(b"hello", to)
        fence()
    return _has_come(receiver)
