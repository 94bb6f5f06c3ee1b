"""Signals: small messages to a peer beside any link, by which two nodes arrange a direct one.

Each is signed as a whole by its sender (identity/signal.py), so that nodes that pass it on can change
nothing. The payload belongs to the kind of link that `topic` names. Its sender is known; what it says is
still read with limits.

Offers and answers of links over ICE: instead of SDP (RFC 8866), which is text for browsers, a map of the few
things that matter: ICE user and password (RFC 8445 5.3), the fingerprint of the certificate, addresses.

Hole punching opens a way through both NATs at the same moment. `Knock` begins an attempt, `PunchReady` says
that the other side knows its addresses, `PunchGo` starts both: its receiver begins at once, its sender half a
round trip later. `No` ends an attempt.

A port search finds a way through a NAT that gives each flow another port. The side with such a NAT opens many
ports towards the one port of the other side, which then tries ports until it has hit one of them
(link/port_prediction/links.py). `Ask` begins; `OnePort` names the one port, `OpenedPorts` says that many are
open. The probes between are sealed with `key`.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.codec import Family, Message, decode_as
from meshd.wire.limits import (
    INLINE,
    MAX_CHAIN_BYTES,
    MAX_TIME,
    OMIT,
    PEER_BYTES,
    As,
    AtMost,
    Between,
    Name,
    NodeId,
    Prose,
    Size,
    Text,
)
from meshd.wire.netfacts import MAX_FACTS_BYTES, NetFacts
from meshd.wire.stun import Endpoint

SIGNAL_SERVICE = "signal"

MAX_SIGNAL_BYTES = 6 << 10  # a whole signal with its signature and its sender's chain
MAX_PAYLOAD_BYTES = 4096
ATTEMPT_BYTES = 16  # names one attempt to connect, in the payloads of all topics
MAX_TOPIC_BYTES = 16
MAX_LIFE = 120  # seconds
COOKIE_BYTES = 8
START_BYTES = 16
_MAX_SIGNALS = (1 << 63) - 1

MAX_OFFERED = 16  # addresses in one message; each is paired with each of ours, and checks are paced
FINGERPRINT_BYTES = 32  # SHA-256
MAX_OFFER_SECONDS = 60.0
_LETTERS = re.compile(r"[A-Za-z0-9+/]*")  # ice-char of RFC 8839 5.4
_PACKED_BYTES = 19 * 32  # of the longest, and as many as `unpack_candidates` takes

_OfferAttempt = Annotated[bytes, Size(ATTEMPT_BYTES)]
_Offered = Annotated[
    tuple[Candidate, ...],
    As(
        Annotated[bytes, AtMost(_PACKED_BYTES)],
        lambda candidates: pack_candidates(candidates[:MAX_OFFERED]),
        lambda packed: unpack_candidates(packed)[:MAX_OFFERED],
    ),
]

MAX_PUNCH_CANDIDATES = 8  # of one side: three interfaces, two families, two mapped ones
MAX_WAITED_MS = 10_000
_CODE_BYTES = 16
Attempt = Annotated[bytes, Name("a"), Size(ATTEMPT_BYTES)]

_PunchCandidates = Annotated[
    tuple[Candidate, ...],
    Name("at"),
    As(
        Annotated[bytes, AtMost(_PACKED_BYTES)],
        lambda candidates: pack_candidates(candidates[:MAX_PUNCH_CANDIDATES]),
        lambda packed: _usable(unpack_candidates(packed)),
    ),
]

PROBE_KEY_BYTES = 32
MAX_OPEN = 256
_PACKED_PLACE_BYTES = 19  # of one candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalBody(Message):
    """The signed part of a signal. `sender` and `to` are node ids of 32 bytes.

    `start` (16 bytes, the incarnation of the sender's daemon, of which a greater one is newer) and `sequence`
    together never come twice. `at` is unix seconds by the sender's clock, `life` the seconds for which it is
    valid. `cookie` is what the receiver is to send back as `echo`: that proves without any clock when a
    signal was made. An empty topic only delivers the cookie: the last signals came too late, or the clocks
    differ.
    """

    sender: Annotated[bytes, Size(PEER_BYTES), Name("from")]
    to: NodeId
    topic: Annotated[str, Text(MAX_TOPIC_BYTES)]
    start: Annotated[bytes, Size(START_BYTES)]
    sequence: Annotated[int, Between(0, _MAX_SIGNALS), Name("seq")]
    at: Annotated[int, Between(0, MAX_TIME)]
    life: Annotated[int, Between(1, MAX_LIFE)]
    cookie: Annotated[bytes, Size(COOKIE_BYTES)]
    echo: Annotated[bytes, Size(0, COOKIE_BYTES)]
    payload: Annotated[bytes, AtMost(MAX_PAYLOAD_BYTES), Name("data")]
    chain: Annotated[bytes, AtMost(MAX_CHAIN_BYTES)]

    @classmethod
    def decode(cls, data: bytes) -> "SignalBody":
        """Read the output of `encode`. Raises RemoteProtocolError (code `message`)."""
        return decode_as(cls, data, limit=MAX_SIGNAL_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One side's ICE user (4–32 letters) and password (22–64), SHA-256 of its DTLS certificate, and the
    addresses known so far.
    """

    user: Annotated[str, Text(32, least=4, pattern=_LETTERS)]
    password: Annotated[str, Text(64, least=22, pattern=_LETTERS)]
    fingerprint: Annotated[bytes, Size(FINGERPRINT_BYTES)]
    candidates: _Offered


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Message, tag="offer"):
    """A proposal to meet: `attempt` names this try, the offerer continues for `seconds` (0–60) from its
    sending.

    Seconds and no date: clocks of nodes may be hours apart.
    """

    attempt: _OfferAttempt
    terms: Annotated[Terms, INLINE]
    seconds: Annotated[float, Between(0.0, MAX_OFFER_SECONDS, clamp=True), Name("seconds", before="terms")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Message, tag="answer"):
    """The answerer's side, agreeing."""

    attempt: _OfferAttempt
    terms: Annotated[Terms, INLINE]


@dataclass(frozen=True, slots=True, kw_only=True)
class More(Message, tag="more"):
    """Addresses that were found after the offer or the answer had gone out (trickle, RFC 8838)."""

    attempt: _OfferAttempt
    candidates: _Offered


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferGone(Message, tag="gone"):
    """The sender has given this attempt up."""

    attempt: _OfferAttempt
    why: Annotated[str, Text(200, cut=True)]


OfferSignal = Offer | Answer | More | OfferGone


_OFFERS: Family[OfferSignal] = Family("offer", OfferSignal, limit=MAX_PAYLOAD_BYTES)


def decode_offer(data: bytes) -> OfferSignal | None:
    """Read a signal; None for a type that a later version brought. Raises RemoteProtocolError."""
    return _OFFERS.decode_known(data)


class AttemptMessage(Message, key="t", place=1):
    """A message about one attempt, whose 16 random bytes it begins with."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock(AttemptMessage, tag="knock"):
    """The first message; the attempt is 16 random bytes."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class PunchReady(AttemptMessage, tag="ready"):
    """`candidates` of the answerer, and how long its answer took, in ms (no part of the path)."""

    attempt: Attempt
    candidates: _PunchCandidates
    waited_ms: Annotated[int, Between(0, MAX_WAITED_MS), Name("ms")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PunchGo(AttemptMessage, tag="go"):
    """`candidates` of the knocker: begin now."""

    attempt: Attempt
    candidates: _PunchCandidates


@dataclass(frozen=True, slots=True, kw_only=True)
class No(AttemptMessage, tag="no"):
    """This attempt ends: `code` is `busy`, `ended`, or `glare` (the other side's own attempt continues)."""

    attempt: Attempt
    code: Annotated[str, Text(_CODE_BYTES)]
    text: Prose = ""


Punching = Knock | PunchReady | PunchGo | No


_PUNCHING: Family[Punching] = Family("hole punching", Punching, limit=MAX_PAYLOAD_BYTES)


def decode_punching(data: bytes) -> Punching:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    return _PUNCHING.decode(data)


def _usable(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Return the candidates that may be connected to; a relay's port is none."""
    return tuple(candidate for candidate in dict.fromkeys(candidates) if candidate.kind != "relay")[
        :MAX_PUNCH_CANDIDATES
    ]


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


_Place = Annotated[Endpoint, As(Annotated[bytes, AtMost(_PACKED_PLACE_BYTES)], _packed, _unpacked)]


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


def decode_search(data: bytes) -> PortSearchMessage:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    return _SEARCH.decode(data)
