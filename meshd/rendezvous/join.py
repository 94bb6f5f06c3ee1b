"""Joining a mesh by an invite, both sides: what follows the join proof on a link of purpose JOIN.

The inviter reserves the use durably before it certifies, and a key that joins again gets the certificate
it has: a crash in between costs nobody anything (docs/protocol.md, "Trust").
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from meshd.base import log
from meshd.base.errors import BANNED_HINT, Broken, EndOfStream, Refused, RemoteProtocolError
from meshd.identity import naming
from meshd.identity.invite_book import NEW_INVITE, InviteBook
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.keystore import Membership
from meshd.identity.membership import Chain, check_chain
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.wire.joining import JoinMessage, JoinRequest, NotAdmitted, Welcome, decode
from meshd.wire.message import LengthParser, framed

_JOIN_SECONDS = 10.0
MAX_RECORDS = 64
# What a welcome may hold of each; a message has 64 KiB. Whatever is left out comes with the greeting (bans,
# before any stream) and the news (records) of the first link.
RECORD_ROOM, BAN_ROOM = 30 << 10, 30 << 10
LOG = log.get("rendezvous")


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
        return decode(message)


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
                answer = self.decide(joiner, invite_id)
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
