"""The API of the mesh's serving nodes, on this machine, until you stop it; no model, no GPU, no llama.cpp.

Requests go to the node that serves their model, to the least busy one if there are several. A restart needs
no token.

examples:
  meshd client --join @invite.txt                the API at http://127.0.0.1:8090/v1
  meshd client --port 8091 --set client.heads=desk,attic   use only these two nodes
"""

import argparse

from meshd.cli.daemon_import import import_daemon
from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.cli.role_checks import check_node, read_join


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options from the list of settings."""
    add_role_options(parser, "client")
    parser.usage = "meshd client [OPTIONS]"


def run(args: Arguments, out: Output) -> int:
    """Run the daemon itself; return its exit code."""
    config = load_role(args, "client").config
    check_node(config)
    return import_daemon()(read_join(config), "client", out.line)
