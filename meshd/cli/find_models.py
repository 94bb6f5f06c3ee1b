"""Finds the models that a role was given by name, before its daemon starts: a download can take hours."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.byte_format import in_bytes
from meshd.cli.output import Output, in_time
from meshd.config import Config

if TYPE_CHECKING:
    from meshd.library.interface import TransferProgress

_STEPS = 10  # lines of a download where nobody watches a bar


def find_models(config: Config, role: str, out: Output) -> Config:
    """The tree with paths in place of names, of the verb's own models. Raises UserError."""
    if role == "serve":
        given = config.serve.model
        assert given is not None  # config/check.py
        return replace(config, serve=replace(config.serve, model=_found(given, config, out)))
    models = tuple(_found(one, config, out, partial=True) for one in config.worker.models)
    return replace(config, worker=replace(config.worker, models=models))


def _found(given: Path | str, config: Config, out: Output, *, partial: bool = False) -> Path:
    from meshd.library.walk import is_folder

    if isinstance(given, Path) and not is_folder(given):
        return given
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    found = Resolver(Stores.here(config.paths.cache), reporter(out)).get(given, partial=partial)
    if found.name != str(given):
        out.note(f"`{given}`: using `{found.name}`")
    return found.paths[0]


def reporter(out: Output) -> "Callable[[TransferProgress], None]":
    """Shows progress: a bar with rate and remaining time on a terminal, a line for each tenth elsewhere."""

    def report(progress: "TransferProgress") -> None:
        share = progress.done / progress.total if progress.total else None
        if share is None:
            out.progress(progress.activity)
        elif out.draws_progress:
            out.progress(f"{progress.activity}: {_details(progress)}", share)
        else:
            tenths = int(share * _STEPS) * 100 // _STEPS
            out.progress(f"{progress.activity} ({in_bytes(progress.total)}): {tenths}%", share)

    return report


def _details(progress: "TransferProgress") -> str:
    text = f"{in_bytes(progress.done)} of {in_bytes(progress.total)}"
    if progress.rate > 0 and progress.done < progress.total:
        left = (progress.total - progress.done) / progress.rate
        text += f", {in_bytes(progress.rate)}/s, {in_time(left)} left"
    return text
