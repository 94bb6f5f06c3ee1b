"""Leave the mesh, and stop the daemon if it runs. To join a mesh again, use a new invite."""

import argparse

from meshd.admin.api import LeaveRequest
from meshd.admin.client import Client, NotRunning
from meshd.base.errors import UserError
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.cli.stop import DEFAULT_SECONDS, end_daemon
from meshd.config import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --force, --new-identity."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="leave even if this node holds the mesh's root key; back it up with `meshd mesh export FILE` "
        "first",
    )
    parser.add_argument(
        "--new-identity",
        action="store_true",
        help="also take a new key, which a banned node needs to join again (stop the daemon first)",
    )


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon if it runs, else use the files."""
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
                    "this node is not in a mesh", hint="set MESHD_HOME to the directory of the right node"
                ) from None
            store.leave(drop_root=args.force)
        out.note("no daemon was running to tell the other nodes; they will show this one as away")
        out.line("left the mesh")
    else:
        out.line("left the mesh, and stopped the node")
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
        raise UserError(f"a daemon is using the key in `{home}`", hint="run `meshd stop` first")
    with home_locked(home) as store:
        key = store.reset_identity(now=int(time.time()))
    out.line(f"this node is now {key.peer.short}")
    return 0
