"""Decides which session a new link belongs to: two pure functions, one for each side.

The leader's Hello offers the session it has (`current`) and the first half of the id of the next one
(`fresh`, the same on every link until it is used, so that links which race agree). The follower takes one and
answers with a whole id. The second half is the follower's own: a session that one side lost and the other
kept can therefore never be taken for its successor. tests/unit/mux/test_session_choice.py has the races.
"""

from dataclasses import dataclass
from enum import Enum

from meshd.base.errors import RemoteProtocolError

HALF_BYTES = 8  # of a session id, from each side
SESSION_ID_BYTES = 2 * HALF_BYTES


@dataclass(frozen=True, slots=True)
class SessionOffer:
    """The leader's part of Hello. Raises RemoteProtocolError when lengths are wrong."""

    current: bytes | None  # SESSION_ID_BYTES: the session that the leader has
    fresh: bytes  # HALF_BYTES, random: begins the id of the next session

    def __post_init__(self) -> None:
        if self.current is not None and len(self.current) != SESSION_ID_BYTES:
            raise RemoteProtocolError(f"session id of {len(self.current)} bytes", code="session")
        if len(self.fresh) != HALF_BYTES:
            raise RemoteProtocolError(f"half session id of {len(self.fresh)} bytes", code="session")


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The follower's part: the id it takes; `begins` when it must make a new session (and lose its own)."""

    session_id: bytes
    begins: bool


class SessionVerdict(Enum):
    """The leader's decision about a link, given the follower's answer."""

    ATTACH = "attach"  # to the session it has
    BEGIN = "begin"  # lose the session it has, if any; make the answered one; draw a new `fresh`
    STALE = "stale"  # close this link: it speaks of a session long gone


def answer(offer: SessionOffer, *, mine: bytes | None, salt: bytes) -> SessionAnswer:
    """Return the follower's choice; `mine` is its session, if any, `salt` HALF_BYTES of randomness."""
    if mine is not None and (mine == offer.current or mine[:HALF_BYTES] == offer.fresh):
        return SessionAnswer(session_id=mine, begins=False)
    return SessionAnswer(session_id=offer.fresh + salt, begins=True)


def settle(answered: bytes, *, current: bytes | None, fresh: bytes) -> SessionVerdict:
    """Return the leader's decision, with `current` and `fresh` as they are when the answer arrives.

    Raises RemoteProtocolError for a malformed id.
    """
    if len(answered) != SESSION_ID_BYTES:
        raise RemoteProtocolError(f"session id of {len(answered)} bytes", code="session")
    if answered == current:
        return SessionVerdict.ATTACH
    half = answered[:HALF_BYTES]
    if half == fresh or (current is not None and half == current[:HALF_BYTES]):
        return SessionVerdict.BEGIN
    return SessionVerdict.STALE
