"""Offers and answers of the webrtc link: what two nodes tell each other before any packet passes.

Instead of SDP (RFC 8866), which is text for browsers, a map of the few things that matter: ICE user and
password (RFC 8445 5.3), the fingerprint of the DTLS certificate, addresses. The signed envelope around it
(`Signals`) says who it is from; it has at most 4096 bytes, and so have these.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.bounds import INLINE, As, AtMost, Between, Name, Size, Text
from meshd.wire.codec import Family, Message
from meshd.wire.signal import ATTEMPT_BYTES, MAX_PAYLOAD_BYTES

MAX_OFFERED = 16  # addresses in one message; each is paired with each of ours, and checks are paced
FINGERPRINT_BYTES = 32  # SHA-256
MAX_OFFER_SECONDS = 60.0
_LETTERS = re.compile(r"[A-Za-z0-9+/]*")  # ice-char of RFC 8839 5.4
_PACKED_BYTES = 19 * 32  # of the longest, and as many as `unpack_candidates` takes


_Attempt = Annotated[bytes, Size(ATTEMPT_BYTES)]
_Candidates = Annotated[
    tuple[Candidate, ...],
    As(
        Annotated[bytes, AtMost(_PACKED_BYTES)],
        lambda candidates: pack_candidates(candidates[:MAX_OFFERED]),
        lambda packed: unpack_candidates(packed)[:MAX_OFFERED],
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One side's ICE user (4–32 letters) and password (22–64), SHA-256 of its DTLS certificate, and the
    addresses known so far.
    """

    user: Annotated[str, Text(32, least=4, pattern=_LETTERS)]
    password: Annotated[str, Text(64, least=22, pattern=_LETTERS)]
    fingerprint: Annotated[bytes, Size(FINGERPRINT_BYTES)]
    candidates: _Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Message, tag="offer"):
    """A proposal to meet: `attempt` names this try, the offerer continues for `seconds` (0–60) from its
    sending.

    Seconds and no date: clocks of nodes may be hours apart.
    """

    attempt: _Attempt
    terms: Annotated[Terms, INLINE]
    seconds: Annotated[float, Between(0.0, MAX_OFFER_SECONDS, clamp=True), Name("seconds", before="terms")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Message, tag="answer"):
    """The answerer's side, agreeing."""

    attempt: _Attempt
    terms: Annotated[Terms, INLINE]


@dataclass(frozen=True, slots=True, kw_only=True)
class More(Message, tag="more"):
    """Addresses that were found after the offer or the answer had gone out (trickle, RFC 8838)."""

    attempt: _Attempt
    candidates: _Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferGone(Message, tag="gone"):
    """The sender has given this attempt up."""

    attempt: _Attempt
    why: Annotated[str, Text(200, cut=True)]


OfferSignal = Offer | Answer | More | OfferGone
_OFFERS: Family[OfferSignal] = Family("offer", OfferSignal, limit=MAX_PAYLOAD_BYTES)


def decode_offer(data: bytes) -> OfferSignal | None:
    """Read a signal; None for a type that a later version brought. Raises RemoteProtocolError."""
    return _OFFERS.decode_known(data)
