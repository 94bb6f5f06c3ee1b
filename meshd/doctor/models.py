"""Check the model files that the settings name: that they are there, readable and complete."""

import os
from collections.abc import Iterator
from pathlib import Path

from meshd.base.errors import UserError
from meshd.config.tree import Config
from meshd.doctor.kinds import Finding, Kind
from meshd.library.facts import problem_of
from meshd.library.interface import NotDownloaded, TransferProgress
from meshd.library.resolve import Given, Resolver
from meshd.library.stores import Stores
from meshd.store.model_file import is_header, shards_of


def check_models(config: Config) -> Iterator[Finding]:
    """Check each model that a head would serve, or a worker lend. Only headers are read."""
    resolver = Resolver(Stores.here(config.paths.cache), _silent)
    served: list[Given] = []
    for serve in config.served:
        named = (serve.model, serve.draft_model, *serve.fallback_models)
        served += [model for model in named if model is not None]
    for model in dict.fromkeys((*served, *config.worker.models)):
        yield from _check_model(model, resolver, is_served=model in served)


def _check_model(given: Given, resolver: Resolver, *, is_served: bool) -> Iterator[Finding]:
    try:
        paths = resolver.local(given).paths
    except NotDownloaded:
        return  # a node downloads it
    except UserError as error:
        yield Kind.MODEL_MISSING.found(why=error.what, remedy=error.hint)
        return
    for path in paths[:1]:
        yield _check_file(path, is_served=is_served)


def _check_file(path: Path, *, is_served: bool) -> Finding:
    try:
        with shards_of(path, partial=True, header_only=is_header(path)) as shards:
            problem, lacks_parts = problem_of(shards), len(shards) < shards[0].header.shard[1]
    except UserError as error:
        kind = Kind.MODEL_DAMAGED if os.access(path, os.R_OK) else Kind.MODEL_UNREADABLE
        return kind.found(why=error.what, remedy=error.hint)
    if not problem or is_header(path):
        return Kind.MODEL.found(path=path)
    if not is_served:
        return Kind.MODEL_PARTIAL.found(path=path, problem=problem)
    return (Kind.MODEL_PARTS_MISSING if lacks_parts else Kind.MODEL_INCOMPLETE).found(
        path=path, problem=problem
    )


def _silent(_progress: TransferProgress) -> None:
    """Ignore progress: nothing is downloaded here."""
