"""Lend this machine's devices to a mesh, until stopped.

The first worker of a mesh founds it and prints an invite token: the only line on standard output. Give the
token to `meshd serve --join TOKEN` on another machine. A restart needs no token.
"""

import argparse

from meshd.cli.options import Arguments, add_role_options, load_role
from meshd.cli.output import Output
from meshd.config import check, read_join


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All from the list of settings."""
    add_role_options(parser, "worker")


def run(args: Arguments, out: Output) -> int:
    """The daemon itself; returns its exit code."""
    config = load_role(args, "worker").config
    check(config, "worker")
    config = read_join(config)
    from meshd.daemon import run as run_daemon

    return run_daemon(config, "worker", out.line)
