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
    """Lend nothing from now on, also after a restart; `meshd resume` ends that.

    What is lent comes back at once: models that use this worker are loaded again without it, or wait for it,
    and their open answers go on then. `meshd drain` waits until no answer is open.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon."""
        ask(home_here(), PauseRequest())
        out.line("paused: this node lends nothing until `meshd resume`")
        return 0


class Drain:
    """Lend nothing new, and return when nothing is lent any more: before an update or a shutdown.

    Models that use this worker are loaded again without it as soon as no answer is open. Like `meshd pause`
    it holds until `meshd resume`, also after a restart.
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
                        hint="run `meshd drain` again to go on waiting, or `meshd pause` to end the use now",
                    )
                out.progress(f"waiting for the head of {in_number(lent, 'model')} to let go of this node")
                time.sleep(_LOOK_SECONDS)
        out.line("drained: nothing is lent, and nothing will be until `meshd resume`")
        return 0


class Resume:
    """Lend devices again after `meshd pause` or `meshd drain`.

    A model that used this worker before takes it in when nobody has asked for 15 s.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add nothing."""

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon."""
        ask(home_here(), ResumeRequest())
        out.line("resumed: this node lends its devices again")
        return 0
