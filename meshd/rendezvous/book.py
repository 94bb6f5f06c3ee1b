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
from meshd.wire.hello import MAX_RECORD_BYTES
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

    def load(self, blob: bytes | None) -> None:
        """Take in what `save` was given at an earlier start; records that no longer hold are dropped."""
        if blob is None:
            return
        try:
            fields = unpack(blob, limit=MAX_BOOK_BYTES)
            for raw in fields.raws("records", most=MAX_RECORD_BYTES, count=MAX_PEERS):
                self._load_record(raw)
            for entry in fields.maps("hints", count=MAX_PEERS):
                self._load_hints(entry)
        except RemoteProtocolError as error:
            raise UserError(
                f"the address book cannot be read: {error.what}",
                hint="remove `book.blob` in the state folder; peers are found again by a new token",
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
        for text in entry.texts("at", most=80, count=MAX_HINTS):
            try:
                hints.append(Candidate.parse(text))
            except UserError:
                continue
        self._hints[peer] = hints

    def _keep(self) -> None:
        hints: list[Value] = [
            {"peer": peer.raw, "at": [str(candidate) for candidate in candidates]}
            for peer, candidates in list(self._hints.items())[-MAX_PEERS:]  # the latest: as many as load takes
        ]
        self._save(pack({"records": [record.encode() for record in self._records.values()], "hints": hints}))

    # Book.

    def records(self) -> Sequence[PeerRecord]:
        """Records of all other members known."""
        return tuple(self._records.values())

    def peers(self) -> Sequence[PeerId]:
        """See Book."""
        return tuple(dict.fromkeys([*self._records, *self._hints]))

    def record(self, peer: PeerId) -> PeerRecord | None:
        """The newest record of one member."""
        return self._records.get(peer)

    def add(self, record: PeerRecord) -> bool:
        """See Book. Raises RemoteProtocolError when the record is not to be trusted."""
        if record.peer == self._me:
            return False
        known = self._records.get(record.peer)
        if known is not None and known.sequence >= record.sequence:
            return False
        if known is None and len(self._records) >= MAX_PEERS:
            LOG.warning("book_full", count=len(self._records))
            return False
        self._verify(record)
        self._records[record.peer] = record
        self._keep()
        return True

    def hint(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Addresses from a token: tried after those of the record."""
        if peer == self._me:
            return
        self._hints[peer] = list(dict.fromkeys([*candidates, *self._hints.get(peer, [])]))[:MAX_HINTS]
        self._keep()

    def candidates(self, peer: PeerId) -> Sequence[Candidate]:
        """See Book: what worked last, then the record's, then hints."""
        record = self._records.get(peer)
        hints = self._hints.get(peer, [])
        return tuple(dict.fromkeys([*hints[:1], *(record.candidates if record else ()), *hints[1:]]))

    def worked(self, peer: PeerId, remote: str) -> None:
        """See Book: the next dial begins there."""
        try:
            candidate = Candidate.parse(f"{remote}/tcp")
        except UserError:
            return
        hints = self._hints.get(peer, [])
        if hints[:1] != [candidate]:
            self._hints[peer] = list(dict.fromkeys([candidate, *hints]))[:MAX_HINTS]
            self._keep()

    def forget(self, peer: PeerId) -> None:
        """See Book: a banned or departed member."""
        if self._records.pop(peer, None) is not None or self._hints.pop(peer, None) is not None:
            self._hints.pop(peer, None)
            self._keep()
