"""The models of this machine that members are told of, and the open files of one of them.

Told are names, sizes and hashes, never a path. By default only models that the mesh has seen are offered:
those that this node was started with, and those in meshd's own folder. What else is on the machine is its
user's to give (`--give-models`): a cache may hold private models, and the list alone tells of its user.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from meshd.library.facts import ModelFacts, facts_of
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.own_models import of_path
from meshd.library.stores import Stores
from meshd.library.walk import is_file
from meshd.model.model_name import HUB, OLLAMA, stem_of_ollama
from meshd.model.piece_index import PieceIndex
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.piece_cache import PieceCache
from meshd.store.shard import close_all, open_shards
from meshd.wire.limits import MAX_GIVEN_BYTES, MAX_MODEL_FILES, MAX_MODELS_TOLD
from meshd.wire.models import MODEL_KEY_BYTES, ToldModel

OWN_SOURCES = frozenset({ModelSource.MESHD, ModelSource.PATH})
CACHE_SOURCES = OWN_SOURCES | {ModelSource.HUB, ModelSource.OLLAMA}
_FRESH_SECONDS = 5.0  # a list is given again, rather than made again, for so long
_NONE: frozenset[ModelSource] = frozenset()
GIVEN_SOURCES = {
    "own": OWN_SOURCES,
    "caches": CACHE_SOURCES,
    "all": frozenset(ModelSource),
    "off": _NONE,
}


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """`paths` stay on this machine; `told` is what members hear."""

    told: ToldModel
    paths: tuple[Path, ...]
    states: tuple[FileState, ...]


class OpenModel:
    """The files of an offered model, open until `close`, in the state in which its pieces were hashed."""

    def __init__(self, offered: OfferedModel) -> None:
        self._paths = offered.paths
        self.labels = tuple(path.name for path in offered.paths)
        self.descriptors: list[int] = []

    def open(self) -> None:
        """For a thread: who waits for it may be cancelled, and closes it all the same. Raises OSError."""
        for path in self._paths:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.descriptors.append(os.open(path, flags))

    @property
    def states(self) -> tuple[FileState, ...]:
        """As they are now. Raises OSError."""
        return tuple(map(FileState.of, self.descriptors))

    def close(self) -> None:
        """Idempotent."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []


class OfferedModels:
    """Methods block, for threads; the same model keeps its key."""

    def __init__(self, stores: Callable[[], Stores], hashes: Path, pieces: PieceCache, *, give: str) -> None:
        """`give`: one of GIVEN_SOURCES. `hashes`: the folder of meshd's hashes of tensors."""
        self._stores = stores
        self._hashes = hashes
        self._pieces = pieces
        self._sources = GIVEN_SOURCES[give]
        self._own: list[Path] = []
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._read: dict[tuple[Path, ...], tuple[tuple[FileState, ...], ModelFacts]] = {}
        self._known: dict[bytes, OfferedModel] = {}
        self._listed_at = -_FRESH_SECONDS

    def add(self, paths: Sequence[Path]) -> None:
        """Models that this node was started with, wherever they are."""
        self._own += paths

    def listed(self) -> tuple[OfferedModel, ...]:
        """All of them, as they are now; complete ones only."""
        with self._lock:
            if time.monotonic() - self._listed_at < _FRESH_SECONDS:
                return tuple(self._known.values())
            found: dict[bytes, OfferedModel] = {}
            for stored in self._stored():
                if len(found) >= MAX_MODELS_TOLD:
                    break
                with suppress(OSError):
                    if (offered := self._offered(stored)) is not None:
                        found.setdefault(offered.told.key, offered)
            self._read = {one.paths: self._read[one.paths] for one in found.values()}
            self._known, self._listed_at = found, time.monotonic()
            return tuple(found.values())

    def changed(self) -> None:
        """The next list is made anew: a model's pieces have become known, say."""
        self._listed_at = -_FRESH_SECONDS

    def by_key(self, key: bytes) -> OfferedModel | None:
        """One that was told of."""
        return next((one for one in self.listed() if one.told.key == key), None)

    def by_content(self, content: bytes) -> OfferedModel | None:
        """One whose pieces are known, and are these: since the list was made, maybe."""
        listed = self.listed()
        found = next((one for one in listed if content and one.told.content == content), None)
        unread = () if found is not None or not content else listed
        return next((one for one in unread if self._has_become(one, content)), found)

    def _has_become(self, offered: OfferedModel, content: bytes) -> bool:
        index = None if offered.told.content else self.index_of(offered)
        return index is not None and index.content == content

    def index_of(self, offered: OfferedModel) -> PieceIndex | None:
        """Its pieces, if they are known."""
        return self._pieces.load(offered.states)

    def tensors_of(self, offered: OfferedModel) -> bytes | None:
        """The hashes of its tensors one behind the other, if they are known. Raises UserError."""
        shards = open_shards(offered.paths[0])
        try:
            known = [HashCache(self._hashes).load(shard.state, shard.header) for shard in shards]
        finally:
            close_all(shards)
        found = [digest for digests in known for digest in digests or ()]
        return None if None in known else b"".join(found)

    def _stored(self) -> list[StoredModel]:
        if not self._sources:
            return []
        own = [of_path(path) for path in self._own if is_file(path)]
        started = {path.resolve() for one in own for path in one.paths}
        stored = [
            one
            for one in self._stores().all_models()
            if one.source in self._sources or not started.isdisjoint(path.resolve() for path in one.paths)
        ]
        return [*stored, *own]

    def _offered(self, stored: StoredModel) -> OfferedModel | None:
        if not stored.complete or not stored.paths or len(stored.paths) > MAX_MODEL_FILES:
            return None
        paths = tuple(path.resolve() for path in stored.paths)
        states = tuple(map(FileState.at, paths))
        before = self._read.get(paths)
        if before is not None and before[0] == states and before[1].fingerprint is not None:
            facts = before[1]
        else:
            facts = facts_of(stored, self._hashes)
        self._read[paths] = (states, facts)
        size = sum(state.size for state in states)
        if facts.problem or facts.shards != len(paths) or not 0 < size <= MAX_GIVEN_BYTES:
            return None
        index = self._pieces.load(states)
        told = ToldModel(
            key=self._key(paths),
            names=names_of(stored),
            size=size,
            files=len(paths),
            quant=facts.quant or stored.quant,
            architecture=facts.architecture,
            fingerprint=bytes.fromhex(facts.fingerprint or ""),
            content=index.content if index is not None else b"",
        )
        return OfferedModel(told, paths, states)

    def _key(self, paths: Sequence[Path]) -> bytes:
        """Says nothing about the paths, which members must not learn."""
        whole = blake3(key=self._secret)
        for path in paths:
            whole.update(os.fsencode(path) + b"\0")
        return whole.digest(MODEL_KEY_BYTES)


def names_of(stored: StoredModel) -> tuple[str, ...]:
    """The name of its file, then that with a scheme. Ollama's blobs have none, so theirs is made of it."""
    stem = stored.stem
    if stored.source is ModelSource.OLLAMA:
        stem = stem_of_ollama(stored.name)
    with_scheme = (stored.name,) if stored.name.startswith((HUB, OLLAMA)) else ()
    return (stem, *with_scheme)
