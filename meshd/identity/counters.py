"""The number of starts of this node, and the numbers that its records may have: kept in the home."""

import os
from collections.abc import Callable

from meshd.base.errors import RemoteProtocolError
from meshd.identity.folder import PrivateFolder, damaged
from meshd.identity.keeping import Keeping
from meshd.wire.limits import MAX_SEQUENCE
from meshd.wire.message import pack, unpack

INCARNATION_BYTES = 16
FILE = "counters"
_COUNTS = ("incarnation", "sequence")
_MAX_BYTES = 8 << 10


class Counters:
    """Every method that reads raises UserError when the file is damaged."""

    def __init__(self, folder: PrivateFolder, keeping: Keeping) -> None:
        self._folder = folder
        self._keeping = keeping
        self._least = dict.fromkeys(_COUNTS, 0)  # what the file has to say, at least

    def next_incarnation(self, random: Callable[[int], bytes] = os.urandom) -> bytes:
        """Return 16 bytes, greater at each call: an 8-byte count, then random bytes (a copied home differs).

        If the disk cannot be written the count stays, and only the random bytes tell this start from the last
        one.
        """
        count = self._read()["incarnation"] + 1
        self._keep("incarnation", count)
        return count.to_bytes(8, "big") + random(INCARNATION_BYTES - 8)

    def last_sequence(self) -> int:
        """Return the greatest number that a record of this node may have."""
        return self._read()["sequence"]

    def reserve_sequences(self, last: int) -> bool:
        """Note that records may have numbers up to `last`; True when that is durable already."""
        return self._keep("sequence", last)

    def _keep(self, name: str, least: int) -> bool:
        self._least[name] = max(self._least[name], least)
        return self._keeping.keep(FILE, self._write)

    def _write(self) -> None:
        counts = self._read()
        self._folder.write(FILE, pack({name: max(counts[name], self._least[name]) for name in _COUNTS}))

    def _read(self) -> dict[str, int]:
        data = self._folder.read(FILE, limit=_MAX_BYTES)
        if data is None:
            return dict.fromkeys(_COUNTS, 0)
        try:
            fields = unpack(data)
            return {name: fields.number(name, low=0, high=MAX_SEQUENCE) for name in _COUNTS}
        except RemoteProtocolError as error:
            raise damaged(self._folder.path / FILE, error.what) from None
