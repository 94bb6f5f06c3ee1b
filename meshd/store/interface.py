"""Model files on this machine: found, opened once, known by content.

A file is opened once and kept open: what was hashed, what is loaded and what is checked again afterwards is
the same open file, whatever happens to its path meanwhile. Nothing here writes to a model file. Words: an
*index* lists every tensor of a model with its BLAKE3-256; a *shard* is one file of a model that is stored in
several; a *fingerprint* says that two copies hold the same model. The *content store* keeps tensors that came
over the network; a *lease cache* is what one lease sees of it. Tests: tests/unit/store.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshd.base.units import in_bytes
from meshd.model.gguf import Header
from meshd.model.status import StoreStatus
from meshd.model.weights_index import WeightsIndex
from meshd.rpc.mesh_keeping import Missed, Sink


@dataclass(frozen=True, slots=True)
class HashProgress:
    """The progress of hashing. Bytes; `rate` in bytes a second since it began (0 while unknown)."""

    label: str
    done: int
    total: int
    rate: float

    @classmethod
    def after(cls, seconds: float, label: str, *, done: int, total: int) -> "HashProgress":
        """Return the progress that was made within so many seconds."""
        return cls(label, done, total, done / seconds if seconds > 0 else 0.0)

    @property
    def text(self) -> str:
        """One line for a log or a terminal."""
        percent = 100 * self.done // max(1, self.total)
        text = f"reading `{self.label}` once to hash its weights: {percent} % of {in_bytes(self.total)}"
        return f"{text}, {in_bytes(self.rate)}/s" if self.rate else text


ProgressCallback = Callable[[HashProgress], None]
"""Called on the event loop, at most a few times a second; must not block."""


class WeightsFile(Protocol):
    """An open model: one file, or all shards of one. Usable until `close`."""

    @property
    def name(self) -> str:
        """The file's name without its folder, or what people call the model: never for decisions."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def headers(self) -> tuple[Header, ...]:
        """The header of each shard, in their order."""
        ...

    @property
    def header_of(self) -> bytes:
        """The content id (model/weights_index.py) of a model whose layers are not here; empty for all others.

        There, the tensors of layers are holes, and only their hashes are known.
        """
        ...

    @property
    def missing_bytes(self) -> int:
        """The bytes of the present shards that are cut off (workers only: a head needs all)."""
        ...

    @property
    def missing_shards(self) -> int:
        """The number of shards that are not present (workers only)."""
        ...

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open descriptors, in the order of the shards; read-only, not inherited unless passed on."""
        ...

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        """Return the index, from the cache or by one reading of the files. Raises UserError."""
        ...

    def stat_unchanged(self) -> bool:
        """Return True if size, mtime, ctime and inode are still those of the index (before it: of the
        opening).
        """
        ...

    def paths_unchanged(self) -> bool:
        """Return True if the paths still lead to the open files: false once one was replaced."""
        ...

    async def follow(self) -> bool:
        """Open what the paths lead to now, instead of what is open; `index` then reads that.

        False when they lead to the open files still. Raises UserError, and leaves all as it was. Descriptors
        that were asked for before are closed: duplicate what must outlive this.
        """
        ...

    def close(self) -> None: ...


class LeaseCache(Sink, Protocol):
    """The content store as one lease uses it. For the event loop: nothing here waits for a slow disk."""

    @property
    def index(self) -> WeightsIndex:
        """The kept tensors; at least one file, though it may be empty, so that a server asks by content."""
        ...

    @property
    def descriptors(self) -> Sequence[int]:
        """The descriptors of the index's files, in its order; open until `handed_over`."""
        ...

    def handed_over(self) -> None:
        """Close our descriptors: the server has duplicates of them. Idempotent."""
        ...

    async def fetched(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        """Take a piece like `piece`, but wait until there is room in the queue.

        Raises UserError when nothing can be kept any more.
        """
        ...

    def allow(self, limit: int) -> None:
        """Allow `limit` bytes of this lease to be kept; before this call none are."""
        ...

    def done(self) -> None:
        """Finish: the model is loaded, and no tensor comes any more. Idempotent."""
        ...

    def close(self) -> None:
        """Release everything: the lease is over. Idempotent."""
        ...


class ContentStore(Protocol):
    """Tensors that came over the network, kept for the next load."""

    @property
    def status(self) -> StoreStatus: ...
    @property
    def digests(self) -> Collection[bytes]:
        """The hashes of all tensors that are known to be here and intact."""
        ...

    async def serve(self) -> None:
        """Run for as long as the store is used."""
        ...

    async def take(self, *, peer: str, on_progress: Callable[[str], Awaitable[None]]) -> LeaseCache | None:
        """Return a cache for a lease of `peer`, once everything kept is known to be intact.

        `on_progress` is called every few seconds. None when nothing is kept here. Raises OSError.
        """
        ...
