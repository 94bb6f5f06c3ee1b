"""List, download, check and remove models.

NAME is what `--model` takes: hf:ORG/REPO:QUANT (Hugging Face), ollama:NAME, a short name (`ls --fits`
lists them), a file's name, or a path. `ls` lists the models in Hugging Face's cache, Ollama, LM Studio,
~/.models and meshd's cache, and while a node runs here, those of other machines in the mesh. `pull` copies a
model from machines in the mesh that have it; if none has it, it downloads it into Hugging Face's cache.
`mesh:NAME` and `mesh:FINGERPRINT` are models of other machines.

examples:
  meshd model ls
  meshd model ls --fits
  meshd model pull qwen3-4b
  meshd model pull hf:unsloth/Qwen3-4B-GGUF:Q4_K_M
  meshd model pull mesh:Qwen3-4B-Q4_K_M --rate 20MB
  meshd model verify glm
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.api import (
    FilesInUseRequest,
    MemberModelsReply,
    MemberModelsRequest,
    MemberModelView,
    PullReply,
)
from meshd.admin.client import Client, NotRunning
from meshd.admin.listed_models import ListedModel, add_members, bytes_of, listed_json, models_here, name_of
from meshd.admin.plan_api import FitsReply, FitsRequest, ShortModelFit
from meshd.admin.request import to_json
from meshd.admin.status import StoredFile
from meshd.base.errors import MeshdError, UserError
from meshd.base.units import in_bytes
from meshd.cli.find_models import as_given, reporter
from meshd.cli.options import Arguments, Parser, add_config_file, load_role, rate
from meshd.cli.output import Json, Output
from meshd.cli.pull_model import begin_pull, pull_from_members
from meshd.config.tree import Config
from meshd.model.gguf_names import GGUF_SUFFIX
from meshd.model.model_name import MESH, check_no_file, is_digits

if TYPE_CHECKING:
    from meshd.library.facts import ModelFacts
    from meshd.library.interface import StoredModel
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores
    from meshd.model.short_names import ShortModel

MEMBERS_SECONDS = 40.0  # members have 15 s, and those without a session 10 s more
_NOWHERE = "not on this machine"
_ACTIONS = {
    "pull": "Copy a model from other machines in the mesh, or download it, unless it is here already.",
    "show": "Show what a model's files say about it.",
    "verify": "Read the whole model, and compare it with the published hash.",
    "rm": "Remove a model that was downloaded; those of other programs stay.",
}
_GET_AGAIN = "the download or copy is not complete: download the file again"
_NO_HASH = "there is no hash to compare it with: only Hugging Face and Ollama publish them"


def meant_views(text: str, views: Sequence[MemberModelView]) -> list[MemberModelView]:
    """Return the views that a name or ten or more digits of a fingerprint mean."""
    low = text.lower().removeprefix(MESH).removesuffix(GGUF_SUFFIX)
    if is_digits(low):
        return [
            view
            for view in views
            if any((of or "").startswith(low) for of in (view.fingerprint, view.content))
        ]
    return [view for view in views if low in {name.lower() for name in view.names}]


def members_models(home: Path, out: Output) -> MemberModelsReply | None:
    """Return what members have; None without a daemon that could ask them."""
    try:
        with Client(home) as client:
            return client.ask(MemberModelsRequest(), seconds=MEMBERS_SECONDS)
    except NotRunning:
        return None
    except MeshdError as error:
        out.note(f"members of the mesh are not listed: {error.what}")
        return None


def list_models(config: Config, stores: "Stores", out: Output, *, as_json: bool) -> int:
    """List all of them, on the terminal or as JSON."""
    listed = _local(config, stores, out)
    reply = members_models(config.paths.home, out)
    if reply is not None:
        add_members(listed, reply)
        for left in reply.left_out:
            out.note(f"{left.node} did not say which models it has: {left.why}")
    if as_json:
        out.json_list([listed_json(model, config.node.name, listed) for model in listed])
    elif listed:
        _show_list(listed, config, out, members=reply is not None)
    else:
        out.note("no models on this machine; download one: `meshd model pull hf:ORG/REPO:QUANT`")
    return 0


def _local(config: Config, stores: "Stores", out: Output) -> list[ListedModel]:
    unreadable: list[Path] = []

    def progress(read: int, of: int) -> None:
        if out.draws_progress:
            out.progress(f"reading {read + 1} of {of} models", read / of)

    used, hashes = _in_use(config.paths.home), config.paths.cache / "weights"
    rows = models_here(stores, hashes, used, unreadable=unreadable.append, progress=progress)
    for place in unreadable:
        out.note(f"not allowed to read `{place}`")
    return rows


def _in_use(home: Path) -> Sequence[str]:
    """Return the files that the daemon of `home` uses."""
    try:
        with Client(home) as client:
            return client.ask(FilesInUseRequest()).paths
    except MeshdError:  # why it does not answer is told where members are asked
        return ()


def _show_list(listed: Sequence[ListedModel], config: Config, out: Output, *, members: bool) -> None:
    headers = ["NAME", "SIZE", "QUANT", "ARCHITECTURE", "SOURCE", "STATE"]
    rows = []
    for model in listed:
        if model.stored is not None and model.facts is not None:
            m, f = model.stored, model.facts
            quant = f.quant or m.quant
            row = [m.name, in_bytes(m.size), quant, f.architecture, str(m.source), _state(m, f)]
        else:
            quant, architecture = next(((v.quant or "", v.architecture or "") for v in model.views), ("", ""))
            state = _NOWHERE if model.pull is None else _pull_state(model.pull)
            row = [name_of(model, listed), in_bytes(bytes_of(model)), quant, architecture, "mesh", state]
        nodes = [config.node.name] if model.stored is not None else []
        rows.append([*row, ", ".join([*nodes, *model.nodes_as_text])] if members else row)
    below = "NODES" if members else ""
    out.table([*headers, below] if members else headers, rows, drop=("ARCHITECTURE", "QUANT"), below=below)


def _pull_state(pull: PullReply) -> str:
    share = f" {pull.done_bytes / pull.total_bytes:.0%}" if pull.total_bytes else ""
    rate = f", {in_bytes(pull.rate)}/s" if pull.step == "fetching" and pull.rate else ""
    return f"pull: {pull.step}{share}{rate}" + (f": {pull.error}" if pull.error else "")


def _state(model: "StoredModel", facts: "ModelFacts") -> str:
    if problem := facts.problem or model.problem:
        return problem
    return "ok" if facts.supported else "unknown architecture"


_FITS = {"gpu": "yes", "partly_cpu": "slow: partly on a CPU", "cpu": "slow: on a CPU", "no": "no"}


_ESTIMATES = (
    "sizes marked ~ and all fits are estimates, for one request of 8192 tokens; `meshd plan --model NAME` "
    "reads the model's header"
)


_ALONE = (
    "no node runs here, so other machines are not counted: start one with `meshd worker` or `meshd serve`"
)


def list_fits(config: Config, resolver: "Resolver", out: Output, *, as_json: bool) -> int:
    """List the models with short names: their size, and whether they fit. Downloads nothing."""
    from meshd.model.short_names import SHORT_MODELS

    sizes = {model.name: size for model in SHORT_MODELS if (size := _size_here(model.name, resolver))}
    known = (StoredFile(name=name, bytes=size, fingerprint=None) for name, size in sizes.items())
    reply, is_alone = _fits_of(config, FitsRequest(known=tuple(known)), out)
    models = {model.name: model for model in SHORT_MODELS}
    # A daemon of another version may list other models.
    rows = [(models[fit.name], fit) for fit in reply.models if fit.name in models]
    if as_json:
        out.json_list([_fit_json(model, fit, sizes, is_alone=is_alone) for model, fit in rows])
        return 0
    out.table(
        ("NAME", "SIZE", "HERE", "IN THE MESH", "MODEL"),
        [
            (
                model.name,
                in_bytes(sizes[model.name]) if model.name in sizes else f"~{in_bytes(model.bytes)}",
                _FITS.get(fit.here, fit.here),
                "not known" if is_alone else _FITS.get(fit.mesh, fit.mesh),
                str(model.hub or "from the Python package index"),
            )
            for model, fit in rows
        ],
    )
    out.note(_ESTIMATES)
    if is_alone:
        out.note(_ALONE)
    for left in reply.left_out:
        out.note(f"{left.node} is not counted: {left.why}")
    return 0


def _size_here(name: str, resolver: "Resolver") -> int:
    """Return the real size of a model that is on this machine, else 0."""
    try:
        model = resolver.local(name)
    except MeshdError:
        return 0
    return model.size if model.complete else 0


def _fits_of(config: Config, request: FitsRequest, out: Output) -> tuple[FitsReply, bool]:
    """Return what the daemon says; without one, what is true of this machine alone. Raises MeshdError."""
    out.progress("looking at the devices")
    try:
        with Client(config.paths.home) as client:
            return client.ask(request, seconds=MEMBERS_SECONDS), False
    except NotRunning:
        from meshd.daemon.planning import fits_alone

        return asyncio.run(fits_alone(config, request)), True


def _fit_json(
    model: "ShortModel", fit: ShortModelFit, sizes: Mapping[str, int], *, is_alone: bool
) -> Mapping[str, Json]:
    """Return the fields of docs/json.md."""
    return {
        "name": model.name,
        "model": str(model.hub) if model.hub is not None else None,
        "bytes": sizes.get(model.name, model.bytes),
        "estimated": model.name not in sizes,
        "here": fit.here,
        "mesh": None if is_alone else fit.mesh,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `ls`, and the four actions with a NAME."""
    below = parser.add_subparsers(
        dest="action", metavar="ls | pull | show | verify | rm", required=True, parser_class=Parser
    )
    listing = below.add_parser("ls", description="List the models on this machine and in the mesh.")
    listing.add_argument(
        "--fits",
        action="store_true",
        help="list the short names instead: their size, and whether they fit on this machine and in the mesh "
        "(estimates; downloads nothing)",
    )
    _add_common(listing)
    for action, text in _ACTIONS.items():
        action_parser = below.add_parser(action, description=text)
        action_parser.add_argument(
            "name", metavar="NAME", help="the model: a name that --model takes, or a path"
        )
        if action == "pull":
            action_parser.add_argument(
                "--rate",
                metavar="RATE",
                help="limit for copying from other machines, per second, such as 20MB or 100Mbit; "
                "a download has none",
            )
            action_parser.add_argument(
                "--background",
                action="store_true",
                help="leave it to the running node, and return once it has begun",
            )
        if action == "rm":
            action_parser.add_argument("--yes", action="store_true", help="remove it without asking")
        _add_common(action_parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Run the action: what members have needs a running daemon, all else does not."""
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    config = load_role(args, "worker").config  # its MESHD_MODEL may be a list
    stores = Stores.here(config.paths.cache)
    resolver = Resolver(stores, reporter(out))
    if args.action == "ls":
        if args.fits:
            return list_fits(config, resolver, out, as_json=args.json)
        return list_models(config, stores, out, as_json=args.json)
    given = as_given(args.name)
    if args.action == "rm":
        return _remove(given, resolver, stores, config, args, out)
    if args.action == "pull":
        with out.reminding():
            return _pull(given, resolver, stores, config, args, out)
    if args.action == "show":
        return _show(given, resolver, stores, config, args, out)
    return _verify(resolver.local(given), config, args, out)


def _pull(
    given: Path | str, resolver: "Resolver", stores: "Stores", config: Config, args: Arguments, out: Output
) -> int:
    from meshd.library.interface import NotHere
    from meshd.library.pulled_models import keep_pulled

    most = 0 if args.rate is None else rate("--rate", args.rate)
    # Look on this machine.
    try:
        model = resolver.local(given)
        there = model.complete
    except UserError as error:
        if isinstance(error, NotHere) and isinstance(given, str):
            check_no_file(given, error)
        there = False
    pulled = None
    # Else take it from members, by the daemon.
    if not there and args.background:
        pulled = begin_pull(given, config.paths.home, most, out)
        if not pulled.was_here:
            return _begun(pulled, args, out)
    elif not there:
        pulled = pull_from_members(given, config.paths.home, most, out)
    # Put it where it belongs; if members had another one, download it.
    if pulled is not None:
        paths = [Path(path) for path in pulled.paths]
        kept = keep_pulled(str(given), paths, stores.hub, config.paths.cache, reporter(out), out.note)
        model = resolver.local(kept) if kept is not None else resolver.get(given)
        there = pulled.was_here
    elif not there:
        model = resolver.get(given)
    model = stores.named(model)
    # Report it.
    if args.json:
        holders = pulled.holders if pulled is not None else ()
        members: list[Json] = [{"node": holder.node, "bytes": holder.bytes} for holder in holders]
        before = pulled.before_bytes if pulled is not None else 0
        nodes = _nodes_with(model, config, members_models(config.paths.home, out))
        details = {**_details(model, _facts(model, config)), "nodes": nodes}
        out.json({**details, "resumed_bytes": before, "members": members})
    else:
        if there:
            out.note(f"`{model.name}` is on this machine")
        out.line(str(model.paths[0]))
    return 0


def _begun(begun: PullReply, args: Arguments, out: Output) -> int:
    """Report a pull in the background."""
    if args.json:
        sizes: dict[str, Json] = {"done_bytes": begun.done_bytes, "bytes": begun.total_bytes}
        out.json({"name": begun.name, "step": begun.step, **sizes})
    else:
        is_download = begun.source == "download"
        how = f"downloading `{begun.name}`" if is_download else f"taking `{begun.name}` from members"
        out.note(
            f"{how} in the background; `meshd model ls` shows how far it is, "
            "and the same command without --background watches it"
        )
    return 0


def _facts(model: "StoredModel", config: Config) -> "ModelFacts":
    from meshd.library.facts import facts_of

    return facts_of(model, config.paths.cache / "weights")


def _details(model: "StoredModel", facts: "ModelFacts") -> dict[str, Json]:
    return {
        "name": model.name,
        "title": facts.title or None,
        "source": str(model.source),
        "paths": [str(path) for path in model.paths],
        "bytes": model.size,
        "architecture": facts.architecture or None,
        "supported": facts.supported,
        "quant": facts.quant or model.quant or None,
        "parameters": facts.parameters,
        "layers": facts.layers,
        "context": facts.context,
        "tensors": facts.tensors,
        "shards": facts.shards,
        "chat_template": facts.has_chat_template,
        "fingerprint": facts.fingerprint,
        "problem": facts.problem or model.problem or None,
    }


def _nodes_with(model: "StoredModel", config: Config, reply: MemberModelsReply | None) -> list[str]:
    """Return the nodes that have a model of this machine, this one first."""
    own = ListedModel(model, _facts(model, config))
    own.views += [view for view in (reply.models if reply is not None else ()) if own.is_also(view)]
    return [config.node.name, *own.names]


def _show(
    given: Path | str, resolver: "Resolver", stores: "Stores", config: Config, args: Arguments, out: Output
) -> int:
    # Find it here; else show what members say of it.
    reply = members_models(config.paths.home, out)
    views = reply.models if reply is not None else ()
    try:
        model = stores.named(resolver.local(given))
    except UserError:
        meant = meant_views(str(given), views)
        if not meant:
            raise
        return _show_members(meant, args, out, by_name=not is_digits(str(given).removeprefix(MESH)))
    from meshd.library.interface import ONLY_HEADER

    # Collect the facts; a damaged file has fewer.
    facts, nodes = _facts(model, config), _nodes_with(model, config, reply)
    if not facts.shards:
        raise UserError(facts.problem or f"`{model.name}` has no file here", hint=facts.hint or _GET_AGAIN)
    is_cut = facts.problem not in ("", ONLY_HEADER)
    details = _details(model, facts)
    if args.json:
        out.json({**details, "nodes": nodes})
        return 1 if is_cut else 0
    supported = "" if facts.supported else " (the pinned llama.cpp does not know it)"
    unknown = None if is_cut else "not known yet: run `meshd model verify`, or serve it once"
    # Print one line for each fact that is known.
    lines: dict[str, Json] = {
        "problem": details["problem"] if is_cut else None,
        "name": model.name,
        "title": details["title"],
        "source": details["source"],
        "path": ", ".join(map(str, model.paths)),
        "size": f"{in_bytes(model.size)} ({model.size} bytes)",
        "architecture": f"{facts.architecture or 'unknown'}{supported}",
        "quant": details["quant"],
        "parameters": None if is_cut else _in_count(facts.parameters),
        "layers": facts.layers,
        "context": facts.context,
        "tensors": None if is_cut else facts.tensors,  # else those that are whole
        "shards": facts.shards if facts.shards > 1 else None,
        "chat template": "yes" if facts.has_chat_template else "no",
        "fingerprint": facts.fingerprint or unknown,
        "nodes": ", ".join(nodes) if reply is not None else None,
    }
    if not is_cut:
        lines["problem"] = details["problem"]
    _lines(lines, out)
    if is_cut:
        out.note(_GET_AGAIN)
    return 1 if is_cut else 0


def _in_count(parameters: int) -> str:
    """Return a count as models are called: `134.5 M`, `8.2 B`."""
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"


def _lines(lines: Mapping[str, Json], out: Output) -> None:
    for label, value in lines.items():
        if value is not None:
            out.field(label, str(value), width=15)


def _show_members(views: Sequence[MemberModelView], args: Arguments, out: Output, *, by_name: bool) -> int:
    """Show what members say of a model that is not here; by a name they may mean different ones."""
    if args.json:
        out.json({"members": [to_json(view) for view in views]})
        return 0
    for number, view in enumerate(views):
        if number:
            out.line()
        lines = {
            "name": view.name,
            "node": view.node,
            "size": f"{in_bytes(view.bytes)} ({view.bytes} bytes)",
            "architecture": view.architecture,
            "quant": view.quant,
            "shards": view.files if view.files > 1 else None,
            "fingerprint": view.fingerprint or "not known yet on that node",
        }
        _lines(lines, out)
    name = views[0].name if by_name else "FINGERPRINT"
    out.note(f"not on this machine: `meshd model pull {MESH}{name}` takes it from members")
    return 0


def _verify(model: "StoredModel", config: Config, args: Arguments, out: Output) -> int:
    from meshd.library.facts import verify

    done = verify(model, config.paths.cache / "weights", reporter(out))
    if args.json:
        out.json(
            {
                "name": model.name,
                "bytes": model.size,
                "fingerprint": done.fingerprint,
                "files": done.files,
                "files_with_hash": done.compared,
                "header_only": done.header_only,
            }
        )
        return 0
    if done.header_only:
        out.text(f"of `{model.name}`, the header and the tensors outside the layers are here; they are right")
        out.line(f"fingerprint {done.fingerprint}")
        return 0
    against = "its bytes have the published hash" if done.compared else _NO_HASH
    out.text(f"`{model.name}` is complete; {against}")
    out.line(f"fingerprint {done.fingerprint}")
    return 0


def _remove(
    given: Path | str, resolver: "Resolver", stores: "Stores", config: Config, args: Arguments, out: Output
) -> int:
    from meshd.library.remove import check_unused, plan_removal, remove

    removal = plan_removal(given, resolver, stores)
    check_unused(removal, _files_in_use(config.paths.home))
    named = ", ".join(f"`{name}`" for name in removal.names)
    if not args.yes:
        if not out.asks:
            raise UserError(
                f"{named} ({in_bytes(removal.size)}) was not removed: there is no terminal to ask on",
                hint="add `--yes` to remove it without asking",
            )
        if not out.confirm(f"Remove {named} ({in_bytes(removal.size)})?"):
            out.note("nothing was removed")
            return 0
    remove(removal)
    if args.json:
        out.json({"removed": list(removal.names), "bytes": removal.size})
    else:
        out.text(f"removed {named}: {in_bytes(removal.size)} are free again")
    return 0


def _files_in_use(home: Path) -> Sequence[str]:
    """Return the files that the daemon of `home` uses; none without one. Raises UserError if it is silent."""
    try:
        with Client(home) as client:
            return client.ask(FilesInUseRequest()).paths
    except NotRunning:
        return ()
