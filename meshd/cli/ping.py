"""Measure the round trip to a node, given by its name, its id, or the beginning of its id.

Each answer shows the kind of link, the path and the address it used.
"""

import argparse
import time

from meshd.admin.api import PingReply, PingRequest
from meshd.admin.client import Client
from meshd.base.errors import Refused
from meshd.cli.options import Arguments, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

DEFAULT_COUNT = 4
_PAUSE_SECONDS = 0.5
REPLY_MARGIN_SECONDS = 5.0
MISTAKE = "user"  # what was asked cannot be done: asking again changes nothing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PEER, --count, --timeout, --json."""
    parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")
    parser.add_argument(
        "--count", metavar="N", default=str(DEFAULT_COUNT), help=f"number of pings (default: {DEFAULT_COUNT})"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        default="5",
        help="how long to wait for each answer (default: 5, at most 60)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON at the end, for scripts")


def run(args: Arguments, out: Output) -> int:
    """Return 0 when at least one answer came."""
    count = number("--count", args.count, 1, 1_000_000)
    seconds = float(number("--timeout", args.timeout, 1, 60))
    replies: list[tuple[int, PingReply]] = []
    last: Refused | None = None
    # Ping; a refusal is a lost ping, but for a mistake in the arguments.
    with Client(home_here()) as client:
        for turn in range(count):
            if turn:
                time.sleep(_PAUSE_SECONDS)
            try:
                reply = client.ask(
                    PingRequest(peer=args.peer, timeout_s=seconds),
                    seconds=seconds + REPLY_MARGIN_SECONDS,
                )
            except Refused as refusal:
                if refusal.code == MISTAKE:
                    raise
                last = refusal
                out.note(f"no answer: {refusal.what}")
                continue
            replies.append((turn, reply))
            if not args.json:
                out.line(
                    f"pong from {reply.name} ({reply.peer[:10]}) via {reply.kind} {reply.path} "
                    f"{reply.remote} in {reply.rtt_ms:.2f} ms"
                )
    # Report the result.
    if args.json:
        _print_json(args.peer, count, replies, out)
    if not replies:
        hint = last.hint if last is not None else ""
        out.error(f"`{args.peer}` did not answer", hint or "run `meshd peers` for the state of each node")
        return 1
    return 0


def _print_json(peer: str, count: int, replies: list[tuple[int, PingReply]], out: Output) -> None:
    times = [reply.rtt_ms for _, reply in replies]
    out.json(
        {
            "peer": replies[0][1].peer if replies else peer,
            "name": replies[0][1].name if replies else None,
            "sent": count,
            "received": len(replies),
            "rtt_min_ms": min(times, default=None),
            "rtt_avg_ms": sum(times) / len(times) if times else None,
            "rtt_max_ms": max(times, default=None),
            "replies": [
                {"seq": turn, "rtt_ms": r.rtt_ms, "kind": r.kind, "path": r.path, "remote": r.remote}
                for turn, r in replies
            ],
        }
    )
