"""Whether this machine has what members tell of, under whatever name: by fingerprint or content id."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from meshd.library.facts import facts_of
from meshd.library.interface import StoredModel
from meshd.library.short_names import hub_name_of
from meshd.model.model_name import ModelName
from meshd.store.hash_cache import FileState
from meshd.store.piece_cache import PieceCache
from meshd.wire.models import ToldModel


@dataclass(frozen=True, slots=True)
class SameModel:
    """A model of this machine. `fingerprint` in hex, empty if it was found by its content id."""

    stored: StoredModel
    fingerprint: str


def may_be_elsewhere(name: ModelName) -> bool:
    """Not where Hugging Face's hash of the file counts: a fingerprint leaves out how a file is described."""
    return hub_name_of(str(name)) is None


def same_model(
    told: Sequence[ToldModel],
    own: Iterable[StoredModel],
    pieces: PieceCache,
    *,
    is_wished: Callable[[str, str], bool],
    all_agree: bool,
) -> SameModel | None:
    """The first of `own` with a fingerprint or content id of these, as far as this machine knows its own.

    No file is hashed for it, only headers are read: for a thread. `is_wished` gets both in hex, and says
    whether they fit what was asked for. `all_agree`: of each that was told, or one member alone could put
    another model of this machine in the place of what the others have.
    """
    sizes = {one.size for one in told if one.content}
    for stored in own:
        content = b""
        if stored.size in sizes:
            with suppress(OSError):
                index = pieces.load([FileState.at(path) for path in stored.paths])
                content = index.content if index is not None else b""
        facts = facts_of(stored, pieces.hashes.folder)
        if facts.problem:
            continue
        found = facts.fingerprint or ""
        same = [
            found == one.fingerprint.hex() != "" or (stored.size, content) == (one.size, one.content or None)
            for one in told
        ]
        if (all(same) if all_agree else any(same)) and is_wished(found, content.hex()):
            return SameModel(stored, found)
    return None
