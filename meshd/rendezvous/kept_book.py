"""The address book in a node's home: read at the start, verified, written when it has changed."""

import asyncio
from functools import partial

from meshd.base.errors import RemoteProtocolError
from meshd.base.tasks import in_thread
from meshd.identity.keys import MeshId, PeerId
from meshd.identity.keystore import Home
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet
from meshd.rendezvous.book import AddressBook

BOOK_BLOB = "book"
WRITE_SECONDS = 1.0


class KeptBook:
    """`book` takes records of members of `mesh` that are not banned. Raises UserError for a damaged file."""

    def __init__(self, home: Home, *, me: PeerId, mesh: MeshId, bans: RevocationSet) -> None:
        self._home = home
        self._mesh = mesh
        self._bans = bans
        self._is_new = False  # not written yet
        self._changed = asyncio.Event()
        self.book = AddressBook(me=me, verify=self._verify, save=self._save)
        self.book.load(home.read_blob(BOOK_BLOB), file=str(home.path / f"{BOOK_BLOB}.blob"))

    async def serve(self) -> None:
        """Write at most once a second: when many join, the book changes with each of their records."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if self._is_new:
                    self._is_new = False
                    await in_thread(partial(self._home.keep_blob, BOOK_BLOB, self.book.encode()))
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            self.write()

    def write(self) -> None:
        """Write the book if it has changed."""
        if self._is_new:
            self._is_new = False
            self._home.keep_blob(BOOK_BLOB, self.book.encode())

    def _save(self) -> None:
        self._is_new = True
        self._changed.set()

    def _verify(self, record: PeerRecord) -> None:
        member = record.verify(self._mesh)
        why = self._bans.why_banned(member.chain)
        if why is not None:
            raise RemoteProtocolError(f"a record of a banned member: {why}", code="banned")
