"""Letters that wait for somebody who is not there: few, small, not for long, in memory only. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshd.relay.limits import Limits
from meshd.wire.relay import Mail

To = TypeVar("To")


@dataclass(frozen=True, slots=True)
class _Letter:
    mail: Mail
    until: float


class Mailroom(Generic[To]):
    """`To` is who or what a letter waits for. `now` is a clock in seconds that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[To, deque[_Letter]] = {}
        self.held_bytes = 0
        self.dropped = 0  # so far

    def keep(self, to: To, mail: Mail, now: float) -> None:
        """Keep `mail` for a while. Who has too many loses the eldest; so does the room as a whole."""
        waiting = self._waiting.setdefault(to, deque())
        waiting.append(_Letter(mail, now + self._limits.mail_seconds))
        self.held_bytes += len(mail.blob)
        if len(waiting) > self._limits.mail_of_one:
            self._drop(to)
        while self.held_bytes > self._limits.mail_bytes:
            self._drop(next(iter(self._waiting)))

    def take(self, to: To, now: float) -> list[Mail]:
        """All that waits for `to`, which is there now."""
        self._drop_old(to, now)
        waiting = self._waiting.pop(to, deque[_Letter]())
        self.held_bytes -= sum(len(letter.mail.blob) for letter in waiting)
        return [letter.mail for letter in waiting]

    def forget(self, to: To) -> None:
        """Nobody will come for it."""
        while to in self._waiting:
            self._drop(to)

    def sweep(self, now: float) -> None:
        """Drop what is too old."""
        for to in list(self._waiting):
            self._drop_old(to, now)

    def _drop_old(self, to: To, now: float) -> None:
        while to in self._waiting and now >= self._waiting[to][0].until:
            self._drop(to)

    def _drop(self, to: To) -> None:
        waiting = self._waiting[to]
        self.held_bytes -= len(waiting.popleft().mail.blob)
        self.dropped += 1
        if not waiting:
            del self._waiting[to]
