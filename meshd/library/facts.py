"""Read what a model's files say about themselves, and its fingerprint if it was hashed before."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_exact_bytes
from meshd.library.interface import StoredModel
from meshd.library.pulled_models import ONLY_HEADER
from meshd.model.architectures import KNOWN_ARCHITECTURES
from meshd.model.ggml import FILE_TYPES
from meshd.model.gguf import Header
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import HashCache
from meshd.store.header_file import read_note
from meshd.store.shard import Shard, close_all, is_header, open_shards


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts in the headers. `problem`: what is missing, or why the files cannot be read.

    Without a readable header, `shards` is 0, and only `problem` and `hint` are set.
    """

    architecture: str = ""
    supported: bool = False  # by the pinned llama.cpp
    title: str = ""
    quant: str = ""
    parameters: int = 0
    layers: int = 0
    context: int = 0
    tensors: int = 0
    shards: int = 0
    has_chat_template: bool = False
    fingerprint: str | None = None
    problem: str = ""
    hint: str = ""


def facts_of(model: StoredModel, hashes: Path) -> ModelFacts:
    """Read only the headers; a file that cannot be read is a `problem`, not an error.

    `hashes`: the folder of meshd's own hashes.
    """
    if not model.paths or not model.paths[0].name:
        return ModelFacts(problem=model.problem)
    try:
        header_only = is_header(model.paths[0])
        shards = open_shards(model.paths[0], partial=True, header_only=header_only)
    except UserError as error:
        return ModelFacts(problem=model.problem or error.what, hint="" if model.problem else error.hint)
    try:
        facts = _facts(model, shards, HashCache(hashes))
        return _of_header(facts, model.paths[0]) if header_only else facts
    finally:
        close_all(shards)


def _of_header(facts: ModelFacts, path: Path) -> ModelFacts:
    """Add the fingerprint that a member reported."""
    try:
        note = read_note(path)
    except UserError as error:
        return replace(facts, fingerprint=None, problem=error.what)
    return replace(facts, fingerprint=note.fingerprint, problem=ONLY_HEADER)


def _facts(model: StoredModel, shards: list[Shard], hashes: HashCache) -> ModelFacts:
    headers = [shard.header for shard in shards]
    first = headers[0]
    architecture = first.text("general.architecture")
    whole = not any(header.missing_bytes for header in headers) and len(shards) == first.shard[1]
    return ModelFacts(
        architecture=architecture,
        supported=architecture in KNOWN_ARCHITECTURES,
        title=first.text("general.name"),
        quant=_quant(first) or model.quant,
        parameters=sum(math.prod(tensor.dims) for header in headers for tensor in header.tensors),
        layers=first.integer(f"{architecture}.block_count"),
        context=first.integer(f"{architecture}.context_length"),
        tensors=sum(len(header.tensors) for header in headers),
        shards=first.shard[1],
        has_chat_template="tokenizer.chat_template" in first.metadata,
        fingerprint=_fingerprint(shards, hashes) if whole else None,
        problem=problem_of(shards) or model.problem,
    )


def _quant(header: Header) -> str:
    return FILE_TYPES.get(header.integer("general.file_type", -1), "")


def problem_of(shards: list[Shard]) -> str:
    """Return what these files lack; empty if they are complete."""
    lacking = shards[0].header.shard[1] - len(shards)
    if lacking > 0:
        return f"{lacking} of {shards[0].header.shard[1]} files missing"
    missing = sum(shard.header.missing_bytes for shard in shards)
    return f"short by {in_exact_bytes(missing)}" if missing else ""


def _fingerprint(shards: list[Shard], hashes: HashCache) -> str | None:
    digests = [hashes.load(shard.state, shard.header, shard.descriptor) for shard in shards]
    known = [one for one in digests if one is not None]
    return fingerprint([shard.header for shard in shards], known) if len(known) == len(shards) else None
