"""The address book: signed records of members, and addresses that are known to work.

Of two records of one node the higher sequence number wins (clocks lie). The book is kept on disk, so that
a restarted node finds its mesh without a token.
"""

from collections.abc import Callable, Sequence

from meshd.base import log
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.wire.address import Candidate
from meshd.wire.limits import MAX_ITEMS, MAX_RECORD_BYTES
from meshd.wire.message import Fields, Value, pack, unpack

MAX_PEERS = 256
MAX_HINTS = 4  # addresses of a peer that are not in its record: from the token, or where it called from
MAX_BOOK_BYTES = 4 << 20
LOG = log.get("rendezvous")


class AddressBook:
    """Implements peer.interface.Book.

    `verify` raises RemoteProtocolError for a record that is not to be trusted; `save` keeps the book.
    """

    def __init__(
        self, *, me: PeerId, verify: Callable[[PeerRecord], None], save: Callable[[bytes], None]
    ) -> None:
        self._me = me
        self._verify = verify
        self._save = save
        self._records: dict[PeerId, PeerRecord] = {}
        self._hints: dict[PeerId, list[Candidate]] = {}
        self._nearby: dict[PeerId, tuple[Candidate, ...]] = {}  # not kept: it holds for this network and now
        self._forgotten: dict[PeerId, int] = {}  # the sequence number that others may still tell of

    def load(self, blob: bytes | None, *, file: str = "") -> None:
        """Take in what `save` was given at an earlier start; records that no longer hold are dropped, and
        so is whatever is above the limits. `file` is its name for the error. Raises UserError."""
        if blob is None:
            return
        try:
            fields = unpack(blob, limit=MAX_BOOK_BYTES)
            for raw in fields.raws("records", most=MAX_RECORD_BYTES, count=MAX_ITEMS)[:MAX_PEERS]:
                self._load_record(raw)
            for entry in fields.maps("hints", count=MAX_ITEMS)[-MAX_PEERS:]:
                self._load_hints(entry)
        except RemoteProtocolError as error:
            raise UserError(
                f"the address book `{file}` cannot be read: {error.what}",
                hint="move that file away; peers are found again by a token, or when they call",
            ) from error

    def _load_record(self, raw: bytes) -> None:
        try:
            record = PeerRecord.decode(raw)
            self._verify(record)
        except RemoteProtocolError as error:
            LOG.info("record_dropped", why=error.what)
            return
        self._records[record.peer] = record

    def _load_hints(self, entry: Fields) -> None:
        peer = PeerId(entry.raw("peer", exact=32))
        hints = []
        for text in entry.texts("at", most=80, count=MAX_ITEMS)[:MAX_HINTS]:
            try:
                hints.append(Candidate.parse(text))
            except UserError:
                continue
        self._hints[peer] = hints

    def _keep(self) -> None:
        hints: list[Value] = [
            {"peer": peer.raw, "at": [str(candidate) for candidate in candidates]}
            for peer, candidates in self._hints.items()
        ]
        self._save(pack({"records": [record.encode() for record in self._records.values()], "hints": hints}))

    # Book.

    def records(self) -> Sequence[PeerRecord]:
        """See Book."""
        return tuple(sorted(self._records.values(), key=lambda record: record.has_left))

    def peers(self) -> Sequence[PeerId]:
        """See Book."""
        members = (peer for peer, record in self._records.items() if not record.has_left)
        return tuple(dict.fromkeys([*members, *self._hints]))

    def record(self, peer: PeerId) -> PeerRecord | None:
        """See Book."""
        record = self._records.get(peer)
        return None if record is None or record.has_left else record

    def add(self, record: PeerRecord) -> bool:
        """See Book. Raises RemoteProtocolError when the record is not to be trusted."""
        if record.peer == self._me:
            return False
        known = self._records.get(record.peer)
        if record.sequence <= (known.sequence if known else self._forgotten.get(record.peer, -1)):
            return False
        if known is None and len(self._records) >= MAX_PEERS and not self._make_room():
            LOG.warning("book_full", count=len(self._records))
            return False
        self._verify(record)
        self._records[record.peer] = record
        if record.has_left:
            self._hints.pop(record.peer, None)
            self._nearby.pop(record.peer, None)
        self._keep()
        return True

    def _make_room(self) -> bool:
        """The oldest last word goes: whoever still tells of that node is long behind."""
        gone = next((peer for peer, record in self._records.items() if record.has_left), None)
        if gone is not None:
            del self._records[gone]
        return gone is not None

    def hint(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Addresses from a token: tried after those of the record."""
        if peer == self._me:
            return
        self._set_hints(peer, [*candidates, *self._hints.get(peer, [])])

    def nearby(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Where a peer is seen in our networks now (mDNS); each call replaces what the last one said.

        Anybody there may have said so: it is tried, and neither kept nor put in the place of other addresses.
        """
        self._nearby.pop(peer, None)
        if candidates and peer in self.peers():
            self._nearby[peer] = tuple(candidates)

    def _set_hints(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        self._hints.pop(peer, None)  # the latest go to the end
        self._hints[peer] = list(dict.fromkeys(candidates))[:MAX_HINTS]
        if len(self._hints) > MAX_PEERS:
            del self._hints[next(iter(self._hints))]
        self._keep()

    def candidates(self, peer: PeerId) -> Sequence[Candidate]:
        """See Book: what worked last, then where it is seen, then the record's, then hints."""
        record = self.record(peer)
        hints = self._hints.get(peer, [])
        told = record.candidates if record else ()
        return tuple(dict.fromkeys([*hints[:1], *self._nearby.get(peer, ()), *told, *hints[1:]]))

    def worked(self, peer: PeerId, remote: str) -> None:
        """See Book: the next dial begins there."""
        try:
            candidate = Candidate.parse(f"{remote}/tcp")
        except UserError:
            return
        hints = self._hints.get(peer, [])
        if hints[:1] != [candidate]:
            self._set_hints(peer, [candidate, *hints])

    def forget(self, peer: PeerId) -> None:
        """See Book. A last word stays: it is what others are told."""
        self._nearby.pop(peer, None)
        record = self.record(peer)
        if record is not None:
            del self._records[peer]
            self._forgotten[peer] = record.sequence
            if len(self._forgotten) > MAX_PEERS:
                del self._forgotten[next(iter(self._forgotten))]
        if self._hints.pop(peer, None) is not None or record is not None:
            self._keep()
