"""The address book: signed records of members, and addresses that are known to work.

Of two records of one node the higher sequence number wins (clocks lie). The book is kept on disk, so that
a restarted node finds its mesh without an invite.

The book is bounded. A node that admits members fills its own share of it: an inviter has a fixed one, and of
a full book the largest share gives way. Which record goes is decided by its node's place, which none can
choose (identity/membership.py), the same on every node: else two nodes would tell each other for ever what
the other one has just dropped. Nodes connected with this one stay.

`KeptBook` keeps it in a node's home: read at the start, verified, written when it has changed. `Places`
judges which of the addresses that peers announce this node may dial (wire/dialable.py has the rules).
"""

import asyncio
import functools
import ipaddress
import time
from collections.abc import Callable, Sequence
from functools import partial

from meshd.base import log
from meshd.base.change_journal import Journal
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.peer_limits import BOOK_RECORDS, HINTS, INVITER_RECORDS
from meshd.base.tasks import in_thread
from meshd.identity.invite import RelayHint, parse_relay_url
from meshd.identity.keys import MeshId, PeerId
from meshd.identity.keystore import BOOK_BLOB, Home
from meshd.identity.membership import Admitter
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.wire.address import Address, Candidate
from meshd.wire.dialable import Dialable, Here, Source, dialable
from meshd.wire.limits import MAX_ITEMS, MAX_RECORD_BYTES, MAX_SEQUENCE
from meshd.wire.message import Fields, Value, pack, unpack
from meshd.wire.netfacts import CAPABILITY, NetFacts

MAX_BOOK_PEERS = BOOK_RECORDS.most
MAX_HINTS = (
    HINTS.most
)  # addresses of a peer that are not in its record: from the invite, or where it called from
MAX_ADDRESS_BOOK_BYTES = 16 << 20
LOG = log.get("rendezvous")

WRITE_SECONDS = 1.0

HERE_SECONDS = 1.0  # for which the answer of the kernel counts: each plan of each peer's dials asks
MAX_MEMBERS_ASKED = 4  # of those that have a public address, how a port of ours is seen
MAX_JUDGED = 512  # lists of addresses whose verdict is remembered, 32 addresses each at most


class AddressBook:
    """Implements peer.interface.Book.

    `verify` raises RemoteProtocolError for a record that is not to be trusted; `save` is told that the book
    has changed, and keeps what `encode` gives when it sees fit.
    """

    def __init__(self, *, me: PeerId, verify: Callable[[PeerRecord], None], save: Callable[[], None]) -> None:
        self._me = me
        self._verify = verify
        self._save = save
        self._records: dict[PeerId, PeerRecord] = {}
        self._admitted: dict[Admitter, set[PeerId]] = {}  # whose records there are, by who let them in
        self.version = 0
        self.journal: Journal[PeerId] = Journal()  # whose record changed last
        self._hints: dict[PeerId, list[Candidate]] = {}
        self._nearby: dict[PeerId, tuple[Candidate, ...]] = {}  # not kept: it holds for this network and now
        self._is_spared: Callable[[PeerId], bool] = lambda _peer: False
        self._forgotten: dict[PeerId, int] = {}  # sequence numbers of records that others may still tell of

    def load(self, blob: bytes | None, *, file: str = "") -> None:
        """Load the output of `encode`; records that no longer verify, and those above the limits, are
        dropped. `file` is its name for the error. Raises UserError.
        """
        if blob is None:
            return
        try:
            fields = unpack(blob, limit=MAX_ADDRESS_BOOK_BYTES)
            for raw in fields.raws("records", most=MAX_RECORD_BYTES, count=MAX_ITEMS)[:MAX_BOOK_PEERS]:
                self._load_record(raw)
            for entry in fields.maps("hints", count=MAX_ITEMS)[-MAX_BOOK_PEERS:]:
                self._load_hints(entry)
            if "forgotten" in fields:  # not in a book of an earlier version
                for entry in fields.maps("forgotten", count=MAX_ITEMS)[-MAX_BOOK_PEERS:]:
                    peer = PeerId(entry.raw("peer", exact=32))
                    self._forgotten[peer] = entry.number("seq", low=0, high=MAX_SEQUENCE)
        except RemoteProtocolError as error:
            raise UserError(
                f"the address book `{file}` cannot be read: {error.what}",
                hint="move that file away; peers are found again with an invite, or when they connect",
            ) from error

    def _load_record(self, raw: bytes) -> None:
        try:
            with Contained("address book", "record"):  # one that cannot be read must not end every start
                record = PeerRecord.decode(raw)
                self._verify(record)
        except (RemoteProtocolError, Fault) as error:
            LOG.info("record_dropped", why=error.what)
            return
        if self._has_room(record):
            self._put(record)

    def _load_hints(self, entry: Fields) -> None:
        peer = PeerId(entry.raw("peer", exact=32))
        hints = []
        for text in entry.texts("at", most=80, count=MAX_ITEMS)[:MAX_HINTS]:
            try:
                hints.append(Candidate.parse(text))
            except UserError:
                continue
        self._hints[peer] = hints

    def spare(self, who: Callable[[PeerId], bool]) -> None:
        self._is_spared = who

    def _changed(self) -> None:
        self.version += 1
        self._save()

    def encode(self) -> bytes:
        """Encode the book for the disk; `load` reads it."""
        hints: list[Value] = [
            {"peer": peer.raw, "at": [str(candidate) for candidate in candidates]}
            for peer, candidates in self._hints.items()
        ]
        forgotten: list[Value] = [
            {"peer": peer.raw, "seq": sequence} for peer, sequence in self._forgotten.items()
        ]
        records = [record.encode() for record in self._records.values()]
        return pack({"records": records, "hints": hints, "forgotten": forgotten})

    # Book.

    def records(self) -> Sequence[PeerRecord]:
        return tuple(sorted(self._records.values(), key=lambda record: record.has_left))

    def peers(self) -> Sequence[PeerId]:
        members = (peer for peer, record in self._records.items() if not record.has_left)
        return tuple(dict.fromkeys([*members, *self._hints]))

    def record(self, peer: PeerId) -> PeerRecord | None:
        record = self._records.get(peer)
        return None if record is None or record.has_left else record

    def newest(self, peer: PeerId) -> PeerRecord | None:
        return self._records.get(peer)

    def add(self, record: PeerRecord, *, from_itself: bool = False) -> bool:
        """Add a record if it is newer and there is room. Raises RemoteProtocolError when it cannot be
        trusted.
        """
        if record.peer == self._me:
            return False
        known = self._records.get(record.peer)
        least = -1 if from_itself else self._forgotten.get(record.peer, -1)
        if record.sequence <= (known.sequence if known else least):
            return False
        if known is None and not self._has_room(record):
            return False
        self._verify(record)
        self._put(record)
        if record.has_left:
            self._hints.pop(record.peer, None)
            self._nearby.pop(record.peer, None)
        self._changed()
        return True

    def _put(self, record: PeerRecord) -> None:
        """Store a record, and remove what it displaces."""
        self._forgotten.pop(record.peer, None)
        admitter = record.chain.admitter
        known = self._records.get(record.peer)
        if known is not None and known.chain.admitter == admitter:
            self._records[record.peer] = record
            self.journal.touch(record.peer)
            return
        self._take_out(record.peer)
        displaced = self._displaced(admitter) if len(self._records) >= MAX_BOOK_PEERS else None
        self._admitted.setdefault(admitter, set()).add(record.peer)
        self._records[record.peer] = record
        self.journal.touch(record.peer)
        if not admitter.is_root and len(self._admitted[admitter]) > INVITER_RECORDS.most:
            self._take_out(max(self._admitted[admitter], key=self._rank))
        elif displaced is not None:
            self._take_out(displaced)

    def _has_room(self, record: PeerRecord) -> bool:
        """Return True if the record would stay. One that would not is not even verified."""
        mine = self._admitted.get(record.chain.admitter, set())
        if not record.chain.admitter.is_root and len(mine) >= INVITER_RECORDS.most:
            return (True, record.chain.place) < max(map(self._rank, mine))
        if len(self._records) < MAX_BOOK_PEERS:
            return True
        if record.has_left:
            return False  # the last word of somebody unknown keeps nobody out
        victim = self._displaced(record.chain.admitter)
        if victim not in mine or self._records[victim].has_left:
            return True
        return (True, record.chain.place) < self._rank(victim)

    def _displaced(self, newcomer: Admitter) -> PeerId:
        """Choose the record to evict from a full book: one of the largest share; there one that has left, if
        any.

        A newcomer of a share as large as the largest displaces one of its own.
        """
        most = max(len(peers) for peers in self._admitted.values())
        shares = [who for who, peers in self._admitted.items() if len(peers) == most]
        pool = [newcomer] if newcomer in shares else shares
        alike = [peer for who in pool for peer in self._admitted[who]]
        return max([peer for peer in alike if self._records[peer].has_left] or alike, key=self._rank)

    def _rank(self, peer: PeerId) -> tuple[bool, bytes]:
        """Return the key of eviction: the greatest goes first."""
        return not self._is_spared(peer), self._records[peer].chain.place

    def _take_out(self, peer: PeerId) -> None:
        record = self._records.pop(peer, None)
        if record is None:
            return
        self.journal.drop(peer)
        share = self._admitted[record.chain.admitter]
        share.discard(peer)
        if not share:
            del self._admitted[record.chain.admitter]

    def hint(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Add addresses from an invite: tried after those of the record.

        An invite given again at a restart, with the same command line, does not bring back a peer that was
        forgotten since.
        """
        if peer == self._me or peer in self._forgotten:
            return
        self._set_hints(peer, [*candidates, *self._hints.get(peer, [])])

    def nearby(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Set where a peer is seen in our networks now (mDNS); each call replaces the last one's addresses.

        Anybody there may have said so: the addresses are tried, but neither stored nor preferred to others.
        """
        self._nearby.pop(peer, None)
        if candidates and peer in self.peers():
            self._nearby[peer] = tuple(candidates)

    def _set_hints(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        self._hints.pop(peer, None)  # the latest go to the end
        self._hints[peer] = list(dict.fromkeys(candidates))[:MAX_HINTS]
        if len(self._hints) > MAX_BOOK_PEERS:
            del self._hints[next(iter(self._hints))]
        self._changed()

    def sources(self, peer: PeerId) -> Sequence[tuple[Source, Sequence[Candidate]]]:
        """Return a peer's addresses by source: what worked last, where it is seen, the record's,
        then hints.
        """
        record = self.record(peer)
        hints = self._hints.get(peer, [])
        return (
            (Source.GIVEN, hints[:1]),
            (Source.NEARBY, self._nearby.get(peer, ())),
            (Source.RECORD, record.candidates if record else ()),
            (Source.GIVEN, hints[1:]),
        )

    def candidates(self, peer: PeerId) -> Sequence[Candidate]:
        """Return all addresses, without their sources."""
        return tuple(dict.fromkeys(candidate for _, named in self.sources(peer) for candidate in named))

    def worked(self, peer: PeerId, remote: str) -> None:
        """Record the address that worked: the next dial begins there."""
        try:
            candidate = Candidate.parse(f"{remote}/tcp")
        except UserError:
            return
        hints = self._hints.get(peer, [])
        if hints[:1] != [candidate]:
            self._set_hints(peer, [candidate, *hints])

    def forget(self, peer: PeerId) -> None:
        """Forget a peer. A last word stays: others are told of it."""
        self._nearby.pop(peer, None)
        record = self.record(peer)
        if record is not None:
            self._take_out(peer)
            self._forgotten[peer] = record.sequence
            if len(self._forgotten) > MAX_BOOK_PEERS:
                del self._forgotten[next(iter(self._forgotten))]
        if self._hints.pop(peer, None) is not None or record is not None:
            self._changed()


class KeptBook:
    """`book` takes records of members of `mesh` that are not banned. Raises UserError for a damaged file."""

    def __init__(self, home: Home, *, me: PeerId, mesh: MeshId, bans: RevocationSet) -> None:
        self._home = home
        self._mesh = mesh
        self._bans = bans
        self._changed = asyncio.Event()  # since it was written
        self.book = AddressBook(me=me, verify=self._verify, save=self._changed.set)
        self.book.load(home.read_blob(BOOK_BLOB), file=str(home.path / f"{BOOK_BLOB}.blob"))

    async def serve(self) -> None:
        """Write at most once a second: when many join, the book changes with each of their records."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await in_thread(partial(self._home.keep_blob, BOOK_BLOB, self.book.encode()))
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            self.write()

    def write(self) -> None:
        """Write the book if it has changed."""
        if self._changed.is_set():
            self._changed.clear()
            self._home.keep_blob(BOOK_BLOB, self.book.encode())

    def _verify(self, record: PeerRecord) -> None:
        member = record.verify(self._mesh)
        why = self._bans.why_banned(member.chain)
        if why is not None:
            raise RemoteProtocolError(f"a record of a banned member: {why}", code="banned")


class Places:
    """The addresses of peers. `look` returns this machine's networks; `local_only`: no member is asked."""

    def __init__(self, book: AddressBook, *, look: Callable[[], Here], local_only: bool) -> None:
        self._book = book
        self._look = look
        self._local_only = local_only
        self._seen = Here()
        self._seen_until = 0.0

    def moved(self) -> None:
        """Look at this machine's addresses again: they may have changed."""
        self._seen_until = 0.0

    def may_dial(self, peer: PeerId, candidates: Sequence[Candidate], source: Source) -> Sequence[Dialable]:
        """Return the addresses of a peer that may be dialled, as link.interface.MayDial."""
        return judged(tuple(candidates), source, self._here(), frozenset(self._claims_of(peer)))

    def of_relay(self, candidates: Sequence[Candidate]) -> Sequence[Dialable]:
        """Return the diallable addresses of a relay that only a peer's record names."""
        return dialable(candidates, source=Source.RECORD, here=self._here())

    def relays_of(self, peer: PeerId) -> tuple[RelayHint, ...]:
        """Return the relays that its record names."""
        record = self._book.record(peer)
        hints = []
        for url in record.relays if record is not None else ():
            try:
                hints.append(parse_relay_url(url))
            except UserError:
                continue
        return tuple(hints)

    def issuer_of(self, peer: PeerId) -> Admitter | None:
        """Return who admitted it, as its record says."""
        record = self._book.newest(peer)
        return record.chain.admitter if record is not None else None

    def facts_of(self, peer: PeerId) -> NetFacts | None:
        """Return the facts of its network in its record; None if there are none."""
        record = self._book.record(peer)
        try:
            return NetFacts.from_text(record.capabilities.get(CAPABILITY, "")) if record is not None else None
        except RemoteProtocolError:
            return None

    def tcp_servers(self, relays: Sequence[str], stun: Sequence[str]) -> tuple[str, ...]:
        """Return servers that see a TCP port of ours: relays, public members, STUN servers (few
        speak TCP).
        """
        return (*relays, *self._stun_members(), *stun)

    def _stun_members(self) -> list[str]:
        """Return mesh ports of members that can be reached from anywhere."""
        if self._local_only:
            return []
        found = [
            place.place
            for record in self._book.records()
            if not record.has_left
            for place in self.may_dial(record.peer, record.candidates, Source.RECORD)
            if _answers_stun(place)
        ]
        return found[:MAX_MEMBERS_ASKED]

    def _here(self) -> Here:
        now = time.monotonic()
        if now >= self._seen_until:
            self._seen = self._look()
            self._seen_until = now + HERE_SECONDS
        return self._seen

    def _claims_of(self, peer: PeerId) -> set[Address]:
        """Return every address by which the record of `peer` says it can be reached."""
        record, facts = self._book.record(peer), self.facts_of(peer)
        claimed = {candidate.ip for candidate in record.candidates} if record is not None else set()
        if facts is not None and facts.public_v4:
            claimed.add(ipaddress.ip_address(facts.public_v4))
        return claimed


@functools.lru_cache(maxsize=MAX_JUDGED)
def judged(
    candidates: tuple[Candidate, ...], source: Source, here: Here, claims: frozenset[Address]
) -> tuple[Dialable, ...]:
    """Judge the candidates. Cached: an unreachable peer is planned for again and again, with the same
    addresses.
    """
    return tuple(dialable(candidates, source=source, here=here, claims=claims))


def _answers_stun(candidate: Candidate) -> bool:
    """Return True if it may be the mesh port of a member that can be reached from anywhere, in IPv4."""
    public = candidate.ip.is_global and candidate.kind in ("host", "mapped")
    return public and candidate.proto == "tcp" and not candidate.is_v6
