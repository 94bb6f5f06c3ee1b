"""Whether a link to a proven peer may go on: its bans, its faults, and one identity in one place.

What a connection decides during a greeting (peer/greeting.py drives it).
"""

from collections.abc import Callable, Sequence

from meshd.base.errors import Refused
from meshd.link.interface import Link
from meshd.peer.greeting import turn_away
from meshd.peer.links import PeerLinks
from meshd.peer.node import Node
from meshd.peer.session_holder import SessionHolder
from meshd.wire.hello import Hello

CHALLENGE_SECONDS = 2.0  # an older incarnation that answers within this keeps the identity


class Admission:
    """Implements greeting.GreetingHandler; `replace` ends what there is with an older start of the peer."""

    def __init__(
        self, node: Node, holder: SessionHolder, links: PeerLinks, *, replace: Callable[[str], None]
    ) -> None:
        self._node = node
        self._holder = holder
        self._links = links
        self._replace = replace
        self._incarnation = b""

    def my_hello(self, theirs: Hello | None) -> Hello:
        """See greeting.GreetingHandler."""
        return self._holder.hello(theirs)

    async def check_hello(self, theirs: Hello) -> None:
        """See greeting.GreetingHandler: one identity lives in one place."""
        if self._incarnation in (b"", theirs.incarnation):
            return
        remote = await self._links.first_answer(CHALLENGE_SECONDS)
        if remote is not None:
            raise Refused(
                f"this identity is in use at {remote}, which still answers",
                code="identity_in_use",
                hint="stop the other daemon; if its state directory was copied, run "
                "`meshd leave --new-identity` there, then join again",
            )
        if self._incarnation != theirs.incarnation:  # else another of its links was quicker, and has begun
            self._replace("it was restarted")

    def settled(self, theirs: Hello) -> None:
        """From here on the identity lives where this Hello came from."""
        self._incarnation = theirs.incarnation

    async def check_faults(self, link: Link) -> None:
        """Before a greeting. Raises Refused, and tells the peer, while too much of its work fails here."""
        if self._node.faults.refuses(link.info.peer, self._node.now()):
            why = Refused(
                "too much work for this node failed on the other one",
                code="faults",
                hint="read the log of the other node (`meshd logs`); it accepts links again after one minute",
            )
            await turn_away(link, why)

    def ban_entries(self) -> Sequence[bytes]:
        """See greeting.GreetingHandler."""
        return self._node.bans.entries()

    def learn_bans(self, entries: Sequence[bytes]) -> int:
        """See greeting.GreetingHandler."""
        return self._node.learn_bans(entries)

    def check_banned(self, link: Link) -> None:
        """See greeting.GreetingHandler."""
        why = self._node.why_banned(link.info.member)
        if why is not None:
            raise Refused(
                why,
                code="banned",
                hint="to return, a banned node needs a new key and a new token: `meshd leave "
                "--new-identity` there",
            )
