"""Admit a node that could not reach this one, by the reply code that it printed.

For two machines behind NAT without a relay: the invite goes one way, the reply code the other.
"""

import argparse

from meshd.admin.api import AcceptRequest
from meshd.admin.client import ask
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add CODE."""
    parser.add_argument("code", metavar="CODE", help="reply code that the joining node printed")


def run(args: Arguments, out: Output) -> int:
    """Ask the running daemon: it holds the port that the other side comes to."""
    reply = ask(home_here(), AcceptRequest(code=args.code))
    where = ", ".join(reply.addresses)
    out.line(f"node {reply.joiner[:10]} can join for {reply.seconds} s, from {where}")
    return 0
