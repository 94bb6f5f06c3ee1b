"""The announcements of a daemon to the person or program that started it: its invite, and what to do with it.

Programs get the invite on stdout and remarks on stderr, between the lines of the log. On a terminal the
command line announces in its own way (cli/node_screen.py).
"""

from collections.abc import Callable
from typing import Protocol

from meshd.admin.api import InviteReply
from meshd.admin.status import Status


class Announcer(Protocol):
    """The interface of what announces. All text is for people."""

    def note(self, text: str) -> None:
        """Announce what a person must do or know."""

    def looking(self, text: str) -> None:
        """Announce what is under way."""

    def invite(self, invite: InviteReply, now: float, use: str) -> None:
        """Announce the invite, at the wall clock time `now`; `use` is what to do with it."""

    def remark(self, text: str) -> None:
        """Announce what helps a person, and is of no use to a program."""

    def ready(self, url: str, lan_url: str | None) -> None:
        """Announce that the API answers; `lan_url` is its address for other devices."""

    def follow(self, status: Callable[[], Status]) -> None:
        """Announce the changes of this status from now on."""

    async def serve(self) -> None:
        """Announce until cancelled, or return if nothing changes by itself."""

    def stopping(self) -> None:
        """Announce that the node is stopping."""

    def close(self) -> None:
        """Announce nothing more."""


class PlainAnnouncer:
    """Announces to programs: `out` gets the invite, `note` text for people (implements Announcer)."""

    def __init__(self, out: Callable[[str], None], note: Callable[[str], object], *, remarks: bool) -> None:
        """Without `remarks`, the log is for programs, and is not mixed with remarks."""
        self._out = out
        self._note = note
        self._remarks = remarks

    def note(self, text: str) -> None:
        """Write the text on stderr."""
        self._note(text)

    looking = note

    def invite(self, invite: InviteReply, now: float, use: str) -> None:
        """Write the invite on stdout."""
        self._out(invite.token)
        self.remark(f"{invite.validity(now)}\n{use}")

    def remark(self, text: str) -> None:
        """Write the text on stderr, unless the log is for programs."""
        if text and self._remarks:
            self._note(text)

    def ready(self, url: str, lan_url: str | None) -> None:
        """Write the API's address, as the last line for people."""
        self.remark(f"ready: chat at {url}")
        if lan_url is not None:
            self.remark(f"from other devices: {lan_url}")

    def follow(self, status: Callable[[], Status]) -> None:
        """Do nothing: the log has the changes."""

    async def serve(self) -> None:
        """Return."""

    def stopping(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
