"""Give chosen nodes access to a TCP service of this machine or its network.

  meshd expose NAME HOST:PORT --to PEER ...   expose it to these nodes, and no longer to others;
                                              without --to, the nodes stay the same
  meshd expose ls                             list what is exposed, and to whom
  meshd expose rm NAME                        stop exposing it, and close its connections

Only the nodes you name can connect. On the other node, run `meshd tunnel open THIS_NODE NAME`.
"""

import argparse

from meshd.admin.api import (
    ExposedView,
    ExposeListRequest,
    ExposeRemoveRequest,
    ExposeRequest,
)
from meshd.admin.client import ask
from meshd.admin.codec import to_json
from meshd.base.errors import UsageError
from meshd.base.hosts import is_loopback
from meshd.base.units import in_bytes
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here

USE = "`meshd expose NAME HOST:PORT --to PEER`, `meshd expose ls` or `meshd expose rm NAME`"
_USAGE = """\
meshd expose NAME HOST:PORT [--to PEER ...] [--json]
       meshd expose ls [--json]
       meshd expose rm NAME"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add NAME HOST:PORT, or ls, or rm NAME; --to, --json."""
    parser.usage = _USAGE
    parser.add_argument("words", metavar="NAME HOST:PORT | ls | rm NAME", nargs="+", help="as above")
    parser.add_argument(
        "--to",
        metavar="PEER",
        action="extend",
        nargs="+",
        default=[],
        help="node that can connect: name, id, or unique beginning of an id; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon and print."""
    words: list[str] = args.words
    if words[0] in ("ls", "rm") and args.to:
        raise UsageError(f"`meshd expose {words[0]}` takes no `--to`", hint=USE)
    if words == ["ls"]:
        found = ask(home_here(), ExposeListRequest()).exposed
        if args.json:
            out.json({"exposed": to_json(found)})
        else:
            _print(found, out)
        return 0
    if len(words) != 2 or words[0] == "ls":
        raise UsageError("expected a name and an address", hint=f"use {USE}")
    if words[0] == "rm":
        ask(home_here(), ExposeRemoveRequest(name=words[1]))
        out.line(f"`{words[1]}` is no longer exposed")
        return 0
    view = ask(home_here(), ExposeRequest(name=words[0], target=words[1], to=tuple(args.to)))
    if args.json:
        out.json({"exposed": to_json(view)})
    else:
        out.line(f"{view.name}  {view.target}  to {_names(view)}")
    if not view.to:
        out.note(f"no node can connect to `{view.name}` yet: name one with `--to PEER`")
    if not is_loopback(view.target.rpartition(":")[0].strip("[]")):
        out.note(f"`{view.target}` is not a loopback address: those nodes reach it through this one")
    return 0


def _print(found: tuple[ExposedView, ...], out: Output) -> None:
    if not found:
        out.note("this node exposes nothing")
        return
    out.table(
        ("NAME", "SERVICE", "TO", "OPEN", "SENT", "RECEIVED"),
        [
            (
                view.name,
                view.target,
                _names(view),
                str(view.streams),
                in_bytes(view.sent_bytes),
                in_bytes(view.received_bytes),
            )
            for view in found
        ],
    )


def _names(view: ExposedView) -> str:
    pairs = zip(view.to_names, view.to, strict=True)
    shown = (f"{name} ({peer[:10]})" if name else peer[:10] for name, peer in pairs)
    return ", ".join(shown) or "nobody"
