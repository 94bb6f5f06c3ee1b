"""Attempts to punch that are under way: who may begin one, and to which one a message belongs. Pure.

Both sides may knock at the same time. Then the attempt of the node with the higher id goes on and the other
one yields, on both sides alike, whatever order the messages come in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from meshd.base.peer_limits import KNOCKS, KNOCKS_OF_PEER
from meshd.identity.keys import PeerId

MAX_ANSWERED = KNOCKS.most  # each costs some sockets for some seconds
MAX_ANSWERED_OF_ONE = KNOCKS_OF_PEER.most

M = TypeVar("M")


class PunchVerdict(StrEnum):
    """The reason why an attempt is refused, as the other side is told."""

    GLARE = "glare"  # our own attempt at that peer goes on
    BUSY = "busy"


def _stay() -> None:
    return None


@dataclass(slots=True, eq=False)
class PunchAttempt(Generic[M]):
    """One attempt; `deliver` gets what the peer says about it, `give_way` is called when it yields."""

    peer: PeerId
    ours: bool
    deliver: Callable[[M], None]
    give_way: Callable[[], None] = _stay
    yielded: bool = False


class Attempts(Generic[M]):
    """All attempts of one node by their ids."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._known: dict[bytes, PunchAttempt[M]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, attempt_id: bytes, peer: PeerId, deliver: Callable[[M], None]) -> PunchAttempt[M]:
        """Begin our own attempt."""
        made = self._known[attempt_id] = PunchAttempt(peer, True, deliver)
        return made

    def answer(
        self, attempt_id: bytes, peer: PeerId, deliver: Callable[[M], None]
    ) -> PunchAttempt[M] | PunchVerdict | None:
        """Handle a knock of `peer`: return an attempt, a refusal to send, or None (a copy)."""
        if attempt_id in self._known:
            return None
        ours = [
            attempt
            for attempt in self._known.values()
            if attempt.ours and attempt.peer == peer and not attempt.yielded
        ]
        if ours and self._own > peer:
            return PunchVerdict.GLARE
        theirs = [attempt for attempt in self._known.values() if not attempt.ours]
        of_one = sum(attempt.peer == peer for attempt in theirs)
        if len(theirs) >= MAX_ANSWERED or of_one >= MAX_ANSWERED_OF_ONE:
            return PunchVerdict.BUSY
        for attempt in ours:
            attempt.yielded = True
            attempt.give_way()
        made = self._known[attempt_id] = PunchAttempt(peer, False, deliver)
        return made

    def heard(self, peer: PeerId, attempt_id: bytes, message: M) -> None:
        """Give a message to its attempt, if `peer` may speak there."""
        attempt = self._known.get(attempt_id)
        if attempt is not None and attempt.peer == peer:
            attempt.deliver(message)

    def end(self, attempt_id: bytes) -> None:
        """Forget an attempt that is over."""
        self._known.pop(attempt_id, None)
