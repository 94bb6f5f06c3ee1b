"""Letters for nodes that are not connected: few, small, short-lived, in memory only. Pure.

Every letter counts for the address and the key that it came from. Where room is needed, the address with most
loses a letter: the oldest of its key with most. So a sender displaces its own letters, and those of others
only where they hold as much. The address comes first, because keys cost nothing.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from meshd.relay.limits import Limits
from meshd.wire.relay import Mail

To = TypeVar("To")
LETTER_BYTES = 512  # that a letter takes beside its blob, roughly


@dataclass(frozen=True, slots=True, eq=False)
class _KeptLetter(Generic[To]):
    to: To
    mail: Mail
    host: str
    until: float

    @property
    def size(self) -> int:
        """The bytes that it takes."""
        return len(self.mail.blob) + LETTER_BYTES


class _Senders(Generic[To]):
    """Letters by where they came from, oldest first in each."""

    def __init__(self) -> None:
        self._hosts: dict[str, dict[bytes, dict[_KeptLetter[To], None]]] = {}
        self._held: dict[str, int] = {}

    def add(self, letter: _KeptLetter[To]) -> None:
        keys = self._hosts.setdefault(letter.host, {})
        keys.setdefault(letter.mail.sender, {})[letter] = None
        self._held[letter.host] = self._held.get(letter.host, 0) + letter.size

    def remove(self, letter: _KeptLetter[To]) -> None:
        keys = self._hosts[letter.host]
        del keys[letter.mail.sender][letter]
        self._held[letter.host] -= letter.size
        if not keys[letter.mail.sender]:
            del keys[letter.mail.sender]
        if not keys:
            del self._hosts[letter.host], self._held[letter.host]

    def count(self, letter: _KeptLetter[To]) -> int:
        """Return how many letters its sender has."""
        return len(self._hosts[letter.host][letter.mail.sender])

    def oldest_of(self, letter: _KeptLetter[To]) -> _KeptLetter[To]:
        """Return the oldest letter of its sender."""
        return next(iter(self._hosts[letter.host][letter.mail.sender]))

    def held(self, host: str) -> int:
        """Return the bytes that wait from this host."""
        return self._held.get(host, 0)

    def next_to_go(self) -> _KeptLetter[To]:
        """Return the letter to evict next: the oldest of the largest holder."""
        return self.next_of(max(self._held, key=self._held.__getitem__))

    def next_of(self, host: str) -> _KeptLetter[To]:
        """Return the oldest letter of the host's sender with the most."""
        keys = self._hosts[host]
        return next(iter(keys[max(keys, key=lambda key: len(keys[key]))]))


class Mailroom(Generic[To]):
    """`To` is who or what a letter waits for. `now` is a clock in seconds that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: dict[To, dict[_KeptLetter[To], None]] = {}
        self._senders: _Senders[To] = _Senders()
        self.held_bytes = 0
        self.dropped = 0  # so far

    def keep(self, to: To, mail: Mail, now: float, *, host: str) -> None:
        """Keep `mail`, which came from the address `host`, for a while."""
        letter = _KeptLetter(to, mail, host, now + self._limits.mail_seconds)
        waiting = self._waiting.setdefault(to, {})
        waiting[letter] = None
        self._senders.add(letter)
        self.held_bytes += letter.size
        if self._senders.count(letter) > self._limits.mail_of_sender:
            self._drop(self._senders.oldest_of(letter))
        if len(waiting) > self._limits.mail_of_one:
            senders: _Senders[To] = _Senders()
            for one in waiting:
                senders.add(one)
            self._drop(senders.next_to_go())
        while self._senders.held(host) > self._limits.mail_bytes_of_host:
            self._drop(self._senders.next_of(host))
        while self.held_bytes > self._limits.mail_bytes:
            self._drop(self._senders.next_to_go())

    def take(self, to: To, now: float) -> list[Mail]:
        """Return and remove all that waits for `to`, which is connected now."""
        self._drop_old(to, now)
        letters = list(self._waiting.get(to, ()))
        for letter in letters:
            self._remove(letter)
        return [letter.mail for letter in letters]

    def forget(self, to: To) -> None:
        """Drop the letters for a node that will not come."""
        for letter in list(self._waiting.get(to, ())):
            self._drop(letter)

    def sweep(self, now: float) -> None:
        """Drop expired mail."""
        for to in list(self._waiting):
            self._drop_old(to, now)

    def _drop_old(self, to: To, now: float) -> None:
        for letter in [kept for kept in self._waiting.get(to, ()) if now >= kept.until]:
            self._drop(letter)

    def _drop(self, letter: _KeptLetter[To]) -> None:
        self._remove(letter)
        self.dropped += 1

    def _remove(self, letter: _KeptLetter[To]) -> None:
        self._senders.remove(letter)
        self.held_bytes -= letter.size
        waiting = self._waiting[letter.to]
        del waiting[letter]
        if not waiting:
            del self._waiting[letter.to]
