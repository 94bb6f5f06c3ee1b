"""Exchange news between connected members: records, bans and presence, over one durable stream per pair.

Each change is sent once to each peer. Nothing is queued: the content itself is the queue, and each stream
reads the journal of `NewsLedger` with its own mark, so a change costs each stream one look. A record that
changes more often than its share is passed on when its turn comes, in its latest form. `Told` notes for one
stream what the other side has sent, so that it is not sent back. At first, and each minute in which nothing
happens, the two peers compare a hash of everything, and send each other what one of them
lacks.

A member's news are read at a bounded rate: a member that sends more waits, and a member whose news do not
verify is soon ignored. This is counted per member (`NewsLimits`), not per stream or session, so a new session
does not reset it.
"""

import asyncio
import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from meshd.base import log
from meshd.base.admission import TokenBucket, TokenBuckets
from meshd.base.backoff import Backoff
from meshd.base.change_journal import Journal
from meshd.base.errors import Broken, Busy, EndOfStream, Refused, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.peer_limits import (
    ANSWERED,
    ANSWERED_OF_ISSUER,
    COMPARED,
    DIGESTS,
    LIVES_OF_ONE,
    NEWS_CHECKS,
    NEWS_FAULTS,
    NEWS_HEARD,
    NEWS_OF_ONE,
    SIGNS_OF_ONE,
)
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.identity.record import Away, PeerRecord, Presence
from meshd.identity.revocation import RevocationSet, digest_of
from meshd.peer.interface import Book, Stream
from meshd.peer.messages import MessageStream
from meshd.peer.node import Node
from meshd.peer.presence_gossip import PresenceGossip
from meshd.wire.news import (
    BUCKET_BYTES,
    BUCKETS,
    DIGEST_BYTES,
    AwayNews,
    BanNews,
    BucketsNews,
    DigestNews,
    PresenceNews,
    RecordNews,
    decode,
)

SLACK = 64  # journal entries of vanished items that are kept until a clean-up
COMPARE_SECONDS = 60.0  # between comparisons, while both sides have the same
Order = tuple[int, ...]
K = TypeVar("K")
_ENTRY = struct.Struct(">32sQQIB")

Issuers = TokenBuckets[Admitter | PeerId]
Learn = Callable[[], bool | None]

NEW_COST = 1.0  # a statement whose signatures are checked
NEW_BAN_COST = 5.0  # a ban is also written to disk before it is acted on
KNOWN_COST = 0.1  # a known statement: a hash
LEAST_PAUSE = 0.001  # shorter pauses are rounding errors
_MANY_MEMBERS = 64  # remembered members, before members that owe nothing are forgotten
LOG = log.get("peer")
MAX_COMPARE_SECONDS = 3600.0  # if both sides never agree: the pause is doubled each time
QUIET_SECONDS = 5.0  # after a change until hashes are compared: the change may be under way
_AGAIN = Backoff(first=5.0, most=300.0)  # until a lost stream is opened again
LASTING_SECONDS = 600.0  # a stream that was open for so long was no failure
_AT_ONCE = 16  # signs of life that are checked before other tasks run


@dataclass(frozen=True, slots=True)
class BanItem:
    """A ban, by its hash."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class LifeItem:
    """A report about a node's presence: its last sign of life, or that it is away."""

    peer: PeerId


Item = PeerId | BanItem | LifeItem  # a node's record, a ban, or a node's presence


class NewsLedger:
    """All that this node tells: the journal of its changes, and hashes of the whole.

    `own` returns the sequence number of our record. Call `collect` before each look at `journal`.
    """

    def __init__(
        self,
        *,
        me: PeerId,
        own: Callable[[], int],
        book: Book,
        bans: RevocationSet,
        gossip: PresenceGossip,
    ) -> None:
        self._me = me
        self._own = own
        self._book = book
        self._bans = bans
        self._gossip = gossip
        # Changes to pass on; `changed_at` is when the content changed last.
        self.journal: Journal[Item] = Journal()
        self.changed_at = 0.0
        self._collected: tuple[int, ...] = (-1, 0, 0, 0)
        self._turns_mark = 0
        self._news: TokenBuckets[PeerId] = TokenBuckets(NEWS_OF_ONE)
        self._turns: TokenBuckets[PeerId] = TokenBuckets(LIVES_OF_ONE)
        self._signs: TokenBuckets[PeerId] = TokenBuckets(SIGNS_OF_ONE)
        self._held: dict[Item, float] = {}  # when the turn of a delayed item comes
        self._held_signs: dict[Item, float] = {}
        # The hashes of the content that has these marks.
        self._hashed: tuple[int, ...] = ()
        self._buckets: tuple[bytes, ...] = ()
        self._digest = b""

    def _marks(self) -> tuple[int, ...]:
        """Return numbers that change whenever the content changes."""
        return self._own(), self._book.journal.mark, self._bans.journal.mark, self._gossip.journal.mark

    # Changes.

    def collect(self, now: float) -> None:
        """Take in what changed since the last time."""
        own, book_mark, bans_mark, gossip_mark = self._collected
        marks = self._marks()
        if marks != self._collected:
            self._collected, self.changed_at = marks, now
        # Our record and bans go out at once, other records at a pace.
        if marks[0] != own:
            self.journal.touch(self._me)
        for digest in self._bans.journal.since(bans_mark):
            self.journal.touch(BanItem(digest))
        for peer in self._book.journal.since(book_mark):
            self._tell_at_a_pace(peer, self._news.of(peer, now), self._held, now)
        self._collect_gossip(gossip_mark, now)
        # Items that were held back and are due now.
        for held in (self._held, self._held_signs):
            for item in [item for item, due in held.items() if due <= now]:
                del held[item]
                self.journal.touch(item)
        # Clean up when many items have vanished.
        known = 1 + len(self._bans) + len(self._book.journal) + len(self._gossip.journal)
        if len(self.journal) > known + SLACK:
            self._drop_what_is_gone()

    @property
    def due(self) -> float | None:
        """The time of the next delayed item; None if there is none."""
        return min((*self._held.values(), *self._held_signs.values()), default=None)

    def _collect_gossip(self, mark: int, now: float) -> None:
        turned = set(self._gossip.turns.since(self._turns_mark))
        self._turns_mark = self._gossip.turns.mark
        for peer in self._gossip.journal.since(mark):
            item = LifeItem(peer)
            if peer in turned:
                self._held_signs.pop(item, None)
                self._tell_at_a_pace(item, self._turns.of(peer, now), self._held, now)
            elif item not in self._held:
                self._tell_at_a_pace(item, self._signs.of(peer, now), self._held_signs, now)

    def _tell_at_a_pace(self, item: Item, pace: TokenBucket, held: dict[Item, float], now: float) -> None:
        if item in held:
            return
        pause = pace.take(1, now)
        if pause:
            held[item] = now + pause
        else:
            self.journal.touch(item)

    def _drop_what_is_gone(self) -> None:
        for item in self.journal.since(0):
            if isinstance(item, BanItem):
                gone = self._bans.entry(item.digest) is None
            elif isinstance(item, LifeItem):
                gone = item.peer not in self._gossip.journal
            else:
                gone = item != self._me and self._book.newest(item) is None
            if gone:
                self.journal.drop(item)

    # Hashes.

    @property
    def digest(self) -> bytes:
        """The digest of everything, 16 bytes."""
        self._hash()
        return self._digest

    @property
    def buckets(self) -> tuple[bytes, ...]:
        """The hashes of 256 parts, 8 bytes for each."""
        self._hash()
        return self._buckets

    def differing(self, theirs: tuple[bytes, ...]) -> list[Item]:
        """Return our items in the parts that differ on the other side."""
        parts = {at for at, (a, b) in enumerate(zip(self.buckets, theirs, strict=True)) if a != b}
        found: list[Item] = [BanItem(digest) for digest in self._bans.digests() if digest[0] in parts]
        for peer in (self._me, *(record.peer for record in self._book.records())):
            if peer.raw[0] in parts:
                found += (peer, LifeItem(peer))
        return found

    def _hash(self) -> None:
        """Hash the content, if it has changed since."""
        marks = self._marks()
        if marks == self._hashed:
            return
        self._hashed = marks
        parts: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        for digest in self._bans.digests():
            parts[digest[0]].append(digest)
        for record in self._book.records():
            sequence, count, away = (0, 0, 0) if record.has_left else self._gossip.mark_of(record.peer)
            raw = record.peer.raw
            parts[raw[0]].append(_ENTRY.pack(raw, record.sequence, sequence, count, away))
        raw = self._me.raw
        parts[raw[0]].append(_ENTRY.pack(raw, marks[0], *self._gossip.order(self._me), 0))
        self._buckets = tuple(
            hashlib.sha256(b"".join(sorted(part))).digest()[:BUCKET_BYTES] for part in parts
        )
        self._digest = hashlib.sha256(b"".join(self._buckets)).digest()[:DIGEST_BYTES]


@dataclass(slots=True)
class Told:
    """The news that the other side has sent, and the state of the comparison."""

    heard: dict[Item, Order] = field(default_factory=dict)
    asked: list[Item] = field(default_factory=list)  # what the other side seems to lack
    # The signs of life against which the other side spoke.
    doubts: dict[PeerId, Order] = field(default_factory=dict)
    # Doubts that we know to be wrong.
    refuted: dict[PeerId, None] = field(default_factory=dict)
    compared_at: float = 0.0
    pause: float = COMPARE_SECONDS
    begun: bool = False  # the first comparison is over: later ones wait for quiet

    def hear(self, item: Item, order: Order) -> None:
        """Note that the item need not be sent back."""
        _keep(self.heard, item, order)

    def knows(self, item: Item, order: Order) -> bool:
        """Say whether the other side has sent this itself."""
        return self.heard.get(item, (-1,)) >= order

    def hear_sign(self, peer: PeerId, order: Order) -> None:
        """Note that the other side has sent a sign of life."""
        self.hear(LifeItem(peer), (*order, 0))
        if self.doubts.get(peer, order) < order:
            del self.doubts[peer]

    def hear_away(self, peer: PeerId, order: Order, gossip: PresenceGossip) -> None:
        """Note that the other side says that `peer` is away: it may believe it, whether we did or not."""
        self.hear(LifeItem(peer), (*order, 1))
        _keep(self.doubts, peer, order)
        self.look_at((peer,), gossip)

    def look_at(self, peers: Iterable[PeerId], gossip: PresenceGossip) -> None:
        """Refute doubts about the peers of whom we know a later sign of life."""
        for peer in peers:
            order = self.doubts.get(peer)
            if order is not None and order < gossip.order(peer):
                del self.doubts[peer]
                self.refuted[peer] = None


def _keep(kept: dict[K, Order], key: K, order: Order) -> None:
    kept.pop(key, None)
    kept[key] = order
    if len(kept) > NEWS_HEARD.most:
        del kept[next(iter(kept))]


class NewsLimits:
    """The limits on news from and to one member."""

    def __init__(self, peer: PeerId, issuers: Issuers, now: float) -> None:
        self._peer = peer
        self._issuers = issuers
        self._checks = NEWS_CHECKS.bucket(now)
        self._faults = NEWS_FAULTS.bucket(now)
        self._compared = COMPARED.bucket(now)
        self._digests = DIGESTS.bucket(now)
        self._answered = ANSWERED.bucket(now)
        self.issuer: Admitter | PeerId = peer  # in whose share it also counts
        self.checked = 0.0  # the total cost of its news

    async def pause(self, cost: float) -> None:
        """Let other tasks run, and wait while the member has sent too much."""
        self.checked += cost
        await asyncio.sleep(self._checks.take(cost, asyncio.get_running_loop().time()))

    def fault(self, why: str) -> None:
        """Count an invalid statement of the member. Raises RemoteProtocolError if there are too many."""
        if not self._faults.spend(1, asyncio.get_running_loop().time()):
            raise RemoteProtocolError(f"too many invalid news, the last one: {why}", code="news")
        LOG.info("news_dropped", peer=self._peer.short, why=why)

    def compares(self, now: float) -> bool:
        """Say whether the member may have another answer to its hashes, which may be all our content."""
        return self._compared.spend(1, now)

    def digests(self, now: float) -> bool:
        """Say whether another digest of the member is compared. The answer to 16 bytes is 2 KiB."""
        return self._digests.spend(1, now)

    def answered(self, size: int, now: float) -> None:
        """Count `size` bytes that were sent because the hashes differ."""
        self._answered.take(size, now)
        self._issuers.of(self.issuer, now).take(size, now)

    def rest(self, now: float) -> float:
        """Return the seconds until more may be sent for that reason; 0: now."""
        pause = max(self._answered.take(0, now), self._issuers.of(self.issuer, now).take(0, now))
        return pause if pause > LEAST_PAUSE else 0.0

    def clear(self, now: float) -> bool:
        """Say whether the member owes nothing."""
        buckets = (self._checks, self._faults, self._compared, self._digests, self._answered)
        return all(bucket.full(now) for bucket in buckets)


class NewsLimitsByMember:
    """The limits of all members that owe something."""

    def __init__(self) -> None:
        self._of: dict[PeerId, NewsLimits] = {}
        self._issuers: Issuers = TokenBuckets(ANSWERED_OF_ISSUER)

    def of(self, peer: PeerId, now: float, *, admitter: Admitter | None = None) -> NewsLimits:
        """Return the same limits as long as the member owes something; `admitter`: its admitter, if known."""
        if len(self._of) >= _MANY_MEMBERS:
            self._of = {peer: limits for peer, limits in self._of.items() if not limits.clear(now)}
        limits = self._of.get(peer)
        if limits is None:
            limits = self._of[peer] = NewsLimits(peer, self._issuers, now)
        if admitter is not None:
            limits.issuer = admitter
        return limits


class News:
    """Exchange news with every connected member.

    `greeted` returns the number of the record with which a member has greeted.
    """

    def __init__(
        self,
        node: Node,
        book: Book,
        gossip: PresenceGossip,
        *,
        heard: Callable[[PeerRecord], None],
        greeted: Callable[[PeerId], int],
    ) -> None:
        self._node = node
        self._book = book
        self._gossip = gossip
        self._heard = heard
        self._greeted = greeted
        self.ledger = NewsLedger(
            me=node.peer,
            own=lambda: node.host.record().sequence,
            book=book,
            bans=node.bans,
            gossip=gossip,
        )
        self.limits = NewsLimitsByMember()

    async def keep(self, peer: PeerId, open_stream: Callable[[], Stream], rng: Callable[[], float]) -> None:
        """Talk with `peer` until `open_stream` raises Broken: a lost stream is opened again.

        The pause grows each time, unless the stream lasted: the other side may not listen for a while.
        """
        lost = 0
        while True:
            began = self._node.now()
            try:
                await self.talk(open_stream())
            except Broken:
                return
            except Busy as error:
                LOG.info("news_refused", peer=peer.short, why=error.what)
            if self._node.now() - began >= LASTING_SECONDS:
                lost = 0
            await asyncio.sleep(_AGAIN.delay(lost, rng()))
            lost += 1

    async def talk(self, stream: Stream) -> None:
        """Send and receive news until the stream ends."""
        messages, exchange = MessageStream(stream), Told()
        record = self._book.record(stream.peer)
        admitter = record.chain.admitter if record is not None else None
        limits = self.limits.of(stream.peer, self._node.now(), admitter=admitter)
        try:
            async with Owner() as owner:
                telling = self._tell(messages, stream.peer, exchange, limits)
                owner.start(telling, name=f"news to {stream.peer.short}")
                await self._listen(messages, stream.peer, exchange, limits)
                owner.cancel()
        except* (Broken, EndOfStream):
            pass
        except* Refused as group:  # the peer ends, or is uncooperative: no reason to end as well
            LOG.info("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
        except* RemoteProtocolError as group:
            LOG.warning("news_refused", peer=stream.peer.short, why=str(group.exceptions[0]))
            self._node.faults.broke(stream.peer, self._node.now(), str(group.exceptions[0]))
            stream.reset(1, "unreadable news")

    # Sending.

    async def _tell(self, messages: MessageStream, peer: PeerId, exchange: Told, limits: NewsLimits) -> None:
        # The stream begins with a comparison of everything.
        self.ledger.collect(self._node.now())
        mark = self.ledger.journal.mark  # existing content is compared
        gossip_mark = self._gossip.journal.mark
        await self._tell_digest(messages, exchange)
        # Then each change is sent, and what the other side lacks, until the next comparison.
        while True:
            seen = self._node.version
            self.ledger.collect(self._node.now())
            items, mark = self.ledger.journal.since(mark), self.ledger.journal.mark
            for item in items:
                for message in self._words(item, peer, exchange):
                    await messages.send(message)
            exchange.look_at(self._gossip.journal.since(gossip_mark), self._gossip)
            gossip_mark = self._gossip.journal.mark
            await self._refute(messages, peer, exchange, limits)
            await self._answer(messages, peer, exchange, limits)
            if self._node.now() >= exchange.compared_at + exchange.pause and self._is_quiet():
                await self._tell_digest(messages, exchange)
            await self._until_changed(seen, exchange, limits)

    async def _refute(
        self, messages: MessageStream, peer: PeerId, exchange: Told, limits: NewsLimits
    ) -> None:
        """Refute the peer's claims that living members are away: at once, as the peer may believe them."""
        while exchange.refuted and not limits.rest(self._node.now()):
            subject = next(iter(exchange.refuted))
            del exchange.refuted[subject]
            for message in self._words(LifeItem(subject), peer, exchange):
                limits.answered(len(message), self._node.now())
                await messages.send(message)

    async def _answer(
        self, messages: MessageStream, peer: PeerId, exchange: Told, limits: NewsLimits
    ) -> None:
        """Send what the peer seems to lack, as far as its share allows."""
        exchange.asked.reverse()
        asked, exchange.asked = exchange.asked, []
        while asked and not limits.rest(self._node.now()):
            for message in self._words(asked.pop(), peer, exchange):
                limits.answered(len(message), self._node.now())
                await messages.send(message)
        if not exchange.asked:  # else the peer has compared again meanwhile
            exchange.asked = asked[::-1]

    def _is_quiet(self) -> bool:
        return self._node.now() >= self.ledger.changed_at + QUIET_SECONDS

    async def _tell_digest(self, messages: MessageStream, exchange: Told) -> None:
        exchange.compared_at = self._node.now()
        await messages.send(DigestNews(self.ledger.digest).encode())

    async def _until_changed(self, seen: int, exchange: Told, limits: NewsLimits) -> None:
        """Wait for a change, a delayed item that becomes due, or the time to compare."""
        due = max(exchange.compared_at + exchange.pause, self.ledger.changed_at + QUIET_SECONDS)
        if self.ledger.due is not None:
            due = min(due, self.ledger.due)
        if exchange.asked or exchange.refuted:
            due = min(due, self._node.now() + limits.rest(self._node.now()))
        try:
            async with asyncio.timeout_at(due):
                await self._node.wait_changed(seen)
        except TimeoutError:
            pass

    def _words(self, item: Item, peer: PeerId, exchange: Told) -> Iterator[bytes]:
        """Yield the messages for an item, unless it is gone, or `peer` has sent it itself."""
        if isinstance(item, BanItem):
            entry = self._node.bans.entry(item.digest)
            if entry is not None and not exchange.knows(item, (0,)):
                yield BanNews(entry).encode()
        elif isinstance(item, LifeItem):
            sign, away = self._gossip.statements(item.peer)
            if exchange.knows(item, self._gossip.mark_of(item.peer)):
                return
            if sign is not None and item.peer != peer:
                yield PresenceNews((sign.to_bytes(),)).encode()
            if away is not None:
                yield AwayNews(away.to_bytes()).encode()
        else:
            record = self._node.host.record() if item == self._node.peer else self._book.newest(item)
            if record is None or exchange.knows(item, (record.sequence,)):
                return
            # A node gets its own record only if that is newer than the one in its greeting.
            if item != peer or record.sequence > self._greeted(peer):
                yield RecordNews(record.encode()).encode()

    # Receiving.

    async def _listen(
        self, messages: MessageStream, peer: PeerId, exchange: Told, limits: NewsLimits
    ) -> None:
        while True:
            message = await messages.receive()
            try:
                news = decode(message)
            except RemoteProtocolError as error:  # the message was complete, so the next one can be read
                limits.fault(error.what)
                news = None
            match news:
                case BanNews(ban=ban):
                    await limits.pause(
                        self._learn(partial(self._learn_ban, ban, exchange), limits, NEW_BAN_COST)
                    )
                case RecordNews(record=raw):
                    await limits.pause(self._learn(partial(self._learn_record, raw, exchange), limits))
                case PresenceNews(entries=entries):
                    for at in range(0, len(entries), _AT_ONCE):
                        part = entries[at : at + _AT_ONCE]
                        await limits.pause(
                            sum(self._learn(partial(self._learn_sign, raw, exchange), limits) for raw in part)
                        )
                case AwayNews(away=raw):
                    await limits.pause(self._learn(partial(self._learn_away, raw, peer, exchange), limits))
                case DigestNews(digest=digest):
                    await limits.pause(KNOWN_COST)
                    await self._compare(digest, messages, exchange, limits)
                case BucketsNews(hashes=hashes):
                    await limits.pause(NEW_COST)
                    if limits.compares(self._node.now()):
                        exchange.asked = self.ledger.differing(hashes)
                        self._node.changed()
                case None:
                    await limits.pause(KNOWN_COST)

    async def _compare(
        self, digest: bytes, messages: MessageStream, exchange: Told, limits: NewsLimits
    ) -> None:
        """Compare the other side's digest with ours, and answer with hashes of all parts if they differ."""
        if not limits.digests(self._node.now()):
            return  # before anything is computed
        self.ledger.collect(self._node.now())
        if digest == self.ledger.digest:
            exchange.pause = COMPARE_SECONDS
        elif not exchange.begun or self._is_quiet():
            if exchange.begun:
                exchange.pause = min(2 * exchange.pause, MAX_COMPARE_SECONDS)
            answer = BucketsNews(self.ledger.buckets).encode()
            limits.answered(len(answer), self._node.now())
            await messages.send(answer)
        exchange.begun = True

    def _learn(self, learn: Learn, limits: NewsLimits, cost: float = NEW_COST) -> float:
        """Take one statement in, and return what it costs. Raises RemoteProtocolError after too many invalid
        ones.
        """
        try:
            new = learn()
        except (RemoteProtocolError, Fault) as error:
            limits.fault(error.what)
            return cost
        if new:
            self._node.changed()
        return KNOWN_COST if new is None else cost

    # Each of these takes a statement in. It returns None for a known one, and True if the streams have to
    # look again. It raises RemoteProtocolError or Fault for an invalid one.

    def _learn_ban(self, ban: bytes, exchange: Told) -> bool | None:
        item = BanItem(digest_of(ban))
        is_known = self._node.bans.entry(item.digest) is not None
        exchange.hear(item, (0,))
        if not is_known and self._node.learn_bans([ban]):
            raise RemoteProtocolError("an invalid ban", code="news")
        return None if is_known else False

    def _learn_record(self, raw: bytes, exchange: Told) -> bool | None:
        record = PeerRecord.decode(raw)
        if record.peer == self._node.peer:
            return self._learn_own(record)
        source = f"peer {record.peer.short}"
        try:
            # A fault is the sender's: whether the node itself signed the record is not known yet.
            with Contained(source, "record"):
                new = self._book.add(record)
        except RemoteProtocolError as error:
            if error.code == "banned":
                return False  # the sender may not know yet
            raise
        exchange.hear(record.peer, (record.sequence,))
        if not new:
            return None
        # From here on a fault is its signer's: the member that sent it may know no better.
        with suppress(Fault), Contained(source, "record", partial(self._blame, record.peer)):
            self._heard(record)
        return True

    def _learn_own(self, record: PeerRecord) -> bool | None:
        """Take in a record of this node itself, of an earlier run or of a copy."""
        mine = self._node.host.record()
        if record.sequence <= mine.sequence:
            return None
        record.verify(mine.mesh)
        self._node.host.overtaken(record)
        return False

    def _blame(self, peer: PeerId, fault: Fault) -> None:
        self._node.faults.blame(peer, self._node.now(), fault.what)

    def _learn_sign(self, raw: bytes, exchange: Told) -> bool | None:
        sign = Presence.from_bytes(raw)
        new = self._gossip.hear_sign(sign)
        exchange.hear_sign(sign.peer, sign.order)
        if new is False:
            raise RemoteProtocolError("an invalid sign of life", code="news")
        return new

    def _learn_away(self, raw: bytes, peer: PeerId, exchange: Told) -> bool | None:
        away = Away.from_bytes(raw)
        new = self._gossip.hear_away(away, self._node.now(), teller=peer)
        refuted = bool(new) and self._gossip.refute(self._node.now())
        exchange.hear_away(away.peer, away.order, self._gossip)
        if refuted or exchange.refuted:
            self._node.changed()
        if new is False:
            raise RemoteProtocolError("an invalid statement of absence", code="news")
        return new
