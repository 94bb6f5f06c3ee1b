"""News between connected members: records and bans, told once to each, over one durable stream a pair.

Each side keeps what it has told the other; whatever is newer is told when anything changes. Nothing is
queued: the book and the revocation set are the queue.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, Refused, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.peer.crowd import Crowd
from meshd.peer.interface import Book, Stream
from meshd.peer.messages import MessageStream
from meshd.peer.node import Node
from meshd.wire.news import MAX_PRESENCES, BanNews, PresenceNews, RecordNews, decode

# Signs of life travel together; eight steps of this are half of what they are fresh for.
PRESENCE_SECONDS = 4.0
LOG = log.get("peer")


@dataclass(slots=True)
class _Told:
    """What the other side of a stream has been told, or has told us."""

    records: dict[PeerId, int] = field(default_factory=dict)
    bans: set[bytes] = field(default_factory=set)
    presences: dict[PeerId, tuple[int, int]] = field(default_factory=dict)


class News:
    """Speaks with every connected member."""

    def __init__(self, node: Node, book: Book, crowd: Crowd, *, heard: Callable[[PeerRecord], None]) -> None:
        self._node = node
        self._book = book
        self._crowd = crowd
        self._heard = heard

    async def talk(self, stream: Stream) -> None:
        """Tell and listen until the stream ends."""
        messages, told = MessageStream(stream), _Told()
        try:
            async with Owner() as owner:
                owner.start(self._tell(messages, stream.peer, told), name=f"news to {stream.peer.short}")
                await self._listen(messages, told)
                owner.cancel()
        except* (Broken, EndOfStream):
            pass
        except* Refused as group:  # a peer that ends, or one that is not kind: no reason to end as well
            LOG.info("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
        except* RemoteProtocolError as group:
            LOG.warning("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
            stream.reset(1, "news that cannot be read")

    async def _tell(self, messages: MessageStream, peer: PeerId, told: "_Told") -> None:
        seen = -1
        while True:
            if self._node.version != seen:
                seen = self._node.version
                await self._tell_changes(messages, peer, told)
            if self._crowd.large:
                entries = self._crowd.newer(told.presences, to=peer)
                for at in range(0, len(entries), MAX_PRESENCES):
                    batch = tuple(entries[at : at + MAX_PRESENCES])
                    await messages.send(PresenceNews(batch).encode())
            try:
                async with asyncio.timeout(PRESENCE_SECONDS if self._crowd.large else None):
                    await self._node.wait_changed(seen)
            except TimeoutError:
                pass

    async def _tell_changes(self, messages: MessageStream, peer: PeerId, told: "_Told") -> None:
        for entry in self._node.bans.entries():
            if entry not in told.bans:
                told.bans.add(entry)
                await messages.send(BanNews(entry).encode())
        for record in (self._node.my_record(), *self._book.records()):
            if record.peer != peer and told.records.get(record.peer, -1) < record.sequence:
                told.records[record.peer] = record.sequence
                await messages.send(RecordNews(record.encode()).encode())

    async def _listen(self, messages: MessageStream, told: "_Told") -> None:
        while True:
            match decode(await messages.receive()):
                case BanNews(ban=ban):
                    told.bans.add(ban)
                    self._node.learn_bans([ban])
                case RecordNews(record=raw):
                    self._learn_record(raw, told)
                case PresenceNews(entries=entries):
                    self._crowd.learn(entries, told.presences)
                case None:
                    continue

    def _learn_record(self, raw: bytes, told: "_Told") -> None:
        """A record that does not hold is skipped: the teller may not know yet that its node is banned."""
        try:
            record = PeerRecord.decode(raw)
            new = self._book.add(record)
            # who told it need not be told
            told.records[record.peer] = max(told.records.get(record.peer, -1), record.sequence)
        except RemoteProtocolError as error:
            LOG.info("record_dropped", why=error.what)
            return
        if new:
            self._heard(record)
            self._node.changed()
