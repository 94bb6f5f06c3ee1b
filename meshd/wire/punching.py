"""Messages of two nodes that open a way through both their NATs at the same moment.

`Knock` begins an attempt, `PunchReady` says that the other side knows its addresses, `PunchGo` starts both:
its receiver begins at once, its sender half a round trip later. `No` ends an attempt. They travel as signals,
so their sender is known; what they say is still read with limits. Code of refusal: `message`.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.bounds import As, AtMost, Between, Name, Prose, Size, Text
from meshd.wire.codec import Family, Message
from meshd.wire.signal import ATTEMPT_BYTES, MAX_PAYLOAD_BYTES

MAX_PUNCH_CANDIDATES = 8  # of one side: three interfaces, two families, two mapped ones
MAX_WAITED_MS = 10_000
_PACKED_BYTES = 32 * 19
_CODE_BYTES = 16
Attempt = Annotated[bytes, Name("a"), Size(ATTEMPT_BYTES)]


_Candidates = Annotated[
    tuple[Candidate, ...],
    Name("at"),
    As(
        Annotated[bytes, AtMost(_PACKED_BYTES)],
        lambda candidates: pack_candidates(candidates[:MAX_PUNCH_CANDIDATES]),
        lambda packed: _usable(unpack_candidates(packed)),
    ),
]


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
    candidates: _Candidates
    waited_ms: Annotated[int, Between(0, MAX_WAITED_MS), Name("ms")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PunchGo(AttemptMessage, tag="go"):
    """`candidates` of the knocker: begin now."""

    attempt: Attempt
    candidates: _Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class No(AttemptMessage, tag="no"):
    """This attempt ends: `code` is `busy`, `ended`, or `glare` (the other side's own attempt continues)."""

    attempt: Attempt
    code: Annotated[str, Text(_CODE_BYTES)]
    text: Prose = ""


Punching = Knock | PunchReady | PunchGo | No
_PUNCHING: Family[Punching] = Family("hole punching", Punching, limit=MAX_PAYLOAD_BYTES)


def decode(data: bytes) -> Punching:
    """Read a signal's payload. Raises RemoteProtocolError (code `message`)."""
    return _PUNCHING.decode(data)


def _usable(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Return the candidates that may be connected to; a relay's port is none."""
    return tuple(candidate for candidate in dict.fromkeys(candidates) if candidate.kind != "relay")[
        :MAX_PUNCH_CANDIDATES
    ]
