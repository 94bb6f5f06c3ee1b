"""`meshd pause`, `drain` and `resume`: when this node lends its devices."""

import argparse
import time

from meshd.admin.api import PauseRequest, ResumeRequest, StatusRequest
from meshd.admin.client import Client, ask
from meshd.base.errors import UserError
from meshd.base.units import in_number
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

LENT_SECONDS = 600
_LOOK_SECONDS = 0.5


class Pause:
    """Lend nothing from now on, even after a restart, until `meshd resume`.

    Models that use this worker are reloaded without it, or wait for it; running requests then continue.
    `meshd drain` lets running requests finish first.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon."""
        ask(home_here(), PauseRequest())
        out.line("paused: this node lends nothing until `meshd resume`")
        return 0


class Drain:
    """Let running requests finish, then lend nothing: before an update or a shutdown.

    Models that use this worker are reloaded without it once their running requests have finished. Like
    `meshd pause`, this lasts until `meshd resume`, even after a restart.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --timeout."""
        parser.add_argument(
            "--timeout",
            metavar="SECONDS",
            default=str(LENT_SECONDS),
            help=f"how long to wait (default: {LENT_SECONDS})",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon, and wait. Returns 1 when something is still lent at the end."""
        deadline = time.monotonic() + number("--timeout", args.timeout, 1, 86400)
        with Client(home_here()) as client:
            client.ask(PauseRequest(drain=True))
            while lent := len(client.ask(StatusRequest()).children):
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"{in_number(lent, 'model')} still in use here",
                        hint="run `meshd drain` again to keep waiting, or `meshd pause` to end the use now",
                    )
                out.progress(f"waiting for the head of {in_number(lent, 'model')} to let go of this node")
                time.sleep(_LOOK_SECONDS)
        out.line("drained: nothing is lent, and nothing will be until `meshd resume`")
        return 0


class Resume:
    """Lend devices again after `meshd pause` or `meshd drain`.

    A model that used this worker uses it again after 15 s without requests.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon."""
        ask(home_here(), ResumeRequest())
        out.line("resumed: this node lends its devices again")
        return 0
