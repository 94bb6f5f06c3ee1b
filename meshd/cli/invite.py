"""Create an invite, list the invites, or revoke one.

The invite is the only line on standard output. Anyone who has it can join until it expires or is used up.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.api import (
    InviteList,
    InviteListRequest,
    InviteReply,
    InviteRequest,
    InviteRevokeRequest,
    InviteView,
    Joined,
)
from meshd.admin.codec import to_json
from meshd.base.errors import UsageError, UserError
from meshd.base.units import in_time
from meshd.cli.offline import ask_or_use_files
from meshd.cli.options import Arguments, Parser, duration, number
from meshd.cli.output import Output
from meshd.config.tree import home_here

if TYPE_CHECKING:  # cryptography, which a running daemon spares this verb
    from meshd.admin.authority import Authority
    from meshd.identity.keystore import Home

DEFAULT_EXPIRES = "24h"
DEFAULT_USES = "1"
DEFAULT_ROLES = ("use", "work")
MAX_JOINED_SHOWN = 20  # of those who joined by an invite
_ROLES = ("work", "use", "invite", "admin")
_USAGE = """meshd invite [--expires TIME] [--uses N] [--role R ...] [--json]
       meshd invite ls [--json]
       meshd invite revoke ID [--yes]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options of a new invite; `ls` and `revoke ID` below."""
    parser.add_argument(
        "--expires",
        metavar="TIME",
        default=DEFAULT_EXPIRES,
        help="how long it is valid, such as 24h, 30m or 7d (default: 24h)",
    )
    parser.add_argument(
        "--uses", metavar="N", default=DEFAULT_USES, help="how many nodes can join with it (default: 1)"
    )
    parser.add_argument(
        "--role",
        metavar="R",
        action="append",
        help="role to grant: work (lend devices), use (serve a model), invite (let others in), admin (ban "
        "nodes); repeatable (default: use and work)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.usage = _USAGE
    below = parser.add_subparsers(
        dest="action", prog="meshd invite", help=argparse.SUPPRESS, parser_class=Parser
    )
    listing = below.add_parser("ls", description="List the invites that this node created.")
    listing.add_argument("--json", action="store_true", help="print JSON, for scripts")
    revoking = below.add_parser(
        "revoke", description="Revoke an invite and ban all nodes that joined with it."
    )
    revoking.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    revoking.add_argument("id", metavar="ID", help="id as in `meshd invite ls`, or its beginning")


def run(args: Arguments, out: Output) -> int:
    """Ask the daemon if it runs, else use the files."""
    home = home_here()
    if args.action is not None:
        _refuse_options_of_new_ones(args)
    if args.action == "ls":
        return _list(home, args, out)
    if args.action == "revoke":
        return _revoke(home, args, out)
    reply = _create(home, _request(args))
    if args.json:
        out.json({**_fields(reply)})
        return 0
    out.line(reply.token)
    out.note(reply.validity(time.time()))
    return 0


def _refuse_options_of_new_ones(args: Arguments) -> None:
    """Refuse options before `ls` and `revoke`, where argparse accepts them. Raises UsageError."""
    given = {
        "--expires": args.expires != DEFAULT_EXPIRES,
        "--uses": args.uses != DEFAULT_USES,
        "--role": args.role is not None,
    }
    for option in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"`{option}` is for a new invite and cannot be combined with `{args.action}`")


def _request(args: Arguments) -> InviteRequest:
    roles = [part for text in args.role or DEFAULT_ROLES for part in text.split(",")]
    for role in roles:
        if role not in _ROLES:
            raise UsageError(f"cannot use `--role {role}`: expected one of {', '.join(_ROLES)}")
    return InviteRequest(
        expires_s=duration("--expires", args.expires),
        uses=number("--uses", args.uses, 1, 1000),
        roles=tuple(dict.fromkeys(roles)),
    )


def _create(home: Path, request: InviteRequest) -> InviteReply:
    def by_files(books: "Authority", store: "Home") -> InviteReply:
        import secrets

        from meshd.admin.authority import load_addresses
        from meshd.identity.invite import INVITE_SECRET_BYTES

        candidates = load_addresses(store)
        if not candidates:
            raise UserError(
                "this node's addresses are unknown: it has not run yet",
                hint="start it with `meshd worker` or `meshd serve` first",
            )
        return books.invite(
            now=int(time.time()),
            expires_s=request.expires_s,
            uses=request.uses,
            roles=request.roles,
            secret=secrets.token_bytes(INVITE_SECRET_BYTES),
            candidates=candidates,
        )

    return ask_or_use_files(home, request, by_files)


def _invites(home: Path) -> InviteList:
    return ask_or_use_files(home, InviteListRequest(), lambda books, _: books.invites(int(time.time())))


def _list(home: Path, args: Arguments, out: Output) -> int:
    found = _invites(home)
    if args.json:
        out.json({"invites": to_json(found.invites)})
    elif not found.invites:
        out.note("this node has created no invites")
    else:
        out.table(
            ("ID", "STATE", "USED", "ROLES", "EXPIRES", "JOINED WITH IT"),
            [_row(invite, time.time()) for invite in found.invites],
        )
    return 0


def _row(invite: InviteView, now: float) -> tuple[str, ...]:
    ahead = invite.expires_at - now
    when = f"in {in_time(ahead)}" if ahead > 0 else f"{in_time(-ahead)} ago"
    used = f"{invite.used} of {invite.uses}"
    return invite.id, invite.state, used, ", ".join(invite.roles), when, _called(invite.joined, invite.used)


def _called(nodes: Sequence[Joined], count: int) -> str:
    """Name nodes by name, by id where none is known, by both where two share it; the newest first."""
    names = [node.name for node in nodes]

    def called(node: Joined) -> str:
        short = node.id[:10]
        if not node.name:
            return short
        return node.name if names.count(node.name) == 1 else f"{node.name} ({short})"

    shown = [called(node) for node in reversed(nodes)][:MAX_JOINED_SHOWN]
    return ", ".join(shown) + (f" and {count - len(shown)} more" if count > len(shown) else "")


def _revoke(home: Path, args: Arguments, out: Output) -> int:
    if out.asks and not args.yes and not _sure(home, args.id, out):
        raise UserError("the invite was not revoked", hint="run `meshd revoke PEER` to ban a single node")
    banned = ask_or_use_files(
        home,
        InviteRevokeRequest(id=args.id),
        lambda books, _: books.revoke_invite(args.id, now=int(time.time())),
    )
    removed = f": {_called(banned.removed, len(banned.removed))}" if banned.removed else ""
    out.line(f"revoked invite {banned.id} and the nodes that joined with it{removed}")
    return 0


def _sure(home: Path, start: str, out: Output) -> bool:
    """Ask the user to confirm if nodes are banned with the invite; the daemon judges the rest."""
    fits = [
        invite for invite in _invites(home).invites if start and invite.id.startswith(start.strip().lower())
    ]
    if len(fits) != 1 or not fits[0].used:
        return True
    return out.confirm(f"this also bans {_called(fits[0].joined, fits[0].used)}: continue?")


def _fields(reply: InviteReply) -> dict[str, str | int]:
    return {"token": reply.token, "id": reply.id, "expires_at": reply.expires_at, "uses": reply.uses}
