"""The session with one peer: at most one at a time, agreed on in greetings, given up once.

Which one goes on is decided in mux/session_choice.py; its links are peer/links.py.
"""

from functools import partial

from meshd.base.errors import Broken
from meshd.base.fault_boundary import Blame
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.mux import session_choice
from meshd.mux.session import Session
from meshd.peer.links import PeerLinks
from meshd.peer.node import Node
from meshd.peer.streams import Streams
from meshd.wire.hello import Hello


class SessionHolder:
    """Nobody else makes a session, or lets go of one."""

    def __init__(self, node: Node, peer: PeerId, links: PeerLinks, *, leads: bool, blame: Blame) -> None:
        self._node = node
        self._peer = peer
        self._links = links
        self._leads = leads
        self._blame = blame
        self._session_id = b""
        self._fresh = node.random(session_choice.HALF_BYTES)
        self._unlinked_until: float | None = None  # the grace of a session that no link has carried yet
        self.streams: Streams | None = None  # of the session that there is; read by all, once a message
        self.grace = 0

    @property
    def session_id(self) -> bytes:
        """Another one whenever streams could not survive; empty without a session."""
        return self._session_id if self.streams is not None else b""

    def hello(self, theirs: Hello | None) -> Hello:
        """What this side says of sessions; the leader speaks first, the follower answers."""
        if theirs is None:
            return self._node.hello(current=self.session_id, fresh=self._fresh, chosen=b"")
        offer = session_choice.SessionOffer(current=theirs.current or None, fresh=theirs.fresh)
        answer = session_choice.answer(
            offer, mine=self.session_id or None, salt=self._node.random(session_choice.HALF_BYTES)
        )
        return self._node.hello(current=b"", fresh=b"", chosen=answer.session_id)

    def agreed(self, mine: Hello, theirs: Hello) -> tuple[bytes, bool]:
        """The id on which both Hellos agree, and whether that session has yet to begin. Raises Broken."""
        if not self._leads:
            return mine.chosen, mine.chosen != self.session_id
        verdict = session_choice.settle(theirs.chosen, current=self.session_id or None, fresh=self._fresh)
        if verdict is session_choice.SessionVerdict.STALE:
            raise Broken("the peer answered for a session that has ended")
        if verdict is session_choice.SessionVerdict.ATTACH:
            return theirs.chosen, False
        self._fresh = self._node.random(session_choice.HALF_BYTES)
        return theirs.chosen, True

    def begin(self, session_id: bytes, *, grace: int, owner: Owner) -> None:
        """After the one before it was dropped. `owner` runs the handlers of the peer's streams."""
        self._session_id = session_id
        self.grace = grace
        session = Session(
            side="leader" if self._leads else "follower",
            session_id=session_id,
            config=self._node.mux_config(grace),
            budget=self._node.budget,
        )
        self.streams = Streams(
            session=session,
            peer=self._peer,
            node=self._node,
            owner=owner,
            wake=self._links.wake,
            pass_on=partial(self._links.pass_on, session),
            blame=self._blame,
        )
        self._unlinked_until = self._node.now() + grace

    def session(self, session_id: bytes) -> Session:
        """The one that a greeting agreed on. Raises Broken when it has ended since."""
        if self.streams is None or self._session_id != session_id:
            raise Broken("the session ended during the greeting")
        return self.streams.session

    def has(self, session: Session) -> bool:
        """Is it the session that there is?"""
        return self.streams is not None and session is self.streams.session

    def linked(self) -> None:
        """A link is attached: from now on the session keeps its own grace."""
        self._unlinked_until = None

    def never_linked(self, now: float) -> bool:
        """Has its grace gone by before any link carried it?"""
        return self._unlinked_until is not None and now >= self._unlinked_until

    def next_timeout(self) -> float | None:
        """When the session wants its timer."""
        return None if self.streams is None else self.streams.session.next_timeout() or self._unlinked_until

    def drop(self) -> Streams | None:
        """No session from here on; returns the streams of the one that there was, which are to be broken."""
        streams, self.streams = self.streams, None
        self._unlinked_until = None
        return streams
