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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.api import FilesInUseRequest
from meshd.admin.client import Client, NotRunning
from meshd.admin.request import to_json
from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.cli.find_models import as_given, begin_pull, check_no_file, pull_from_members, reporter
from meshd.cli.list_models import ListedModel, list_fits, list_models, meant_views, members_models
from meshd.cli.options import Arguments, Parser, add_config_file, load_role, rate
from meshd.cli.output import Json, Output
from meshd.config.tree import Config
from meshd.model.model_name import MESH, is_digits

if TYPE_CHECKING:  # they cost time to import, and `--help` needs none of them
    from meshd.admin.api import MemberModelsReply, MemberModelView, PullReply
    from meshd.library.facts import ModelFacts
    from meshd.library.interface import StoredModel
    from meshd.library.remove import Removal
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

_ACTIONS = {
    "pull": "Copy a model from other machines in the mesh, or download it, unless it is on this machine.",
    "show": "Show what a model's files say about it.",
    "verify": "Read the whole model, and compare it with the published hash.",
    "rm": "Remove a model that was downloaded; those of other programs stay.",
}
_GET_AGAIN = "the download or copy is not complete: download the file again"
_NO_HASH = "there is no hash to compare it with: only Hugging Face and Ollama publish them"


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
                help="limit for copying from other machines, per second, such as 20MB or 100Mbit",
            )
            action_parser.add_argument(
                "--background", action="store_true", help="leave it to the daemon, and return at once"
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
    from meshd.library.adopt import keep_pulled
    from meshd.library.interface import NotHere

    most = 0 if args.rate is None else rate("--rate", args.rate)
    # Look on this machine.
    try:
        model = resolver.local(given)
        there = model.complete
    except UserError as error:
        if isinstance(error, NotHere):
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


def _begun(begun: "PullReply", args: Arguments, out: Output) -> int:
    """Report a pull in the background."""
    if args.json:
        sizes: dict[str, Json] = {"done_bytes": begun.done_bytes, "bytes": begun.total_bytes}
        out.json({"name": begun.name, "step": begun.step, **sizes})
    else:
        out.note(
            f"taking `{begun.name}` from members in the background; `meshd model ls` shows how far it is, "
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


def _nodes_with(model: "StoredModel", config: Config, reply: "MemberModelsReply | None") -> list[str]:
    """Return the nodes that have a model of this machine, this one first."""
    own = ListedModel(model, _facts(model, config))
    own.views += [view for view in (reply.models if reply is not None else ()) if own.is_also(view)]
    return [config.node.name, *own.nodes]


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
    from meshd.library.pulled_models import ONLY_HEADER

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
            out.line(f"{label:<14} {value}")


def _show_members(views: Sequence["MemberModelView"], args: Arguments, out: Output, *, by_name: bool) -> int:
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
    from meshd.library.verify import verify

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
        out.line(f"of `{model.name}`, the header and the tensors outside the layers are here; they are right")
        out.line(f"fingerprint {done.fingerprint}")
        return 0
    against = "its bytes have the published hash" if done.compared else _NO_HASH
    out.line(f"`{model.name}` is complete; {against}")
    out.line(f"fingerprint {done.fingerprint}")
    return 0


def _remove(
    given: Path | str, resolver: "Resolver", stores: "Stores", config: Config, args: Arguments, out: Output
) -> int:
    from meshd.library.remove import plan_removal, remove

    removal = plan_removal(given, resolver, stores)
    check_unused(removal, config.paths.home)
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
        out.line(f"removed {named}: {in_bytes(removal.size)} are free again")
    return 0


def check_unused(removal: "Removal", home: Path) -> None:
    """Raise UserError where the daemon of `home` uses one of the files, or does not answer."""
    try:
        with Client(home) as client:
            reply = client.ask(FilesInUseRequest())
    except NotRunning:
        return
    used = {Path(path).resolve() for path in reply.paths}
    if any(path.resolve() in used for path in removal.files):
        names = ", ".join(f"`{name}`" for name in removal.names)
        raise UserError(
            f"{names} was not removed: the node that runs here uses it",
            hint="stop the node (`meshd stop`), or restart it with another model, and try again",
        )
