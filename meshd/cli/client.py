"""Offer the API of the mesh's serving nodes on this machine, until you stop it.

It needs no model, no GPU and no llama.cpp. A request goes to a node that serves its model; of several, to the
least busy one. A restart needs no invite.

examples:
  meshd client --join @invite.txt               the API at http://127.0.0.1:8090/v1
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
