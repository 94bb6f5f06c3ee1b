"""What is known of one peer, and how this node stands with it: what status shows.

Written here alone, by what a connection and its connector tell; the links are asked for when it is shown.
"""

from collections.abc import Sequence

from meshd.base import log
from meshd.base.errors import Refused
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.link.interface import RELAYED, LinkInfo
from meshd.mux.events import Code
from meshd.peer.interface import PathStatus, PeerState, PeerStatus
from meshd.peer.node import DiallingSide, Node
from meshd.wire.hello import Hello
from meshd.wire.native import NativeVersion, difference

OWN_GOODBYE = "this node said goodbye"
LOG = log.get("peer")


class StatusView:
    """Of one peer, as long as there is a connection object for it."""

    def __init__(self, node: Node, peer: PeerId, dialling: DiallingSide) -> None:
        self._node = node
        self._peer = peer
        self._dialling = dialling
        self._state = PeerState.KNOWN
        self._since = node.now()
        self._native: NativeVersion | None = None
        self._software = ""
        self._clock_offset: float | None = None
        self._resumes = 0
        self._says_banned = ""
        self._stopped = ""
        self._is_parting = False  # it has said goodbye
        self.name = ""
        self.role = ""
        self.member: Member | None = None
        self.last_error = ""
        self.dialling = False

    @property
    def label(self) -> str:
        """How people know the peer."""
        return self.name or self._peer.short

    def status(self, paths: Sequence[PathStatus], *, session: bool, grace: int) -> PeerStatus:
        """A snapshot; `session`: there is one."""
        relayed = any(path.selected and path.link.path == RELAYED for path in paths)
        return PeerStatus(
            peer=self._peer,
            name=self.name,
            role=self.role,
            state=PeerState.CONNECTING if not session and self.dialling else self._state,
            paths=tuple(paths),
            native=self._native,
            software=self._software,
            resumes=self._resumes,
            since=self._since,
            last_error=self.last_error,
            clock_offset=self._clock_offset,
            says_banned=self._says_banned,
            why_not_direct=self._dialling.why_not_direct() if relayed else "",
            grace=grace,
            stopped=self._stopped,
        )

    def set_state(self, state: PeerState) -> None:
        """As in PeerStatus."""
        if state is not self._state:
            self._state = state
            self._since = self._node.now()
            self._node.changed()

    def carried(self) -> None:
        """A link carries data: one that is only attached may wait for the leader to say so."""
        if self._state is PeerState.SUSPENDED:
            self._resumes += 1
        self.set_state(PeerState.CONNECTED)

    def met(self, hello: Hello, member: Member) -> None:
        """What the peer says of itself on a link that is attached now; what was wrong before is over."""
        self.name, self.role = naming.shown(hello.name), hello.role
        self._compare(hello.native)
        self._software = hello.software
        self.member = member
        self._clock_offset = float(hello.clock - self._node.wall_clock())
        self.last_error = self._says_banned = self._stopped = ""
        self._is_parting = False

    def _compare(self, native: NativeVersion) -> None:
        """Say once what the build of a node that was not seen with it is to ours."""
        found = difference(self._node.facts.native, native) if native != self._native else None
        self._native = native
        if found is not None:
            tell = LOG.info if found.fits else LOG.warning
            tell("native_differs", peer=self._peer.short, name=self.name, why=found.what, hint=found.hint)

    def link_up(self, link: LinkInfo) -> None:
        """It is attached, and what follows from that has been done."""
        LOG.info("link_up", peer=self._peer.short, name=self.name, link=link.kind.value, remote=link.remote)

    def link_lost(self, link: LinkInfo, why: str) -> None:
        """It has ended."""
        why = why or self.last_error
        is_loss = not (self._is_parting or why.startswith(OWN_GOODBYE))
        say = LOG.info if is_loss else LOG.debug
        say("link_lost", peer=self._peer.short, name=self.name, link=link.kind.value, why=why)

    def said_goodbye(self, code: int, reason: str) -> None:
        """The peer is ending the session on purpose: that its links end is no loss then."""
        self._is_parting = True
        if code == Code.SHUTDOWN:
            self._stopped = reason or "it was stopped"
        if code == Code.BANNED:
            self._banned(reason or "this node is banned")

    def refused(self, error: Refused) -> None:
        """The peer would not have a link with us."""
        self.last_error = error.what
        if error.code == "banned":
            self._banned(error.what)
        else:
            LOG.warning(
                "peer_refuses", peer=self._peer.short, name=self.name, why=error.what, hint=error.hint
            )

    def _banned(self, why: str) -> None:
        """The peer holds this node for banned."""
        self._says_banned = why
        self._node.told_banned(self._peer, self.label, why)
        self._node.changed()
