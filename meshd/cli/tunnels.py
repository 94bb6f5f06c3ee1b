"""The verbs about TCP services of users: expose one here, and use another node's by a tunnel."""

import argparse
from collections.abc import Sequence

from meshd.admin.api import (
    ExposedView,
    ExposeListRequest,
    ExposeRemoveRequest,
    ExposeRequest,
    TunnelCloseRequest,
    TunnelListRequest,
    TunnelOpenRequest,
)
from meshd.admin.client import ask
from meshd.admin.request import to_json
from meshd.admin.status import TunnelView
from meshd.base.errors import UsageError
from meshd.base.hosts import is_loopback
from meshd.base.units import in_bytes
from meshd.cli.options import Arguments, Parser
from meshd.cli.output import Output
from meshd.config.tree import home_here

USE = "`meshd expose NAME HOST:PORT --to PEER`, `meshd expose ls` or `meshd expose rm NAME`"
_USAGE = """\
meshd expose NAME HOST:PORT [--to PEER ...] [--json]
       meshd expose ls [--json]
       meshd expose rm NAME"""


class Expose:
    """Give chosen nodes access to a TCP service of this machine or its network.

      meshd expose NAME HOST:PORT --to PEER ...   expose it to these nodes, and no longer to others;
                                                  without --to, the nodes stay the same
      meshd expose ls                             list what is exposed, and to whom
      meshd expose rm NAME                        stop exposing it, and close its connections

    Only the nodes you name can connect. On the other node, run `meshd tunnel open THIS_NODE NAME`.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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

    def run(self, args: Arguments, out: Output) -> int:
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


class Tunnel:
    """Use a service that another node exposes, at a local address.

      meshd tunnel open PEER SERVICE [--listen HOST:PORT]   open a tunnel, and print its local address
      meshd tunnel ls                                       list the open tunnels
      meshd tunnel close HOST:PORT | PEER SERVICE           close a tunnel and its connections

    Tunnels persist across restarts. A tunnel listens on loopback, for programs of this user only. With
    `--listen` and another address, anyone who can reach that address can use it.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add open, ls, close."""
        below = parser.add_subparsers(
            dest="action", metavar="open | ls | close", parser_class=Parser, required=True
        )
        opening = below.add_parser(
            "open", description="Open a tunnel to a peer's service, and print its local address."
        )
        opening.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")
        opening.add_argument("service", metavar="SERVICE", help="name under which that node exposes it")
        opening.add_argument(
            "--listen",
            metavar="HOST:PORT",
            default="",
            help="local address (default: a free port of 127.0.0.1)",
        )
        opening.add_argument("--json", action="store_true", help="print JSON, for scripts")
        listing = below.add_parser("ls", description="List the open tunnels.")
        listing.add_argument("--json", action="store_true", help="print JSON, for scripts")
        closing = below.add_parser("close", description="Close tunnels and their connections.")
        closing.add_argument(
            "what",
            metavar="HOST:PORT | PORT | PEER SERVICE",
            nargs="+",
            help="tunnel, as `meshd tunnel ls` shows it",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon and print."""
        if args.action == "open":
            return _open(args, out)
        if args.action == "close":
            return _close(args.what, out)
        found = ask(home_here(), TunnelListRequest()).tunnels
        if args.json:
            out.json({"tunnels": to_json(found)})
        elif not found:
            out.note("no open tunnels")
        else:
            out.table(
                ("LISTEN", "PEER", "SERVICE", "OPEN", "SENT", "RECEIVED", "NOTE"),
                [_row(tunnel, found) for tunnel in found],
            )
        return 0


def _open(args: Arguments, out: Output) -> int:
    request = TunnelOpenRequest(peer=args.peer, service=args.service, listen=args.listen)
    view = ask(home_here(), request)
    if args.json:
        out.json({"tunnel": to_json(view)})
    else:
        out.line(view.listen)
    if not is_loopback(view.listen.rpartition(":")[0].strip("[]")):
        out.note(f"anyone who can reach `{view.listen}` can use `{view.service}`")
    return 0


def _close(what: list[str], out: Output) -> int:
    if len(what) > 2:
        raise UsageError(
            "too many arguments",
            hint="use `meshd tunnel close HOST:PORT` or `meshd tunnel close PEER SERVICE`",
        )
    request = (
        TunnelCloseRequest(listen=what[0])
        if len(what) == 1
        else TunnelCloseRequest(peer=what[0], service=what[1])
    )
    for view in ask(home_here(), request).tunnels:
        out.text(f"closed {view.listen} to `{view.service}` of {view.peer_name or view.peer[:10]}")
    return 0


def _row(view: TunnelView, views: Sequence[TunnelView]) -> tuple[str, ...]:
    called = {tunnel.peer: tunnel.peer_name or tunnel.peer[:10] for tunnel in views}
    unique = list(called.values()).count(called[view.peer]) == 1
    return (
        view.listen,
        called[view.peer] if unique else f"{called[view.peer]} ({view.peer[:10]})",
        view.service,
        str(view.streams),
        in_bytes(view.sent_bytes),
        in_bytes(view.received_bytes),
        view.last_error,
    )
