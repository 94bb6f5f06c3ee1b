"""Netcheck finds out what kind of network this node is in: observations, and the probes that make them.

`classify.py` turns observations into `NetFacts` (wire/netfacts.py), `advice.py` turns facts into words and
into what two nodes may try; both are pure. `probe.py` asks the servers that the user configured, and nobody
else. `probe.py` repeats it politely.
"""

from dataclasses import dataclass
from enum import StrEnum

from meshd.wire.netfacts import Mapped, NetFacts
from meshd.wire.stun import Endpoint


class Outcome(StrEnum):
    """The result of a connection to a server."""

    OK = "ok"  # it answered as such a server does, or took the connection where no more is asked
    REFUSED = "refused"  # an RST: somebody is there, and wants none
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    MUTE = "mute"  # connected, and no answer came
    ODD = "odd"  # something else answered in its place


@dataclass(frozen=True, slots=True)
class Seen:
    """A server's answer: what a socket of that number sent from `local` to `server` came from `mapped`.

    `at` in loop seconds.
    """

    socket: int
    at: float
    local: Endpoint
    server: Endpoint
    mapped: Endpoint


@dataclass(frozen=True, slots=True)
class FilterTest:
    """A test of filtering (RFC 5780, 4.4) on a socket that had sent nothing elsewhere before: which answers
    got in.

    `other_works`: the server's other address does answer when asked itself, so its silence means filtering.
    """

    from_elsewhere: bool
    from_other_port: bool
    other_works: bool


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """A TCP connection tried to a configured server."""

    server: Endpoint
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The observations of one check. `udp_asked` counts the servers that were sent datagrams; None: not
    tried. `udp_asked` counts the servers that were sent datagrams; None: not tried.

    `router` is what port mapping knows: its state, and the router's outer address (empty if unknown).
    """

    hosts: tuple[str, ...] = ()  # addresses of this machine that others may try
    udp_asked: int = 0
    udp: tuple[Seen, ...] = ()
    filters: tuple[FilterTest, ...] = ()
    connections: tuple[ConnectionFacts, ...] = ()
    tcp: tuple[Seen, ...] = ()
    v6_asked: int = 0
    hairpin: bool | None = None
    mapped: Mapped = Mapped.UNKNOWN
    router_external: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetReport:
    """Facts, and when they were found out (loop seconds). `unresolved`: servers whose name was not found."""

    facts: NetFacts
    at: float
    seconds: float
    servers: tuple[str, ...]
    unresolved: tuple[str, ...] = ()
    seen_v6: str = ""
