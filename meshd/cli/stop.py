"""The verbs that stop a node, or its lending: stop, pause, drain and resume."""

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from meshd.admin.api import LeaveRequest, PauseRequest, ResumeRequest, StatusRequest, StopRequest
from meshd.admin.client import Client, NotAnswering, ask
from meshd.admin.status import Status
from meshd.base.errors import Broken, UserError
from meshd.base.units import in_number
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

DEFAULT_SECONDS = 60
_POLL_SECONDS = 0.05
LENT_SECONDS = 600
_LOOK_SECONDS = 0.5


class Stop:
    """Stop the daemon and its children; return when they have ended."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --timeout."""
        parser.add_argument(
            "--timeout",
            metavar="SECONDS",
            default=str(DEFAULT_SECONDS),
            help=f"how long to wait (default: {DEFAULT_SECONDS})",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Ask it to stop, and wait."""
        seconds = number("--timeout", args.timeout, 1, 86400)
        home = home_here()
        try:
            status = end_daemon(home, StopRequest(), seconds)
        except NotAnswering as early:
            _end_early(early, seconds)
            out.line(f"stopped a daemon that was still starting (process {early.pid})")
        else:
            out.line(f"stopped {status.node.name} (process {status.node.pid})")
        return 0


def _end_early(early: NotAnswering, seconds: float) -> None:
    """End it by a signal: it has no control socket yet, nor children that need a gentler end."""
    with StoppingDaemon(early.pid) as daemon:
        with contextlib.suppress(ProcessLookupError):
            os.kill(early.pid, signal.SIGTERM)
        if not daemon.wait(time.monotonic() + seconds):
            raise _still_there(early.pid, seconds)


def _still_there(pid: int, seconds: float) -> UserError:
    return UserError(
        f"the daemon (process {pid}) has not ended within {seconds:.0f} s",
        hint=f"run `meshd logs` to see what it waits for, or `kill -9 {pid}` to end it and its children",
    )


def end_daemon(home: Path, request: StopRequest | LeaveRequest, seconds: float) -> Status:
    """Send a request that ends the daemon, and return when it and its children are gone.

    The kernel says when the processes themselves have ended. Raises UserError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(home))
        status = client.ask(StatusRequest())
        # opened before the request, so that a number given to another process later is not mistaken for it
        daemon = stack.enter_context(StoppingDaemon(status.node.pid))
        children = [stack.enter_context(StoppingDaemon(child.pid)) for child in status.children if child.pid]
        # Broken: it went before its answer got out, which is what was wanted
        with contextlib.suppress(Broken):
            client.ask(request)
        client.close()
        if not daemon.wait(deadline):
            raise _still_there(daemon.pid, seconds)
        left = [child.pid for child in children if not child.wait(deadline)]
        if left:
            numbers = ", ".join(map(str, left))
            raise UserError(
                f"children of the daemon are still running: {numbers}", hint="end them with `kill`"
            )
    return status


class StoppingDaemon:
    """A process whose end can be waited for, even by another than its parent; a context manager."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        self._gone = False
        if sys.platform == "linux":
            try:
                self._fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone = True
            except OSError:
                pass  # an old kernel or a filter: ask for the number instead

    def __enter__(self) -> "StoppingDaemon":
        return self

    def __exit__(self, *_error: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def wait(self, deadline: float) -> bool:
        """Return True when it has ended before `deadline` (monotonic time)."""
        if self._gone:
            return True
        if self._fd >= 0:
            poller = select.poll()
            poller.register(self._fd, select.POLLIN)
            return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
        while not _is_gone(self.pid):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return True  # the number has gone to somebody else's process
    return False


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
