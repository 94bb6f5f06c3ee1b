"""Messages of two nodes that search a way through a NAT that gives each flow another port.

The side with such a NAT opens many ports towards the one port of the other side, which then tries ports until
it has hit one of them (link/port_prediction/links.py). `Ask` begins; `OnePort` names the one port,
`OpenedPorts` says that many are open. They travel as signals, so their sender is known; the probes between
are sealed with `key`.
"""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, unpack_candidates
from meshd.wire.bounds import OMIT, As, AtMost, Between, Name, Size
from meshd.wire.codec import Family
from meshd.wire.netfacts import MAX_FACTS_BYTES, NetFacts
from meshd.wire.punching import Attempt, AttemptMessage, No
from meshd.wire.signal import MAX_PAYLOAD_BYTES
from meshd.wire.stun import Endpoint

PROBE_KEY_BYTES = 32
MAX_OPEN = 256
_PACKED_BYTES = 19  # of one candidate


def is_outer(place: Endpoint) -> bool:
    """Return True if thousands of datagrams may go there: an IPv4 address, not of a site or a machine."""
    candidate = Candidate(place.host, place.port, "udp")
    inner = candidate.is_private or candidate.is_loopback or candidate.is_link_local
    return not candidate.is_v6 and not inner and not ipaddress.IPv4Address(candidate.host).is_reserved


def _packed(place: Endpoint) -> bytes:
    return Candidate(place.host, place.port, "udp", "srflx").to_bytes()


def _unpacked(packed: bytes) -> Endpoint:
    found = unpack_candidates(packed)
    place = Endpoint(found[0].host, found[0].port) if len(found) == 1 else None
    if place is None or not is_outer(place):
        raise RemoteProtocolError("not a NAT's public port", code="message")
    return place


_Place = Annotated[Endpoint, As(Annotated[bytes, AtMost(_PACKED_BYTES)], _packed, _unpacked)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(AttemptMessage, tag="ask"):
    """A proposal: the key of the probes, the asker's network facts, and its port if it has one."""

    attempt: Attempt
    key: Annotated[bytes, Size(PROBE_KEY_BYTES)]
    facts: Annotated[
        NetFacts,
        Name("net"),
        As(Annotated[bytes, AtMost(MAX_FACTS_BYTES)], NetFacts.to_bytes, NetFacts.from_bytes),
    ]
    here: Annotated[_Place | None, Name("at"), OMIT] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePort(AttemptMessage, tag="here"):
    """The one port, as seen from outside."""

    attempt: Attempt
    place: Annotated[_Place, Name("at")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPorts(AttemptMessage, tag="opened"):
    """`count` ports are open at the host of `seen`, which is the port that a server saw just before them.

    `step`: by which each flow's port goes on from the one before; 0 when they are chosen at random.
    """

    attempt: Attempt
    seen: Annotated[_Place, Name("at")]
    step: Annotated[int, Between(-127, 127)]
    count: Annotated[int, Between(1, MAX_OPEN), Name("n")]


PortSearchMessage = Ask | OnePort | OpenedPorts | No
_SEARCH: Family[PortSearchMessage] = Family("port search", PortSearchMessage, limit=MAX_PAYLOAD_BYTES)


def decode(data: bytes) -> PortSearchMessage:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    return _SEARCH.decode(data)
