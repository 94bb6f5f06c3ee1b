"""Stop the daemon and its children; return when they have ended."""

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from meshd.admin.api import LeaveRequest, StatusRequest, StopRequest
from meshd.admin.client import Client, NotAnswering
from meshd.admin.status import Status
from meshd.base.errors import Broken, UserError
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

DEFAULT_SECONDS = 60
_POLL_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --timeout."""
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        default=str(DEFAULT_SECONDS),
        help=f"how long to wait (default: {DEFAULT_SECONDS})",
    )


def run(args: Arguments, out: Output) -> int:
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
