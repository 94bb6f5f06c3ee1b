"""Give up this node's membership; the daemon, if it runs, ends. A new token lets it join a mesh again."""

import argparse

from meshd.admin.api import LeaveRequest
from meshd.admin.client import Client, NotRunning
from meshd.base.errors import UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.cli.stop import DEFAULT_SECONDS, end_daemon
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--force, --new-identity."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="also where the mesh's root is: without a backup of it nobody can rule that mesh again",
    )
    parser.add_argument(
        "--new-identity",
        action="store_true",
        help="and take a new key, as a banned node needs to come back (the daemon must not run)",
    )


def run(args: Arguments, out: Output) -> int:
    """By the daemon if it runs, else on the files."""
    home = home_here()
    if args.new_identity:
        return _new_identity(out)
    try:
        end_daemon(home, LeaveRequest(drop_root=args.force), DEFAULT_SECONDS)
    except NotRunning:
        from meshd.cli.offline import home_locked

        with home_locked(home) as store:
            if store.load_membership() is None:
                raise UserError(
                    "this node is in no mesh", hint="set MESHD_HOME to the folder of the node that you mean"
                ) from None
            store.leave(drop_root=args.force)
        out.note("the other nodes were not told: no daemon was running; they show it as away")
    out.line("left the mesh")
    return 0


def _new_identity(out: Output) -> int:
    import time

    from meshd.cli.offline import home_locked

    home = home_here()
    try:
        Client(home).close()
    except NotRunning:
        pass
    else:
        raise UserError(f"a daemon uses the key of `{home}`", hint="end it first with `meshd stop`")
    with home_locked(home) as store:
        key = store.reset_identity(now=int(time.time()))
    out.line(f"this node is now {key.peer.short}")
    return 0
