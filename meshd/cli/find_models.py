"""Find the models that a role was given by name on this machine; what is missing is left to the daemon."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.errors import UserError
from meshd.base.units import in_bytes, in_time
from meshd.cli.output import Output
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config
from meshd.identity.folder import MEMBERSHIP
from meshd.model.model_name import MESH, check_no_file

if TYPE_CHECKING:
    from meshd.library.interface import TransferProgress
    from meshd.library.resolve import Resolver

_STEPS = 10  # lines of a download where nobody watches a bar


def find_served_model(config: Config, out: Output) -> Config:
    """Return the tree of a node that serves, with the paths of models that are here.

    The names of those that are not stay: the daemon fetches them (daemon/fetching.py), and this says so.
    Raises UserError, also for a name that nobody can know.
    """

    def found(serve: ServeConfig) -> ServeConfig:
        draft = None if serve.draft_model is None else _here(serve.draft_model, config, out, head=True)
        smaller = tuple(_here(fallback, config, out, head=True) for fallback in serve.fallback_models)
        serve = replace(serve, draft_model=draft, fallback_models=smaller)
        if serve.header_only:
            return _with_header(serve, config, out)
        assert serve.model is not None  # roles.py
        return replace(serve, model=_here(serve.model, config, out, head=True))

    if not config.models:
        return replace(config, serve=found(config.serve))
    return replace(config, models=tuple(replace(model, serve=found(model.serve)) for model in config.models))


def _with_header(serve: ServeConfig, config: Config, out: Output) -> ServeConfig:
    """Return it with the path of the header, or of the whole model, if either is here. Raises UserError."""
    from meshd.library.interface import NotHere
    from meshd.library.pulled_models import said_of

    given = str(serve.model)
    try:
        stored = _resolver(config, out).local(given)
    except NotHere as error:
        check_no_file(given, error)
        _say_asked(given, config, out, head=True)
        return serve
    path = stored.paths[0]
    if stored.complete:
        out.note(f"all of `{given}` is on this machine, and is used")
        return replace(serve, model=path, header_only=False)
    out.note(said_of(path))
    return replace(serve, model=path, devices=("none",))


def find_worker_models(config: Config, out: Output) -> Config:
    """Return the tree of a worker, as find_served_model does. Parts of its models may be missing."""
    models = tuple(_here(model, config, out, head=False) for model in config.worker.models)
    return replace(config, worker=replace(config.worker, models=models))


def find_model(text: str, config: Config, out: Output) -> Path:
    """Return the file of an argument that is a path or a name. Raises UserError."""
    with out.reminding():
        return _resolver(config, out).get(as_given(text)).paths[0]


def _resolver(config: Config, out: Output) -> "Resolver":
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    return Resolver(Stores.here(config.paths.cache), reporter(out))


def as_given(text: str) -> Path | str:
    """As `--model` reads it: a word that is a file here is that file."""
    from meshd.library.disk import is_file

    return Path(text).absolute() if is_file(Path(text)) else text


def _here(given: Path | str, config: Config, out: Output, *, head: bool) -> Path | str:
    """Return the path of a model that is here, else its name: the daemon fetches it. Raises UserError."""
    from meshd.library.disk import is_folder

    if isinstance(given, Path) and not is_folder(given):
        return given
    from meshd.library.interface import ONLY_HEADER, NotDownloaded, NotHere

    resolver = _resolver(config, out)
    if isinstance(given, Path):
        found = resolver.get(given, partial=not head)
    else:
        try:
            found = resolver.local(given)
        except NotHere as error:
            check_no_file(given, error)
            if not isinstance(error, NotDownloaded) and not given.startswith(MESH) and not _has_mesh(config):
                raise  # nobody else can know that name
            _say_asked(given, config, out, head=head, near=error.near)
            return given
        if not found.complete and (head or not found.paths or found.problem == ONLY_HEADER):
            _say_asked(given, config, out, head=head)
            return given
    if found.name != str(given):
        out.note(f"`{given}`: using `{found.name}`")
    return found.paths[0]


def _say_asked(given: str, config: Config, out: Output, *, head: bool, near: str = "") -> None:
    """Say at once that this machine lacks the model, and who is asked for it, for how long.

    Raises UserError for a model of members on a node without any, and where llama.cpp is not built.
    """
    from meshd.daemon.fetching import FOUND_SECONDS, OR_ELSEWHERE_SECONDS
    from meshd.daemon.native import find_native
    from meshd.model.short_names import hub_name_of, short_model

    find_native(config.paths, head=head)
    size = f" (~{in_bytes(known.bytes)})" if (known := short_model(given)) is not None else ""
    missing = f"`{given}`{size} is not on this machine" + (f" ({near})" if near else "")
    if given.startswith(MESH):
        if not _has_mesh(config):
            raise UserError(
                f"`{given}` comes from members, and this node is in no mesh yet",
                hint="join one with `--join INVITE`, or give the model's path, or another name of it",
            )
        out.note(f"{missing}: asking the members of the mesh, for {FOUND_SECONDS:.0f} s at most")
        return
    place = "Hugging Face" if hub_name_of(given) is not None else ""
    if not _has_mesh(config):
        out.note(f"{missing}: downloading it" + (f" from {place}" if place else ""))
        return
    then = f", then {place}" if place else ""
    out.note(f"{missing}: asking the members of the mesh, for {OR_ELSEWHERE_SECONDS:.0f} s at most{then}")


def _has_mesh(config: Config) -> bool:
    """Say whether this node is in a mesh, or is about to join one. Raises UserError for a damaged home."""
    if config.node.join:
        return True
    if not (config.paths.home / MEMBERSHIP).exists():
        return False
    from meshd.identity.keystore import Home

    return Home(config.paths.home).load_membership() is not None


def reporter(out: Output) -> "Callable[[TransferProgress], None]":
    """Return a function that shows progress: a bar with rate and remaining time on a terminal, else a line
    for each tenth.
    """

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
