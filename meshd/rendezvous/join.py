"""Joining a mesh by an invite, both sides: what follows the join proof on a link of purpose JOIN.

The inviter reserves the use durably before it certifies, and a key that joins again gets the certificate it
has: a crash in between costs nobody anything (docs/protocol.md, "Joining").

`OpenForJoiners` lets in those that no address of a token leads to this node: by mailboxes at its relays, one
for each invite that is valid now, and by opening its NAT for the joiner whose reply code somebody has brought
here (`meshd accept`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd.base import log
from meshd.base.errors import BANNED_HINT, Broken, EndOfStream, Refused, RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.identity import naming
from meshd.identity.invite import Reply, derive, parse_reply
from meshd.identity.invite_book import NEW_INVITE, InviteBook, InviteEntry
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.keystore import Membership
from meshd.identity.membership import Chain, check_chain
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.wire.dialable import Dialable, trusted
from meshd.wire.hello import JoinMessage, JoinRequest, NotAdmitted, Welcome, decode_joining
from meshd.wire.message import LengthParser, framed

_JOIN_SECONDS = 10.0
MAX_RECORDS = 64
# What a welcome may hold of each; a message has 64 KiB. Whatever is left out comes with the greeting (bans,
# before any stream) and the news (records) of the first link.
RECORD_ROOM, BAN_ROOM = 30 << 10, 30 << 10
LOG = log.get("rendezvous")

ACCEPT_SECONDS = 120.0  # for which the joiner of a reply code is let in
BOX_SECONDS = 0.5  # how often the invites are looked at: a fresh token is pasted in a moment

BROWSER_BOX_SECONDS = 7 * 86400.0  # of a box whose browsers come back, asked for again each hour
_RENEW_SECONDS = 3600.0

SetBoxes = Callable[[Mapping[bytes, float], frozenset[bytes]], Awaitable[None]]
Punch = Callable[[Sequence[Dialable], float], Coroutine[object, object, None]]


class JoinPipe(Protocol):
    """A proven link of purpose JOIN."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None: ...
    async def receive(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """The joiner's result: its chain, and the records and bans to begin with."""

    chain: Chain
    records: tuple[PeerRecord, ...]
    bans: tuple[bytes, ...]


class _JoinTalk:
    def __init__(self, pipe: JoinPipe) -> None:
        self._pipe = pipe
        self._parser = LengthParser()

    async def send(self, message: JoinMessage) -> None:
        await self._pipe.send([framed(message.encode())])

    async def receive(self) -> JoinMessage:
        """Return the one message that the other side sends before it hears from us."""
        while (message := self._parser.next()) is None:
            self._parser.feed(await self._pipe.receive())
        if self._parser.rest():
            raise RemoteProtocolError("joining: extra bytes after the message", code="joining")
        return decode_joining(message)


async def ask(pipe: JoinPipe, *, me: PeerId, mesh: MeshId, name: str, role: str) -> Admitted:
    """Ask to join, as the joiner. Raises Refused with the inviter's reason, Broken."""
    talk = _JoinTalk(pipe)
    try:
        async with asyncio.timeout(_JOIN_SECONDS):
            await talk.send(JoinRequest(name, role))
            answer = await talk.receive()
    except TimeoutError:
        raise Broken("the inviter did not answer in time", hint="try again in a moment") from None
    except EndOfStream:
        raise Broken("the inviter closed the connection", hint="try again in a moment") from None
    if isinstance(answer, NotAdmitted):
        raise Refused(answer.text, code=answer.code, hint=answer.hint)
    if not isinstance(answer, Welcome):
        raise RemoteProtocolError("joining: expected `welcome`", code="joining")
    chain = Chain.decode(answer.chain)
    check_chain(chain, mesh, me)
    records = []
    for raw in answer.records:
        record = PeerRecord.decode(raw)
        record.verify(mesh)
        records.append(record)
    return Admitted(chain, tuple(records), answer.bans)


class Inviter:
    """The inviter's side: one object for each daemon that may invite."""

    def __init__(
        self,
        *,
        key: KeyPair,
        membership: Membership,
        book: InviteBook,
        bans: RevocationSet,
        save: Callable[[], bool],
        records: Callable[[], Sequence[PeerRecord]],
        random: Callable[[int], bytes],
        wall_clock: Callable[[], int],
    ) -> None:
        """Set up the inviter's side. `save` stores `book`, and returns True if it is durable: nobody is
        certified before.
        """
        self._key = key
        self._membership = membership
        self._book = book
        self._bans = bans
        self._save = save
        self._records = records
        self._random = random
        self._wall_clock = wall_clock

    async def admit(self, pipe: JoinPipe, *, joiner: PeerId, invite_id: bytes) -> bool:
        """Answer one joiner that has proven the invite's secret. True: it is a member now.

        Whatever else it sends on the pipe stays there: it may continue as a member (link/secure/joining.py).
        """
        talk = _JoinTalk(pipe)
        try:
            async with asyncio.timeout(_JOIN_SECONDS):
                request = await talk.receive()
                if not isinstance(request, JoinRequest):
                    raise RemoteProtocolError("joining: expected `join`", code="joining")
                answer = self._for_browser(invite_id) or self.decide(joiner, invite_id)
                await talk.send(answer)
                if isinstance(answer, Welcome):
                    LOG.info("member_admitted", peer=joiner.short, name=naming.shown(request.name))
                    return True
                LOG.info("joiner_refused", node=joiner.short, why=answer.text)  # any key: no peer has a share
                await pipe.receive()  # the joiner closes when it has the answer
        except (EndOfStream, Broken, TimeoutError):
            pass
        except RemoteProtocolError as error:
            LOG.warning("joiner_refused", node=joiner.short, why=error.what)
        return False

    def _for_browser(self, invite_id: bytes) -> NotAdmitted | None:
        """Refuse a node that has a browser's invite: a thief of that invite could do more as a node."""
        entry = self._book.get(invite_id)
        if entry is None or not entry.browser:
            return None
        return NotAdmitted("browser", "this invite is for a browser, not for a node", NEW_INVITE)

    def decide(self, joiner: PeerId, invite_id: bytes) -> Welcome | NotAdmitted:
        """Reserve, persist, certify, persist. No await in between: two joiners cannot share one use."""
        banned = self._bans.why_node_banned(joiner, issuer=self._key.peer)
        if banned is not None:
            return NotAdmitted("banned", banned, BANNED_HINT)
        revoked = self._bans.why_invite_banned(invite_id, issuer=self._key.peer)
        if revoked is not None:  # the joiner did nothing wrong: its key is as good as before
            return NotAdmitted("revoked", revoked, NEW_INVITE)
        decision = self._book.reserve(invite_id, joiner, self._wall_clock())
        if not decision.ok or decision.entry is None:
            return NotAdmitted(decision.code, decision.text, decision.hint)
        if not self._save():
            return _not_kept()
        if decision.certificate is not None:
            chain = self._membership.chain_of(decision.certificate)
        else:
            chain = self._membership.admit(
                self._key,
                node=joiner,
                roles=decision.entry.roles,
                serial=self._random(16),
                invite=invite_id,
                now=self._wall_clock(),
            )
            self._book.certify(invite_id, joiner, chain.leaf)
            if not self._save():
                return _not_kept()
        records = _fitting((record.encode() for record in self._records()), RECORD_ROOM)
        return Welcome(chain.encode(), records[:MAX_RECORDS], _fitting(self._bans.entries(), BAN_ROOM))


def _not_kept() -> NotAdmitted:
    return NotAdmitted(
        "disk",
        "the inviter cannot save who joins",
        "free space on the inviter's disk (see `meshd status` there), then try again with the same invite",
    )


def _fitting(entries: Iterable[bytes], room: int) -> tuple[bytes, ...]:
    """Return the first entries that take up at most `room` bytes in a message."""
    kept: list[bytes] = []
    for entry in entries:
        room -= len(entry) + 5  # msgpack's head of a long binary
        if room < 0:
            break
        kept.append(entry)
    return tuple(kept)


class OpenForJoiners:
    """`set_boxes` takes all mailboxes to keep, with their seconds, and those of them that are for browsers:
    None without a relay. `punch` sends to
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
        clock = asyncio.get_running_loop().time
        renewed = clock()
        while True:
            entries = self._invites.entries()
            # the seconds of each run by themselves; only those of browsers are renewed
            if entries != seen or clock() - renewed > _RENEW_SECONDS:
                seen, renewed = entries, clock()
                now = self._wall_clock()
                browsers = browser_boxes_of(entries, now)
                await set_boxes(boxes_of(entries, now) | browsers, frozenset(browsers))
            await asyncio.sleep(BOX_SECONDS)


def boxes_of(entries: Sequence[InviteEntry], now: int) -> dict[bytes, float]:
    """Return the mailboxes of the valid invites, with their remaining seconds."""
    return {
        derive(entry.secret).mailbox: float(entry.expires_at - now)
        for entry in entries
        if not entry.revoked
        and not entry.browser
        and now < entry.expires_at  # used up: a node that has joined may ask again
    }


def browser_boxes_of(entries: Sequence[InviteEntry], now: int) -> dict[bytes, float]:
    """Return the mailboxes for browsers: of valid invites, and of those that a browser was let in by, which
    comes back for as long as it likes.
    """
    return {
        derive(entry.secret).browser_box: BROWSER_BOX_SECONDS if entry.used else float(entry.expires_at - now)
        for entry in entries
        if entry.browser and not entry.revoked and (entry.used or now < entry.expires_at)
    }
