"""Ban a node from the mesh: its sessions close, and it can return only with a new key and a new token.

The ban spreads from node to node.
"""

import argparse
import time

from meshd.admin.api import RevokeRequest
from meshd.admin.client import NotRunning, ask
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PEER."""
    parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")


def run(args: Arguments, out: Output) -> int:
    """By the daemon if it runs, else on the files."""
    home = home_here()
    try:
        reply = ask(home, RevokeRequest(peer=args.peer))
    except NotRunning:
        from meshd.cli.offline import authority

        with authority(home) as (_, books):
            node = books.find_admitted(args.peer)
            reply = books.revoke_node(node, now=int(time.time()))
    out.line(f"revoked {reply.name} ({reply.id[:10]})" if reply.name else f"revoked {reply.id[:10]}")
    return 0
