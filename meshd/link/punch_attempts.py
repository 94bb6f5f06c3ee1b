"""Attempts to punch that are under way: who may begin one, and to which one a message belongs. Pure.

Both sides may knock at the same time. Then the attempt of the node with the higher id goes on and the other
one yields, on both sides alike, whatever order the messages come in.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.identity.keys import PeerId
from meshd.wire.punching import Go, No, Punching, Ready

MAX_ANSWERED = 16  # attempts of others at once; each costs some sockets for some seconds
MAX_ANSWERED_OF_ONE = 8


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt; `deliver` gets what the peer says about it."""

    peer: PeerId
    ours: bool
    deliver: Callable[[Punching], None]
    yielded: bool = field(default=False)


class Attempts:
    """All attempts of one node by their ids."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self._known: dict[bytes, Attempt] = {}

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, attempt_id: bytes, peer: PeerId, deliver: Callable[[Punching], None]) -> Attempt:
        """Our own attempt."""
        made = self._known[attempt_id] = Attempt(peer, True, deliver)
        return made

    def answer(
        self, attempt_id: bytes, peer: PeerId, deliver: Callable[[Punching], None]
    ) -> Attempt | No | None:
        """What a knock of `peer` leads to: an attempt, a refusal to send, or nothing (a copy)."""
        if attempt_id in self._known:
            return None
        ours = {
            own_id: one
            for own_id, one in self._known.items()
            if one.ours and one.peer == peer and not one.yielded
        }
        if ours and self._own > peer:
            return No(attempt=attempt_id, code="glare")
        theirs = [one for one in self._known.values() if not one.ours]
        of_one = sum(one.peer == peer for one in theirs)
        if len(theirs) >= MAX_ANSWERED or of_one >= MAX_ANSWERED_OF_ONE:
            return No(attempt=attempt_id, code="busy", text="too many attempts at once")
        for own_id, one in ours.items():
            one.yielded = True
            one.deliver(No(attempt=own_id, code="glare"))
        made = self._known[attempt_id] = Attempt(peer, False, deliver)
        return made

    def heard(self, peer: PeerId, message: Punching) -> None:
        """Give a message to its attempt, if `peer` may speak there."""
        attempt = self._known.get(message.attempt)
        if attempt is None or attempt.peer != peer:
            return
        expected = Ready if attempt.ours else Go
        if isinstance(message, No | expected):
            attempt.deliver(message)

    def end(self, attempt_id: bytes) -> None:
        """It is over."""
        self._known.pop(attempt_id, None)
