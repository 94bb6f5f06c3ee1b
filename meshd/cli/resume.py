"""Lend devices again after `meshd pause` or `meshd drain`.

A model that used this worker uses it again after 15 s without requests.
"""

import argparse

from meshd.admin.api import ResumeRequest
from meshd.admin.client import Client
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon."""
    with Client(home_here()) as client:
        client.ask(ResumeRequest())
    out.line("resumed: this node lends its devices again")
    return 0
