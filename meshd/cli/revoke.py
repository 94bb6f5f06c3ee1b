"""Ban a node from the mesh: its sessions close, and the ban spreads from node to node.

The founder can undo this with `meshd unban`. Otherwise the node can return only with a new key and invite.
"""

import argparse
import time

from meshd.admin.api import RevokeReply, RevokeRequest
from meshd.admin.client import NotRunning, ask
from meshd.base.errors import UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PEER, --yes."""
    parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon if it runs, else use the files."""
    if out.asks and not args.yes and not out.confirm(f"ban `{args.peer}` from the mesh?"):
        raise UserError("the node was not banned", hint="`--yes` skips the question")
    reply = _ban(args.peer)
    out.line(f"revoked {reply.name} ({reply.id[:10]})" if reply.name else f"revoked {reply.id[:10]}")
    out.note(f"to undo this, run `meshd unban {reply.id[:10]}` on the node that founded the mesh")
    return 0


def _ban(peer: str) -> RevokeReply:
    home = home_here()
    try:
        return ask(home, RevokeRequest(peer=peer))
    except NotRunning:
        from meshd.cli.offline import authority

        with authority(home) as (_, books):
            return books.revoke_node(books.find_admitted(peer), now=int(time.time()))
