"""News between connected members: records and bans, told once to each, over one durable stream a pair.

Each side keeps what it has told the other; whatever is newer is told when anything changes. Nothing is
queued: the book and the revocation set are the queue.
"""

from collections.abc import Callable

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, Refused, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.peer.interface import Book, Stream
from meshd.peer.messages import MessageStream
from meshd.peer.node import Node
from meshd.wire.news import BanNews, RecordNews, decode

LOG = log.get("peer")


class News:
    """Speaks with every connected member."""

    def __init__(self, node: Node, book: Book, *, heard: Callable[[PeerRecord], None]) -> None:
        self._node = node
        self._book = book
        self._heard = heard

    async def talk(self, stream: Stream) -> None:
        """Tell and listen until the stream ends."""
        messages = MessageStream(stream)
        try:
            async with Owner() as owner:
                owner.start(self._tell(messages, stream.peer), name=f"news to {stream.peer.short}")
                await self._listen(messages)
                owner.cancel()
        except* (Broken, EndOfStream):
            pass
        except* Refused as group:  # a peer that ends, or one that is not kind: no reason to end as well
            LOG.info("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
        except* RemoteProtocolError as group:
            LOG.warning("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
            stream.reset(1, "news that cannot be read")

    async def _tell(self, messages: MessageStream, peer: PeerId) -> None:
        told: dict[PeerId, int] = {}
        told_bans: set[bytes] = set()
        while True:
            seen = self._node.version
            for entry in self._node.bans.entries():
                if entry not in told_bans:
                    told_bans.add(entry)
                    await messages.send(BanNews(entry).encode())
            for record in (self._node.my_record(), *self._book.records()):
                if record.peer != peer and told.get(record.peer, -1) < record.sequence:
                    told[record.peer] = record.sequence
                    await messages.send(RecordNews(record.encode()).encode())
            await self._node.wait_changed(seen)

    async def _listen(self, messages: MessageStream) -> None:
        while True:
            match decode(await messages.receive()):
                case BanNews(ban=ban):
                    self._node.learn_bans([ban])
                case RecordNews(record=raw):
                    self._learn_record(raw)
                case None:
                    continue

    def _learn_record(self, raw: bytes) -> None:
        """A record that does not hold is skipped: the teller may not know yet that its node is banned."""
        try:
            record = PeerRecord.decode(raw)
            new = self._book.add(record)
        except RemoteProtocolError as error:
            LOG.info("record_dropped", why=error.what)
            return
        if new:
            self._heard(record)
            self._node.changed()
