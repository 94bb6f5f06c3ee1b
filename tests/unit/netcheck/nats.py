"""A NAT on paper: what servers would see behind it."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.netcheck.interface import Seen
from meshd.wire.stun import Endpoint

LAN, OUTSIDE = "192.168.1.10", "20.1.0.2"
SERVERS = tuple(Endpoint(host, port) for host in ("20.9.0.2", "20.9.0.3") for port in (3478, 3479))
Key = Callable[[Endpoint, Endpoint], object]
Pick = Callable[[int, int], int]  # from the inner port and a running number


def no_matter_where(local: Endpoint, _remote: Endpoint) -> object:
    """Endpoint-independent."""
    return local


def by_address(local: Endpoint, remote: Endpoint) -> object:
    """Another port for each remote address."""
    return local, remote.host


def by_place(local: Endpoint, remote: Endpoint) -> object:
    """Another port for each remote address and port."""
    return local, remote


@dataclass(slots=True)
class PaperNat:
    """`key`: what shares one outside port; `port`: which it is, given the inner one and a running number."""

    key: Key
    port: Pick
    outside: str = OUTSIDE
    known: dict[object, int] = field(default_factory=dict)

    def sees(self, local: Endpoint, remote: Endpoint) -> Endpoint:
        """Where `remote` sees a packet of `local` come from."""
        key = self.key(local, remote)
        if key not in self.known:
            self.known[key] = self.port(local.port, len(self.known))
        return Endpoint(self.outside, self.known[key])


def observed(
    sees: Callable[[Endpoint, Endpoint], Endpoint],
    *,
    servers: tuple[Endpoint, ...] = SERVERS,
    sockets: int = 4,
    host: str = LAN,
) -> tuple[Seen, ...]:
    """Each of some sockets asks each server, one after another."""
    at = itertools.count()
    return tuple(
        Seen(number, float(next(at)), local, server, sees(local, server))
        for number in range(sockets)
        for local in (Endpoint(host, 30000 + 7 * number),)
        for server in servers
    )
