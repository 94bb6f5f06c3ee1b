"""What two nodes tell each other to open a way through both their NATs at the same moment.

`Knock` begins an attempt, `PunchReady` says that the other side knows its addresses, `PunchGo` starts both:
its receiver begins at once, its sender half a round trip later. `No` ends an attempt. They travel as
signals, so their sender is known; what they say is still read with limits. Code of refusal: `message`.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.limits import MAX_TEXT_BYTES
from meshd.wire.message import Fields, Value, pack, plain, unpack
from meshd.wire.signal import ATTEMPT_BYTES, MAX_PAYLOAD_BYTES

MAX_PUNCH_CANDIDATES = 8  # of one side: three interfaces, two families, two mapped ones
MAX_WAITED_MS = 10_000
_PACKED_BYTES = 32 * 19


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock:
    """Let us try; the attempt is 16 random bytes."""

    attempt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PunchReady:
    """`candidates` of the answerer, and how long its answer took, in ms (no part of the path)."""

    attempt: bytes
    candidates: tuple[Candidate, ...]
    waited_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PunchGo:
    """`candidates` of the knocker: begin now."""

    attempt: bytes
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class No:
    """This attempt ends: `code` is `busy`, `ended`, or `glare` (the other side's own attempt goes on)."""

    attempt: bytes
    code: str
    text: str = ""


Punching = Knock | PunchReady | PunchGo | No


def encode(message: Punching) -> bytes:
    """The message as a signal's payload."""
    fields: dict[str, Value] = {"a": message.attempt}
    match message:
        case Knock():
            fields["t"] = "knock"
        case PunchReady():
            fields |= {"t": "ready", "at": _packed(message.candidates), "ms": message.waited_ms}
        case PunchGo():
            fields |= {"t": "go", "at": _packed(message.candidates)}
        case No():
            fields |= {"t": "no", "code": message.code, "text": plain(message.text)}
    return pack(fields)


def _packed(candidates: tuple[Candidate, ...]) -> bytes:
    return pack_candidates(candidates[:MAX_PUNCH_CANDIDATES])


def decode(data: bytes) -> Punching:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    fields = unpack(data, limit=MAX_PAYLOAD_BYTES)
    attempt = fields.raw("a", exact=ATTEMPT_BYTES)
    match fields.text("t", most=16):
        case "knock":
            return Knock(attempt=attempt)
        case "ready":
            waited = fields.number("ms", low=0, high=MAX_WAITED_MS)
            return PunchReady(attempt=attempt, candidates=_candidates(fields), waited_ms=waited)
        case "go":
            return PunchGo(attempt=attempt, candidates=_candidates(fields))
        case "no":
            text = fields.text("text", most=MAX_TEXT_BYTES, default="")
            return No(attempt=attempt, code=fields.text("code", most=16), text=text)
    raise RemoteProtocolError("an unknown message of hole punching", code="message")


def _candidates(fields: Fields) -> tuple[Candidate, ...]:
    """Those that may be connected to; a relay's port is none."""
    found = unpack_candidates(fields.raw("at", most=_PACKED_BYTES))
    return tuple(one for one in dict.fromkeys(found) if one.kind != "relay")[:MAX_PUNCH_CANDIDATES]
