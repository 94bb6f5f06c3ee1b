"""Keep what is known of one peer and of our relation to it, for status and the log.

The peer (peer.py) writes these facts; the links are asked when status is shown.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from meshd.base import log
from meshd.base.errors import IN_USE_CODE, Broken, Refused, RemoteProtocolError
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.link.interface import RELAYED, LinkInfo
from meshd.mux.events import Code
from meshd.peer.dial_schedule import Failed, last_error
from meshd.peer.interface import Book, PathStatus, PeerState, PeerStatus
from meshd.peer.node import Node
from meshd.wire.dialable import Dialable
from meshd.wire.hello import Hello
from meshd.wire.netfacts import CAPABILITY, NetFacts
from meshd.wire.versions import (
    VERSION_CODE,
    NativeVersion,
    NodeVersion,
    checked_hint,
    difference,
    upgrade_hint,
)

OWN_GOODBYE = "this node said goodbye"
LOG = log.get("peer")


class PeerFacts:
    """The facts about one peer, kept while a `Peer` for it exists."""

    def __init__(self, node: Node, book: Book, peer: PeerId) -> None:
        self._node = node
        self._book = book
        self._peer = peer
        self._state = PeerState.KNOWN
        self._since = node.now()
        self._native: NativeVersion | None = None
        self._software = ""
        self._clock_offset: float | None = None
        self._resumes = 0
        self._says_banned = self._says_in_use = self._upgrade = ""
        self._stopped = self._gone = ""
        self._is_parting = False  # it has said goodbye
        self.name = ""
        self.role = ""
        self.member: Member | None = None
        self.greeted_sequence = 0  # of the record with which it greeted
        self.last_error = ""

    @property
    def label(self) -> str:
        """The peer's name for people."""
        return self.name or self._peer.short

    def status(
        self, paths: Sequence[PathStatus], *, is_connecting: bool, failed: Mapping[int, Failed], grace: int
    ) -> PeerStatus:
        """Return a snapshot. `is_connecting`: the peer is being dialled, and there is no session."""
        relayed = any(path.selected and path.link.path == RELAYED for path in paths)
        return PeerStatus(
            peer=self._peer,
            name=self.name,
            role=self.role,
            state=PeerState.CONNECTING if is_connecting else self._state,
            paths=tuple(paths),
            native=self._native,
            software=self._software,
            resumes=self._resumes,
            since=self._since,
            last_error=self.last_error,
            clock_offset=self._clock_offset,
            says_banned=self._says_banned,
            says_in_use=self._says_in_use,
            why_not_direct=self._why_not_direct(failed) if relayed else "",
            grace=grace,
            stopped=self._stopped,
            gone=self._gone,
            upgrade=self._upgrade,
        )

    def not_connected(self) -> Broken:
        """Return the error for callers that need a session."""
        return Broken(f"not connected to {self.label}: {self.last_error or 'no link yet'}")

    def places(self) -> list[Dialable]:
        """Return where the peer may be dialled, best first."""
        found = [
            place
            for source, given in self._book.sources(self._peer)
            for place in self._node.host.may_dial(self._peer, given, source)
        ]
        return list(dict.fromkeys(found))

    def _why_not_direct(self, failed: Mapping[int, Failed]) -> str:
        """Say in one sentence why the data of the peer is relayed."""
        record = self._book.record(self._peer)
        theirs = None
        if record is not None and CAPABILITY in record.capabilities:
            with suppress(RemoteProtocolError):  # of a later version, for example
                theirs = NetFacts.from_text(record.capabilities[CAPABILITY])
        return self._node.host.why_not_direct(theirs, last_error(failed))

    def take_name(self) -> None:
        """Take the name of a peer without a link from its record."""
        record = self._book.record(self._peer)
        if record is not None:
            self.name, self.role = naming.shown(record.name), record.role

    def set_state(self, state: PeerState) -> None:
        """Note a new state (see PeerState)."""
        if state is not self._state:
            self._state = state
            self._since = self._node.now()
            self._node.changed()

    def carried(self) -> None:
        """Note that a link carries data: a link that is only attached may wait for the leader's choice."""
        if self._state is PeerState.SUSPENDED:
            self._resumes += 1
        self.set_state(PeerState.CONNECTED)

    def met(self, hello: Hello, member: Member) -> None:
        """Note the peer's description of itself on a newly attached link; earlier errors are over."""
        self.name, self.role = naming.shown(hello.name), hello.role
        self._software = hello.software
        self._compare(hello.native)
        self.member = member
        self._clock_offset = float(hello.clock - self._node.wall_clock())
        self.last_error = self._says_banned = self._says_in_use = self._upgrade = ""
        self._stopped = self._gone = ""
        self._is_parting = False

    def _compare(self, native: NativeVersion) -> None:
        """Log once how the native build of the peer compares to ours."""
        found = difference(self._node.facts.native, native) if native != self._native else None
        self._native = native
        if found is not None:
            tell = LOG.info if found.fits else LOG.warning
            mine, theirs = self._node.facts, NodeVersion(self.name, self._software)
            hint = upgrade_hint(NodeVersion("this node", mine.software), theirs)
            tell("native_differs", peer=self._peer.short, name=self.name, why=found.what, hint=hint)

    def link_up(self, link: LinkInfo) -> None:
        """Log an attached link, after acting on it."""
        LOG.info("link_up", peer=self._peer.short, name=self.name, link=link.kind.value, remote=link.remote)

    def link_lost(self, link: LinkInfo, why: str) -> None:
        """Log a link that has ended."""
        why = why or self.last_error
        is_loss = not (self._is_parting or why.startswith(OWN_GOODBYE))
        say = LOG.info if is_loss else LOG.debug
        say("link_lost", peer=self._peer.short, name=self.name, link=link.kind.value, why=why)

    def found_gone(self, why: str) -> None:
        """Note that the peer's process has ended, and could not say goodbye."""
        LOG.warning("peer_gone", peer=self._peer.short, name=self.name, why=why)
        self._gone = why

    def said_goodbye(self, code: int, reason: str) -> None:
        """Note that the peer ends the session on purpose, so the end of its links is no loss."""
        self._is_parting = True
        if code == Code.SHUTDOWN:
            self._stopped = reason or "it was stopped"
        if code == Code.BANNED:
            self._banned(reason or "this node is banned")

    def refused(self, error: Refused) -> None:
        """Note that the peer refused a link with us."""
        self.last_error = error.what
        self._says_in_use = error.what if error.code == IN_USE_CODE else ""
        if error.code == "banned":
            self._banned(error.what)
        else:
            hint, self._upgrade = error.hint, ""
            if error.code == VERSION_CODE:
                hint = self._upgrade = checked_hint(hint, self._node.facts.peer.short, self._peer.short)
            LOG.warning("peer_refuses", peer=self._peer.short, name=self.name, why=error.what, hint=hint)

    def _banned(self, why: str) -> None:
        """Note that the peer considers this node banned."""
        self._says_banned = why
        self._node.told_banned(self._peer, self.label, why)
        self._node.changed()
