"""Offers and answers of the webrtc link: what two nodes tell each other before any packet passes.

Instead of SDP (RFC 8866), which is text for browsers, a map of the few things that matter: ICE user and
password (RFC 8445 5.3), the fingerprint of the DTLS certificate, addresses. The signed envelope around it
(`Signals`) says who it is from; it has at most 4096 bytes, and so have these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.message import Fields, pack, plain, unpack
from meshd.wire.signal import ATTEMPT_BYTES, MAX_PAYLOAD_BYTES

MAX_OFFERED = 16  # addresses in one message; each is paired with each of ours, and checks are paced
FINGERPRINT_BYTES = 32  # SHA-256
MAX_OFFER_SECONDS = 60.0
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_CANDIDATE_BYTES = 19 * 32  # of the longest, and as many as `unpack_candidates` takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How one side is reached and known: ICE user (4–32 letters) and password (22–64), SHA-256 of its
    DTLS certificate, addresses known so far."""

    user: str
    password: str
    fingerprint: bytes
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Let us meet: `attempt` names this try, the offerer goes on for `seconds` (0–60) from its sending.

    Seconds and no date: clocks of nodes may be hours apart.
    """

    attempt: bytes
    terms: Terms
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Yes: the answerer's side."""

    attempt: bytes
    terms: Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class More:
    """Addresses that were found after the offer or the answer had gone out (trickle, RFC 8838)."""

    attempt: bytes
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferGone:
    """The sender has given this attempt up."""

    attempt: bytes
    why: str


OfferSignal = Offer | Answer | More | OfferGone


def encode_offer(signal: OfferSignal) -> bytes:
    """As bytes, at most `MAX_PAYLOAD_BYTES`; addresses beyond 16 are left out."""
    if isinstance(signal, Offer):
        seconds = min(max(signal.seconds, 0.0), MAX_OFFER_SECONDS)
        return pack(
            {"type": "offer", "attempt": signal.attempt, "seconds": seconds, **_terms_fields(signal.terms)}
        )
    if isinstance(signal, Answer):
        return pack({"type": "answer", "attempt": signal.attempt, **_terms_fields(signal.terms)})
    if isinstance(signal, More):
        return pack({"type": "more", "attempt": signal.attempt, "candidates": _packed(signal.candidates)})
    return pack({"type": "gone", "attempt": signal.attempt, "why": plain(signal.why, 200)})


def decode_offer(data: bytes) -> OfferSignal | None:
    """Read a signal; None for a type that a later version brought. Raises RemoteProtocolError."""
    fields = unpack(data, limit=MAX_PAYLOAD_BYTES)
    kind = fields.text("type", most=16)
    attempt = fields.raw("attempt", exact=ATTEMPT_BYTES)
    if kind == "offer":
        seconds = fields.real("seconds", low=0.0, high=MAX_OFFER_SECONDS)
        return Offer(attempt=attempt, terms=_read_terms(fields), seconds=seconds)
    if kind == "answer":
        return Answer(attempt=attempt, terms=_read_terms(fields))
    if kind == "more":
        return More(attempt=attempt, candidates=_read_candidates(fields))
    if kind == "gone":
        return OfferGone(attempt=attempt, why=fields.text("why", most=200))
    return None


def _terms_fields(terms: Terms) -> dict[str, str | bytes]:
    return {
        "user": terms.user,
        "password": terms.password,
        "fingerprint": terms.fingerprint,
        "candidates": _packed(terms.candidates),
    }


def _packed(candidates: Sequence[Candidate]) -> bytes:
    return pack_candidates(candidates[:MAX_OFFERED])


def _read_terms(fields: Fields) -> Terms:
    return Terms(
        user=_letters(fields, "user", 4, 32),
        password=_letters(fields, "password", 22, 64),
        fingerprint=fields.raw("fingerprint", exact=FINGERPRINT_BYTES),
        candidates=_read_candidates(fields),
    )


def _letters(fields: Fields, name: str, least: int, most: int) -> str:
    """ice-char of RFC 8839 5.4."""
    text = fields.text(name, most=most)
    if len(text) < least or not _LETTERS.issuperset(text):
        raise RemoteProtocolError(f"field `{name}` must be {least} to {most} ICE letters", code="message")
    return text


def _read_candidates(fields: Fields) -> tuple[Candidate, ...]:
    return unpack_candidates(fields.raw("candidates", most=_CANDIDATE_BYTES))[:MAX_OFFERED]
