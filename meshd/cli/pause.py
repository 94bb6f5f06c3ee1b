"""Lend nothing from now on, also after a restart; `meshd resume` ends that.

What is lent comes back at once: models that use this worker are loaded again without it, or wait for it, and
their open answers go on then. `meshd drain` waits until no answer is open.
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
