"""The way for joiners that no address of a token leads to this node: mailboxes at its relays, and its NAT.

The mailboxes are those of the invites that are valid now. The NAT is opened for the joiner whose reply code
somebody has brought here (`meshd accept`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.identity.invite import Reply, derive, parse_reply
from meshd.identity.invite_book import InviteBook, InviteEntry
from meshd.wire.dialable import Dialable, trusted

ACCEPT_SECONDS = 120.0  # for which the joiner of a reply code is let in
BOX_SECONDS = 0.5  # how often the invites are looked at: a fresh token is pasted in a moment
LOG = log.get("rendezvous")

SetBoxes = Callable[[Mapping[bytes, float]], Awaitable[None]]
Punch = Callable[[Sequence[Dialable], float], Coroutine[object, object, None]]


class OpenForJoiners:
    """`set_boxes` takes all mailboxes to keep, with their seconds: None without a relay. `punch` sends to
    addresses for so many seconds: None where no datagram of ours gets out."""

    def __init__(
        self,
        invites: InviteBook,
        *,
        set_boxes: SetBoxes | None,
        punch: Punch | None,
        wall_clock: Callable[[], int],
    ) -> None:
        self._invites = invites
        self._set_boxes = set_boxes
        self._punch = punch
        self._wall_clock = wall_clock
        self._owner: Owner | None = None

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            try:
                if self._set_boxes is not None:
                    await self._keep_boxes(self._set_boxes)
                await asyncio.Event().wait()
            finally:
                self._owner = None

    def accept(self, code: str) -> Reply:
        """Open our NAT for the joiner that made this reply code. Raises UserError."""
        reply = parse_reply(code, self._invites.join_keys)
        if self._owner is None or self._punch is None:
            raise UserError(
                "this node has QUIC disabled, which the other one needs to join",
                hint="restart it without `--links` and without `--listen 127.0.0.1:…`",
            )
        punching = self._punch(trusted(reply.candidates), ACCEPT_SECONDS)
        self._owner.start_for(f"peer {reply.joiner.short}", punching, name=f"accept {reply.joiner.short}")
        LOG.info(
            "reply_accepted",
            peer=reply.joiner.short,
            listen=[candidate.place for candidate in reply.candidates],
        )
        return reply

    async def _keep_boxes(self, set_boxes: SetBoxes) -> None:
        seen: tuple[InviteEntry, ...] | None = None
        while True:
            entries = self._invites.entries()
            if entries != seen:  # the seconds of each run by themselves
                seen = entries
                await set_boxes(boxes_of(entries, self._wall_clock()))
            await asyncio.sleep(BOX_SECONDS)


def boxes_of(entries: Sequence[InviteEntry], now: int) -> dict[bytes, float]:
    """Return the mailboxes of the valid invites, with their remaining seconds."""
    return {
        derive(entry.secret).mailbox: float(entry.expires_at - now)
        for entry in entries
        if not entry.revoked and now < entry.expires_at  # used up: a node that has joined may ask again
    }
