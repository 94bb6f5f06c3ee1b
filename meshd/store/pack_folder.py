"""The folder of the content store: its packs, its room, and evictions.

Short file operations, for the event loop or a thread. Beside each pack lies `<pack>.checked`: the state in
which it was read and found whole, and, by its date, when it was last of use.
"""

import os
import shutil
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.files import NEW_PREFIX
from meshd.store.hash_cache import FileState
from meshd.store.pack import JOURNAL, SUFFIX, finish_leftover, locked, read_table, remove

_CHECKED = ".checked"
MAX_PACKS = 32  # each is a descriptor of every lease, and of its server
FREE_SHARE = 2  # the store takes at most one part in this many of what it and the free disk have together
LOG = log.get("store")


class StoreFolder:
    """`limit` in bytes is what the user allows. Processes that share the folder share what is in it."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.problem = ""  # why it took nothing the last time; empty if it did
        self._peers: dict[str, str] = {}

    @property
    def usable(self) -> bool:
        """True if the folder exists, or can be created, and is private to this user."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = self.path.lstat()
        except OSError as error:
            self.unusable(error.strerror or str(error))
            return False
        private = about.st_uid == os.geteuid() and stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
        if not private:
            self.unusable("other users can enter it")
        return private

    def unusable(self, why: str) -> None:
        """Log why the folder is unusable, once for each lease that does without it."""
        self.problem = why
        LOG.warning("weights_store_unusable", path=str(self.path), why=why)

    def packs(self) -> list[tuple[str, int]]:
        """Return names and sizes in bytes."""
        return [(path.name, size) for path, size in self._files() if path.name.endswith(SUFFIX)]

    def limit_now(self, held: int) -> int:
        """Return the most bytes that may be here; `held` are."""
        try:
            free = shutil.disk_usage(self.path).free
        except OSError:
            free = 0
        return limit_now(self.limit, store_bytes=held, free_bytes=free)

    # Notes beside a pack.

    def touch(self, name: str) -> None:
        """Mark a pack as used now."""
        with suppress(OSError):
            (self.path / (name + _CHECKED)).touch(mode=0o600)

    def note(self, name: str, state: FileState) -> None:
        """Note that the pack was read in this state, and is intact."""
        with suppress(OSError):
            (self.path / (name + _CHECKED)).write_text(state.line)

    def noted(self, name: str) -> str:
        """Return the noted state as text; empty if there is none."""
        try:
            return (self.path / (name + _CHECKED)).read_text(errors="replace")[:200]
        except OSError:
            return ""

    # Room.

    def make_room(self, need: int) -> bool:
        """Evict unused packs until `need` bytes more may be written; False if that is not possible."""
        packs = self.packs()
        held = sum(size for _, size in packs) + self._unsealed_bytes()
        limit = self.limit_now(held)
        excess_bytes, excess_packs = held + need - limit, len(packs) + 1 - MAX_PACKS
        if excess_bytes <= 0 and excess_packs <= 0:
            return True
        return need <= limit and self._evict(packs, excess_bytes=excess_bytes, excess_packs=excess_packs)

    def _evict(self, packs: Sequence[tuple[str, int]], *, excess_bytes: int, excess_packs: int) -> bool:
        locks: dict[str, int] = {}
        try:
            held: list[EvictablePack] = []
            for name, size in packs:
                descriptor = locked(self.path / name, alone=True)
                if descriptor is not None:
                    locks[name] = descriptor
                    held.append(
                        EvictablePack(name, size, self._peer(name, descriptor), self._last_used(name))
                    )
            evicted = packs_to_evict(held, excess_bytes=excess_bytes, excess_packs=excess_packs)
            for name in evicted or ():
                LOG.info("kept_weights_removed", path=name, bytes=dict(packs)[name])
                self._unlink(name, locks[name])
            return evicted is not None
        finally:
            for descriptor in locks.values():
                os.close(descriptor)

    def _peer(self, name: str, descriptor: int) -> str:
        if name not in self._peers:
            try:
                self._peers[name] = read_table(descriptor).peer
            except (ValueError, OSError):
                self._peers[name] = ""
        return self._peers[name]

    def _last_used(self, name: str) -> int:
        for path in (self.path / (name + _CHECKED), self.path / name):
            with suppress(OSError):
                return path.stat().st_mtime_ns
        return 0

    def _unsealed_bytes(self) -> int:
        """Return the bytes on disk of packs that this process or another is writing."""
        total = 0
        for path, _ in self._files():
            if path.name.startswith(NEW_PREFIX):
                with suppress(OSError):
                    total += path.stat().st_blocks * 512
        return total

    def _files(self) -> list[tuple[Path, int]]:
        found: list[tuple[Path, int]] = []
        with suppress(OSError):
            for path in self.path.iterdir():
                with suppress(OSError):  # removed by another process meanwhile
                    found.append((path, path.lstat().st_size))
        return found

    # Removing.

    def discard(self, name: str) -> None:
        """Remove a useless pack, unless somebody has it open."""
        descriptor = locked(self.path / name, alone=True)
        if descriptor is not None:
            self._unlink(name, descriptor)
            os.close(descriptor)

    def _unlink(self, name: str, descriptor: int) -> None:
        self._peers.pop(name, None)
        remove(self.path / name, descriptor)
        with suppress(OSError):
            (self.path / (name + _CHECKED)).unlink()

    def clean(self) -> None:
        """Finish leftovers of a crash, and remove packs over the limit; without one, others' packs stay."""
        names = {path.name for path, _ in self._files()}
        for name in names:
            path = self.path / name
            if name.startswith(NEW_PREFIX) and not name.endswith(JOURNAL):
                self._finish(path)
            if name.endswith(JOURNAL) and name.removesuffix(JOURNAL) not in names:
                path.unlink(missing_ok=True)
            if name.endswith(_CHECKED) and name.removesuffix(_CHECKED) not in names:
                with suppress(OSError):
                    path.unlink()
        if self.limit:
            self.make_room(0)

    def _finish(self, path: Path) -> None:
        """Keep the complete tensors of a pack whose writer was killed, or remove the pack."""
        descriptor = locked(path, alone=True)
        if descriptor is None:
            return
        try:
            if not (self.limit and finish_leftover(path, descriptor)):
                remove(path, descriptor)
        except OSError:
            remove(path, descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class EvictablePack:
    """A pack that may be removed. `last_used` orders them: the lowest was not needed for longest."""

    name: str
    size: int
    peer: str
    last_used: int


def limit_now(limit: int, *, store_bytes: int, free_bytes: int) -> int:
    """Return the bytes that the store may hold: the user's limit, and at most its share of the disk."""
    return min(limit, (store_bytes + max(0, free_bytes)) // FREE_SHARE)


def packs_to_evict(
    packs: Sequence[EvictablePack], *, excess_bytes: int, excess_packs: int
) -> list[str] | None:
    """Return names of packs whose removal frees so many bytes and packs; None: impossible.

    Evicts the least recently used pack of the node whose packs are largest together, and so on: a node that
    sends more than others loses its own packs first.
    """
    left = list(packs)
    evicted: list[str] = []
    while excess_bytes > 0 or excess_packs > 0:
        if not left:
            return None
        sums: dict[str, int] = {}
        for pack in left:
            sums[pack.peer] = sums.get(pack.peer, 0) + pack.size
        most = max(sums, key=lambda peer: (sums[peer], peer))
        oldest = min(
            (pack for pack in left if pack.peer == most), key=lambda pack: (pack.last_used, pack.name)
        )
        left.remove(oldest)
        evicted.append(oldest.name)
        excess_bytes -= oldest.size
        excess_packs -= 1
    return evicted
