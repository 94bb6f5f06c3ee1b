"""Finds the models that a role was given by name, before its daemon starts: a download can take hours."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.models_api import PullRequest
from meshd.base.byte_format import in_bytes
from meshd.base.errors import MeshdError, UserError
from meshd.base.time_format import in_time
from meshd.cli.output import Output
from meshd.config import Config, ServeConfig
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.model_name import MESH, BareName, parse_model_name

if TYPE_CHECKING:
    from meshd.library.interface import StoredModel, TransferProgress
    from meshd.library.resolve import Resolver

_STEPS = 10  # lines of a download where nobody watches a bar


def find_served_model(config: Config, out: Output) -> Config:
    """The tree of a node that serves, with the paths of its models. Raises UserError."""

    def found(serve: ServeConfig) -> ServeConfig:
        draft = None if serve.draft_model is None else _found(serve.draft_model, config, out, head=True)
        smaller = tuple(_found(one, config, out, head=True) for one in serve.fallback_models)
        serve = replace(serve, draft_model=draft, fallback_models=smaller)
        if serve.header_only:
            return _with_header(serve, config, out)
        assert serve.model is not None  # config/check.py
        return replace(serve, model=_found(serve.model, config, out, head=True))

    if not config.models:
        return replace(config, serve=found(config.serve))
    return replace(config, models=tuple(replace(one, serve=found(one.serve)) for one in config.models))


def _with_header(serve: ServeConfig, config: Config, out: Output) -> ServeConfig:
    """With the header's path; or to serve the whole model, if that is here. Raises UserError."""
    from meshd.daemon.role_runtime import find_native
    from meshd.library.headers import said_of
    from meshd.library.interface import NotHere
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    given = str(serve.model)
    find_native(config.paths, head=True)
    try:
        stored = Resolver(Stores.here(config.paths.cache), reporter(out)).local(given)
    except NotHere as error:
        check_no_file(given, error)
        path = _pulled(PullRequest(name=given, header_only=True), config, out, head=True)[0]
        whole = not path.name.endswith(HEADER_SUFFIX)  # it was here under another name
    else:
        path, whole = stored.paths[0], stored.complete
    if whole:
        out.note(f"all of `{given}` is on this machine, and is used")
        return replace(serve, model=path, header_only=False)
    out.note(said_of(path))
    return replace(serve, model=path, devices=("none",))


def find_worker_models(config: Config, out: Output) -> Config:
    """The tree of a worker, with the paths of its models, of which parts may be missing. Raises UserError."""
    models = tuple(_found(one, config, out, head=False) for one in config.worker.models)
    return replace(config, worker=replace(config.worker, models=models))


def find_model(text: str, config: Config, out: Output) -> Path:
    """The file of an argument that is a path or a name. Raises UserError."""
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    found = Resolver(Stores.here(config.paths.cache), reporter(out)).get(as_given(text))
    return found.paths[0]


def local_model(text: str, config: Config, out: Output) -> Path:
    """As `find_model`, without a download: an error says how to start it. Raises UserError."""
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    return Resolver(Stores.here(config.paths.cache), reporter(out)).local(as_given(text)).paths[0]


def as_given(text: str) -> Path | str:
    """As `--model` reads it: a word that is a file here is that file."""
    from meshd.library.walk import is_file

    return Path(text).absolute() if is_file(Path(text)) else text


def check_no_file(given: Path | str, error: MeshdError) -> None:
    """A name that ends in `.gguf` means a file here, most likely mistyped: nobody else is asked, and a token
    keeps its place. Raises UserError."""
    if not isinstance(given, str) or not given.lower().endswith(GGUF_SUFFIX):
        return
    if isinstance(parse_model_name(given), BareName):
        mesh_name = f"{MESH}{given[: -len(GGUF_SUFFIX)]}"
        raise UserError(error.what, hint=f"check the path; for a model of members use `{mesh_name}`")


def _found(given: Path | str, config: Config, out: Output, *, head: bool) -> Path:
    from meshd.library.walk import is_folder

    if isinstance(given, Path) and not is_folder(given):
        return given
    from meshd.daemon.role_runtime import find_native
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    find_native(config.paths, head=head)  # what is not built is told before a download, not after it
    resolver = Resolver(Stores.here(config.paths.cache), reporter(out))
    if isinstance(given, str):
        found = _named(given, config, resolver, out, head=head)
    else:
        found = resolver.get(given, partial=not head)
    if found.name != str(given):
        out.note(f"`{given}`: using `{found.name}`")
    return found.paths[0]


def _named(given: str, config: Config, resolver: "Resolver", out: Output, *, head: bool) -> "StoredModel":
    """From this machine, else from members, else from Hugging Face. Raises UserError."""
    from meshd.library.headers import ONLY_HEADER
    from meshd.library.interface import NotHere
    from meshd.library.short_names import hub_name_of

    try:
        here = resolver.local(given)
        if here.complete or (not head and here.paths and here.problem != ONLY_HEADER):
            return here
    except NotHere as error:
        check_no_file(given, error)
    from meshd.daemon.model_first import has_members
    from meshd.library.members.pull_state import NobodyHasIt

    only_members = given.startswith(MESH)
    if not only_members and not has_members(config):
        return resolver.get(given, partial=not head)
    try:
        pulled = _from_members(given, config, out, head=head)
    except NobodyHasIt as nobody:
        if only_members:
            raise
        if hub_name_of(given) is not None:
            out.note(nobody.what)
        try:
            return resolver.get(given, partial=not head)
        except NotHere as error:
            raise UserError(f"{error.what}; {nobody.what}", hint=error.hint) from None
    return resolver.local(pulled) if pulled is not None else resolver.get(given)


def _from_members(given: str, config: Config, out: Output, *, head: bool) -> Path | None:
    """None when members had something else by a name of Hugging Face. Raises NobodyHasIt, MeshdError."""
    from meshd.cli.pull_model import keep_pulled

    paths = _pulled(PullRequest(name=given), config, out, head=head)
    return keep_pulled(given, paths, config.paths.cache, reporter(out), out)


def _pulled(request: PullRequest, config: Config, out: Output, *, head: bool) -> list[Path]:
    from meshd.cli.pull_model import PullProgress
    from meshd.daemon.model_first import pull_first

    return pull_first(config, request, "serve" if head else "worker", PullProgress(out).show)


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
