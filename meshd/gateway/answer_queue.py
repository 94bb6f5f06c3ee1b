"""Whose turn it is to have an answer generated. Pure.

llama-server handles requests in the order of their arrival: fifty requests of one user delay the next user by
fifty answers. So the gateway sends only as many requests as llama-server has slots, and the others wait here.

The next turn goes to the user with the fewest answers under way; among those, to the one that has used the
least of llama-server's time recently, and then to the one that has waited longest. The time that a request
waits for its model to load does not count, because everybody waits for that. One user's requests keep their
order. After HALF_LIFE_SECONDS, used time counts half, so that using an idle hour has no lasting cost. With
one slot, a user without recent use waits for at most one answer of each other user; recent use adds at most
its own time, for each other user (`USE_BOUND_SECONDS`).
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from meshd.base.peer_limits import API_USERS_KNOWN

HALF_LIFE_SECONDS = 60.0
USE_BOUND_SECONDS = HALF_LIFE_SECONDS / math.log(2.0)  # recent use of one answer after another
_FORGOTTEN_SECONDS = 0.01  # of use: as good as none


@dataclass(slots=True, eq=False)
class Ticket:
    """A request of `user` that came at `entered` as the `number`th; it is under way from `began` on.

    `computes`: and it uses llama-server.
    """

    user: Hashable
    entered: float
    number: int
    began: float | None = None
    computes: bool = False
    has_left: bool = False


@dataclass(slots=True)
class _User:
    """`use`: seconds of llama-server at `at`, older ones counting less, by `computing` of those that run."""

    at: float
    use: float = 0.0
    running: int = 0
    computing: int = 0
    waiting: deque[Ticket] = field(default_factory=deque)

    def use_at(self, now: float) -> float:
        fade = math.exp2(-max(0.0, now - self.at) / HALF_LIFE_SECONDS)
        return self.use * fade + self.computing * USE_BOUND_SECONDS * (1.0 - fade)

    def compute(self, ticket: Ticket, computes: bool, now: float) -> None:
        """From now on."""
        if ticket.computes is not computes:
            self.use, self.at = self.use_at(now), max(self.at, now)
            self.computing += 1 if computes else -1
            ticket.computes = computes


class AnswerQueue:
    """Of one llama-server. `now` is a clock in seconds that never goes back.

    How many requests and bytes there may be, of all and of one user, is decided before they come here.
    """

    def __init__(self) -> None:
        self._users: dict[Hashable, _User] = {}
        self._came = 0
        self.running = 0
        self.waiting = 0

    def enter(self, user: Hashable, now: float) -> Ticket:
        """A place at the end of what `user` has waiting."""
        one = self._users.get(user)
        if one is None:
            self._forget(now)
            one = self._users[user] = _User(now)
        self._came += 1
        ticket = Ticket(user, now, self._came)
        one.waiting.append(ticket)
        self.waiting += 1
        return ticket

    def begin(self, slots: int, now: float) -> list[Ticket]:
        """Those whose turn has come, `slots` being how many answers may be under way together."""
        begun = []
        while self.waiting and self.running < slots:
            one = min(
                (one for one in self._users.values() if one.waiting),
                key=lambda one: (one.running, one.use_at(now), one.waiting[0].number),
            )
            ticket = one.waiting.popleft()
            ticket.began = now
            self.waiting -= 1
            one.compute(ticket, True, now)
            one.running += 1
            self.running += 1
            begun.append(ticket)
        return begun

    def leave(self, ticket: Ticket, now: float) -> None:
        """Its answer has ended, or nobody waits for it any more. Once for each ticket."""
        one = self._users[ticket.user]
        ticket.has_left = True
        if ticket.began is None:
            one.waiting.remove(ticket)
            self.waiting -= 1
        else:
            one.compute(ticket, False, now)
            one.running -= 1
            self.running -= 1

    def compute(self, ticket: Ticket, computes: bool, now: float) -> None:
        """One whose turn has come waits for its model from now on, or no longer does."""
        if ticket.began is not None and not ticket.has_left:
            self._users[ticket.user].compute(ticket, computes, now)

    def place(self, ticket: Ticket, now: float) -> int:
        """How many of those that wait come before it, if no answer ended and nobody came."""
        mine = self._users[ticket.user]
        behind = mine.waiting.index(ticket)
        level = mine.running + behind  # answers under way that its user has when its turn comes
        rank = (mine.use_at(now), ticket.number)
        before = behind
        for one in self._users.values():
            if one is mine:
                continue
            fewer = max(0, min(len(one.waiting), level - one.running))
            # then its user has as many under way as mine
            equal = one.waiting[fewer] if 0 <= level - one.running < len(one.waiting) else None
            before += fewer + (equal is not None and (one.use_at(now), equal.number) < rank)
        return before

    def _forget(self, now: float) -> None:
        """Users who have nothing here, and have had nothing lately; of too many also who has had least."""
        idle = {
            user: one.use_at(now) for user, one in self._users.items() if not one.running and not one.waiting
        }
        spare = len(self._users) - API_USERS_KNOWN.most + 1
        least = sorted(idle, key=idle.__getitem__)[: max(0, spare)]
        for user in {*least, *(user for user, use in idle.items() if use < _FORGOTTEN_SECONDS)}:
            del self._users[user]
