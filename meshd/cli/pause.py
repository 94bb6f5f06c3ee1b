"""Lend nothing from now on, even after a restart, until `meshd resume`.

Models that use this worker are reloaded without it, or wait for it; running requests then continue.
`meshd drain` lets running requests finish first.
"""

import argparse

from meshd.admin.api import PauseRequest
from meshd.admin.client import Client
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon."""
    with Client(home_here()) as client:
        client.ask(PauseRequest())
    out.line("paused: this node lends nothing until `meshd resume`")
    return 0
