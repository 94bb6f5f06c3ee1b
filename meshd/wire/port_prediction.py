"""What two nodes tell each other to find a way through a NAT that gives each flow another port.

The side with such a NAT opens many ports towards the one port of the other side, which then tries ports until
it has hit one of them (link/port_prediction/links.py). `Ask` begins; `OnePort` names the one port,
`OpenedPorts` says that many are open. They travel as signals, so their sender is known; the probes between
are sealed with `key`.
"""

import ipaddress
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, unpack_candidates
from meshd.wire.limits import MAX_TEXT_BYTES
from meshd.wire.message import Fields, Value, pack, plain, unpack
from meshd.wire.netfacts import MAX_FACTS_BYTES, NetFacts
from meshd.wire.punching import No
from meshd.wire.signal import ATTEMPT_BYTES, MAX_PAYLOAD_BYTES
from meshd.wire.stun import Endpoint

PROBE_KEY_BYTES = 32
MAX_OPEN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Let us try: the key of the probes, what is known of the asker's network, and its port if it has one."""

    attempt: bytes
    key: bytes
    facts: NetFacts
    here: Endpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePort:
    """The one port, as seen from outside."""

    attempt: bytes
    place: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPorts:
    """`count` ports are open at the host of `seen`, which is the port that a server saw just before them.

    `step`: by which each flow's port goes on from the one before; 0 when they are chosen at random.
    """

    attempt: bytes
    seen: Endpoint
    step: int
    count: int


PortSearchMessage = Ask | OnePort | OpenedPorts | No


def encode(message: PortSearchMessage) -> bytes:
    """The message as a signal's payload."""
    fields: dict[str, Value] = {"a": message.attempt}
    match message:
        case Ask():
            fields |= {"t": "ask", "key": message.key, "net": message.facts.to_bytes()}
            if message.here is not None:
                fields["at"] = _packed(message.here)
        case OnePort():
            fields |= {"t": "here", "at": _packed(message.place)}
        case OpenedPorts():
            fields |= {"t": "opened", "at": _packed(message.seen), "step": message.step, "n": message.count}
        case No():
            fields |= {"t": "no", "code": message.code, "text": plain(message.text)}
    return pack(fields)


def decode(data: bytes) -> PortSearchMessage:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    fields = unpack(data, limit=MAX_PAYLOAD_BYTES)
    attempt = fields.raw("a", exact=ATTEMPT_BYTES)
    match fields.text("t", most=16):
        case "ask":
            return Ask(
                attempt=attempt,
                key=fields.raw("key", exact=PROBE_KEY_BYTES),
                facts=NetFacts.from_bytes(fields.raw("net", most=MAX_FACTS_BYTES)),
                here=_place(fields) if "at" in fields else None,
            )
        case "here":
            return OnePort(attempt=attempt, place=_place(fields))
        case "opened":
            step = fields.number("step", low=-127, high=127)
            count = fields.number("n", low=1, high=MAX_OPEN)
            return OpenedPorts(attempt=attempt, seen=_place(fields), step=step, count=count)
        case "no":
            text = fields.text("text", most=MAX_TEXT_BYTES, default="")
            return No(attempt=attempt, code=fields.text("code", most=16), text=text)
    raise RemoteProtocolError("an unknown message of a port search", code="message")


def _packed(place: Endpoint) -> bytes:
    return Candidate(place.host, place.port, "udp", "srflx").to_bytes()


def is_outer(place: Endpoint) -> bool:
    """Whether thousands of datagrams may go there: an IPv4 address, and no part of a site or a machine."""
    candidate = Candidate(place.host, place.port, "udp")
    inner = candidate.is_private or candidate.is_loopback or candidate.is_link_local
    return not candidate.is_v6 and not inner and not ipaddress.IPv4Address(candidate.host).is_reserved


def _place(fields: Fields) -> Endpoint:
    found = unpack_candidates(fields.raw("at", most=19))
    place = Endpoint(found[0].host, found[0].port) if len(found) == 1 else None
    if place is None or not is_outer(place):
        raise RemoteProtocolError("not a NAT's public port", code="message")
    return place
