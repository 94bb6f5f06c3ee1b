"""Lift the bans of a node or an invite; without ID, list all bans.

A node returns with its old key and membership. To readmit the nodes that joined with a revoked
invite, give the invite's id; it stays revoked. Only the founder can lift a ban.
"""

import argparse
import time

from meshd.admin.api import BanListRequest, UnbanRequest
from meshd.admin.client import NotRunning, ask
from meshd.admin.codec import to_json
from meshd.base.time_format import in_time
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ID, --json."""
    parser.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="id of a banned node or invite, or its unique beginning; or the name of a node, as listed",
    )
    parser.add_argument("--json", action="store_true", help="list the bans as JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon if it runs, else use the files."""
    if args.id is None:
        return _list(args, out)
    home = home_here()
    try:
        reply = ask(home, UnbanRequest(id=args.id))
    except NotRunning:
        from meshd.cli.offline import authority

        with authority(home) as (_, books):
            reply = books.unban(args.id, now=int(time.time()))
    out.line(f"unbanned {reply.name} ({reply.id[:10]})" if reply.name else f"unbanned {reply.id[:10]}")
    out.note(
        "other nodes learn of it within seconds; the node, if it runs, connects again within a few minutes"
    )
    return 0


def _list(args: Arguments, out: Output) -> int:
    home = home_here()
    try:
        found = ask(home, BanListRequest())
    except NotRunning:
        from meshd.cli.offline import authority

        with authority(home) as (_, books):
            found = books.bans()
    if args.json:
        out.json({"bans": to_json(found.bans)})
    elif not found.bans:
        out.note("nothing is banned from this mesh")
    else:
        now = time.time()
        out.table(
            ("NAME", "ID", "KIND", "BANNED", "BY"),
            [
                (
                    entry.name or "-",
                    entry.id[:16],
                    entry.kind,
                    f"{in_time(max(0.0, now - entry.banned_at))} ago",
                    entry.by[:10],
                )
                for entry in found.bans
            ],
        )
    return 0
