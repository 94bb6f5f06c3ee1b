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

from meshd.base.byte_format import in_bytes
from meshd.model.gguf import Header
from meshd.model.status import StoreStatus
from meshd.model.weights_index import WeightsIndex
from meshd.rpc.mesh_keeping import Missed, Sink


@dataclass(frozen=True, slots=True)
class HashProgress:
    """How far hashing is. Bytes; `rate` in bytes a second since it began (0 when not known yet)."""

    label: str
    done: int
    total: int
    rate: float
    finished: bool = False

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
        """The file's name without its folder, or what people call it: never for decisions."""
        ...

    @property
    def paths(self) -> tuple[Path, ...]: ...

    @property
    def headers(self) -> tuple[Header, ...]:
        """The header of each shard, in their order."""
        ...

    @property
    def header_of(self) -> bytes:
        """The content id (model/piece_index.py) of a model whose layers are not here; empty for all others.

        There, the tensors of layers are holes, and only their hashes are known.
        """
        ...

    @property
    def missing_bytes(self) -> int:
        """How much of the present shards is cut off (workers only: a head needs all)."""
        ...

    @property
    def missing_shards(self) -> int:
        """How many shards are not there (workers only)."""
        ...

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open descriptors, in the order of the shards; read-only, not inherited unless passed on."""
        ...

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        """The index, from the cache or by one reading of the files. Raises UserError."""
        ...

    def stat_unchanged(self) -> bool:
        """Whether size, mtime, ctime and inode are still those of the index (of the opening, before it)."""
        ...

    def paths_unchanged(self) -> bool:
        """Whether the paths still lead to the open files: false once one was replaced by another file."""
        ...

    async def follow(self) -> bool:
        """Open what the paths lead to now, in place of what is open; `index` then reads that.

        False when they lead to the open files still. Raises UserError, and leaves all as it was. Descriptors
        that were asked for before are closed: duplicate what must outlive this.
        """
        ...

    def close(self) -> None: ...


class LeaseCache(Sink, Protocol):
    """The content store as one lease uses it. For the event loop: nothing here waits for a slow disk."""

    @property
    def index(self) -> WeightsIndex:
        """What is kept; at least one file, though it may be empty, so that a server asks by content."""
        ...

    @property
    def descriptors(self) -> Sequence[int]:
        """Of the index's files, in its order; open until `handed_over`."""
        ...

    def handed_over(self) -> None:
        """The server has duplicates of the descriptors. Idempotent."""
        ...

    async def fetched(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        """As `piece`, for bytes that can wait until there is room in the queue.

        Raises UserError when nothing can be kept any more.
        """
        ...

    def allow(self, limit: int) -> None:
        """Keep at most so many bytes of this lease; before it none."""
        ...

    def done(self) -> None:
        """The model is loaded: no tensor comes any more. Idempotent."""
        ...

    def close(self) -> None:
        """The lease is over. Idempotent."""
        ...


class ContentStore(Protocol):
    """Tensors that came over the network, kept for the next load."""

    @property
    def status(self) -> StoreStatus: ...
    @property
    def digests(self) -> Collection[bytes]:
        """Of all that is known to be here and good."""
        ...

    async def serve(self) -> None:
        """Run as long as it is used."""
        ...

    async def take(self, *, peer: str, on_progress: Callable[[str], Awaitable[None]]) -> LeaseCache | None:
        """For a lease of `peer`, once all that is kept is known to be good.

        `on_progress` is called every few seconds. None when nothing is kept here. Raises OSError.
        """
        ...
