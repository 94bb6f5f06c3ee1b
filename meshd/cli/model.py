"""List, download, check and remove the models on this machine.

NAME is what `--model` takes: hf:ORG/REPO:QUANT (Hugging Face), ollama:NAME, a short name (glm, qwen3,
smollm2), a file's name, or a path. `ls` shows every model of every store: Hugging Face's cache, Ollama, LM
Studio, ~/.models and meshd's cache. Downloads go to Hugging Face's cache.

examples:
  meshd model ls
  meshd model pull hf:unsloth/Qwen3-4B-GGUF:Q4_K_M
  meshd model verify glm
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.byte_format import in_bytes
from meshd.base.errors import UserError
from meshd.cli.find_models import as_given, reporter
from meshd.cli.options import Arguments, Parser, add_config_file, load_role
from meshd.cli.output import Json, Output
from meshd.config import Config

if TYPE_CHECKING:  # they cost time to import, and `--help` needs none of them
    from meshd.library.facts import ModelFacts
    from meshd.library.interface import StoredModel
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

_ACTIONS = {
    "pull": "Download a model, unless it is on this machine.",
    "show": "Show what a model's files say about it.",
    "verify": "Read all bytes of a model, and compare them with the hash that its store promises.",
    "rm": "Remove a model that was downloaded; those of other programs stay.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ls`, and the four with a NAME."""
    below = parser.add_subparsers(
        dest="action", metavar="ls | pull | show | verify | rm", required=True, parser_class=Parser
    )
    listing = below.add_parser("ls", description="List the models of all stores on this machine.")
    _add_common(listing)
    for action, text in _ACTIONS.items():
        one = below.add_parser(action, description=text)
        one.add_argument("name", metavar="NAME", help="the model: a name that --model takes, or a path")
        if action == "rm":
            one.add_argument("--yes", action="store_true", help="remove it without asking")
        _add_common(one)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Without a daemon."""
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores

    config = load_role(args, "worker").config  # its MESHD_MODEL may be a list
    stores = Stores.here(config.paths.cache)
    if args.action == "ls":
        return _list(config, stores, out, as_json=args.json)
    given = as_given(args.name)
    resolver = Resolver(stores, reporter(out))
    if args.action == "rm":
        return _remove(given, resolver, stores, args, out)
    if args.action == "pull":
        return _pull(given, resolver, config, args, out)
    model = resolver.local(given)
    if args.action == "verify":
        return _verify(model, config, args, out)
    return _show(model, config, args, out)


def _list(config: Config, stores: "Stores", out: Output, *, as_json: bool) -> int:
    from meshd.library.facts import facts_of

    unreadable: list[Path] = []
    models = stores.listed(unreadable.append)
    hashes = config.paths.cache / "weights"
    rows = []
    for number, model in enumerate(models):
        if out.draws_progress:
            out.progress(f"reading {number + 1} of {len(models)} models", number / len(models))
        rows.append((model, facts_of(model, hashes)))
    for place in unreadable:
        out.note(f"not allowed to read `{place}`")
    if as_json:
        out.json([to_json(model, facts, config) for model, facts in rows])
    elif rows:
        out.table(
            ("NAME", "SIZE", "QUANT", "ARCHITECTURE", "SOURCE", "STATE"),
            [
                (m.name, in_bytes(m.size), f.quant or m.quant, f.architecture, m.source, _state(m, f))
                for m, f in rows
            ],
        )
    else:
        out.note("no models on this machine; download one: `meshd model pull hf:ORG/REPO:QUANT`")
    return 0


def _state(model: "StoredModel", facts: "ModelFacts") -> str:
    if problem := facts.problem or model.problem:
        return problem
    return "ok" if facts.supported else "unknown architecture"


def to_json(model: "StoredModel", facts: "ModelFacts", config: Config) -> Json:
    """As docs/cli.md has it: `nodes` are those that have the model, for now this one."""
    complete = model.complete and not facts.problem
    path = str(model.paths[0]) if model.paths else None
    return {
        "name": model.name,
        "bytes": model.size,
        "fingerprint": facts.fingerprint,
        "source": str(model.source),
        "quant": facts.quant or model.quant or None,
        "architecture": facts.architecture or None,
        "problem": facts.problem or model.problem or None,
        "nodes": [{"node": config.node.name, "path": path, "complete": complete}],
    }


def _pull(given: Path | str, resolver: "Resolver", config: Config, args: Arguments, out: Output) -> int:
    try:
        model = resolver.local(given)
        there = model.complete
    except UserError:
        there = False
    if not there:
        model = resolver.get(given)
    if args.json:
        out.json(_details(model, config))
    else:
        if there:
            out.note(f"`{model.name}` is on this machine")
        out.line(str(model.paths[0]))
    return 0


def _details(model: "StoredModel", config: Config) -> dict[str, Json]:
    from meshd.library.facts import facts_of

    facts = facts_of(model, config.paths.cache / "weights")
    return {
        "schema": 1,
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


def _show(model: "StoredModel", config: Config, args: Arguments, out: Output) -> int:
    details = _details(model, config)
    if args.json:
        out.json(details)
        return 0
    supported = "" if details["supported"] else " (the pinned llama.cpp does not know it)"
    lines = {
        "name": model.name,
        "title": details["title"],
        "source": details["source"],
        "path": ", ".join(map(str, model.paths)),
        "size": f"{in_bytes(model.size)} ({model.size} bytes)",
        "architecture": f"{details['architecture'] or 'unknown'}{supported}",
        "quant": details["quant"],
        "parameters": details["parameters"],
        "layers": details["layers"],
        "context": details["context"],
        "tensors": details["tensors"],
        "shards": details["shards"],
        "chat template": "yes" if details["chat_template"] else "no",
        "fingerprint": details["fingerprint"] or "not known yet: run `meshd model verify`, or serve it once",
        "problem": details["problem"],
    }
    for label, value in lines.items():
        if value is not None:
            out.line(f"{label:<14} {value}")
    return 0


def _verify(model: "StoredModel", config: Config, args: Arguments, out: Output) -> int:
    from meshd.library.verify import verify

    done = verify(model, config.paths.cache / "weights", reporter(out))
    if args.json:
        out.json(
            {
                "schema": 1,
                "name": model.name,
                "bytes": model.size,
                "fingerprint": done.fingerprint,
                "files": done.files,
                "files_with_hash": done.compared,
            }
        )
        return 0
    against = "the hash that its store promises" if done.compared else "no hash: its store promises none"
    out.line(f"`{model.name}` is complete; compared with {against}")
    out.line(f"fingerprint {done.fingerprint}")
    return 0


def _remove(given: Path | str, resolver: "Resolver", stores: "Stores", args: Arguments, out: Output) -> int:
    from meshd.library.remove import plan_removal, remove

    removal = plan_removal(given, resolver, stores)
    named = ", ".join(f"`{name}`" for name in removal.names)
    if not args.yes:
        if not out.asks:
            raise UserError(
                f"{named} ({in_bytes(removal.size)}) was not removed: nobody could be asked",
                hint="add `--yes` to remove it without asking",
            )
        if not out.confirm(f"Remove {named} ({in_bytes(removal.size)})?"):
            out.note("nothing was removed")
            return 0
    remove(removal)
    if args.json:
        out.json({"schema": 1, "removed": list(removal.names), "bytes": removal.size})
    else:
        out.line(f"removed {named}: {in_bytes(removal.size)} are free again")
    return 0
