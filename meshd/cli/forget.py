"""Remove a node that is gone from this node's list: it is no longer shown or dialled.

Other nodes keep it in their lists. Nothing is banned: if the node itself comes back, it is listed again.
"""

import argparse

from meshd.admin.api import ForgetRequest
from meshd.admin.client import ask
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PEER."""
    parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon."""
    reply = ask(home_here(), ForgetRequest(peer=args.peer))
    out.line(f"forgot {reply.name} ({reply.id[:10]})" if reply.name else f"forgot {reply.id[:10]}")
    return 0
