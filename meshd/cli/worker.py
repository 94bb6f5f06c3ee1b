"""Lend this machine's devices to a mesh, until stopped.

Without --join, the first start founds a mesh and prints an invite token, the only line on standard output. On
the machine that serves the model (the head), run `meshd serve --model FILE --join TOKEN`. A restart needs no
token.
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
