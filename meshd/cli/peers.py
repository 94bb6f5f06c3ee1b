"""List the other nodes of the mesh: their state, and the connection to each."""

import argparse

from meshd.admin.api import StatusRequest
from meshd.admin.client import ask
from meshd.admin.codec import to_json
from meshd.admin.health import is_away, is_met
from meshd.admin.status import PeerView, Status
from meshd.base.units import in_bytes, in_number, in_time
from meshd.cli.options import Arguments
from meshd.cli.output import Output
from meshd.config.tree import home_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon and print."""
    status = ask(home_here(), StatusRequest())
    if args.json:
        out.json({"peers": to_json(status.peers)})
    else:
        print_peers(status, out)
    return 0


def print_peers(status: Status, out: Output) -> None:
    """Print a table, or a line that says that there are none."""
    if not status.peers:
        out.line("no other nodes known yet")
        return
    out.table(
        (
            "PEER",
            "ID",
            "ROLE",
            "MESHD",
            "STATE",
            "LINK",
            "RTT",
            "RATE",
            "SENT",
            "RECEIVED",
            "RESUMES",
            "NOTE",
        ),
        [_row(peer) for peer in status.peers],
    )


def _state(peer: PeerView) -> str:
    if is_away(peer):
        return f"away {in_time(peer.state_s or 0.0)}" if is_met(peer) else "away"
    state = "there" if peer.present else peer.state
    if peer.fetching:
        return f"{state}, fetching"
    return f"{state}, paused" if peer.paused else state


def _row(peer: PeerView) -> tuple[str, ...]:
    link = peer.link
    note = peer.why_not_direct or ("" if link is not None else _why_no_link(peer))
    if peer.standby_links:
        note = in_number(len(peer.standby_links), "spare link") + (f"; {note}" if note else "")
    return (
        peer.name,
        peer.id[:10],
        peer.role,
        peer.version or "-",
        _state(peer),
        "-" if link is None else f"{link.kind} {link.path} {link.remote}",
        "-" if link is None or link.rtt_ms is None else f"{link.rtt_ms:.2f} ms",
        "-" if link is None or not link.bytes_s else f"{in_bytes(link.bytes_s)}/s",
        "-" if link is None else in_bytes(link.sent_bytes),
        "-" if link is None else in_bytes(link.received_bytes),
        str(peer.resumes),
        note,
    )


def _why_no_link(peer: PeerView) -> str:
    if is_away(peer) and not is_met(peer):  # what its addresses say is of no use to anybody then
        return "not connected since this node started"
    return peer.stopped or peer.last_error
