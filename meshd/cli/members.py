"""The verbs about who is in the mesh: invite, accept, forget, revoke, unban, leave, mesh."""

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from meshd.admin.api import (
    AcceptRequest,
    BanList,
    BanListRequest,
    ForgetRequest,
    InviteList,
    InviteListRequest,
    InviteReply,
    InviteRequest,
    InviteRevokeRequest,
    InviteView,
    Joined,
    LeaveRequest,
    RevokeRequest,
    UnbanRequest,
)
from meshd.admin.client import Client, NotRunning, ask
from meshd.admin.request import Request, to_fields, to_json
from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded
from meshd.base.units import in_time
from meshd.cli.options import Arguments, Parser, duration, number, read_text
from meshd.cli.output import Output
from meshd.cli.stop import DEFAULT_SECONDS, end_daemon
from meshd.config.tree import home_here

if TYPE_CHECKING:
    from meshd.admin.authority import Authority
    from meshd.identity.keystore import Home

R = TypeVar("R")
DEFAULT_EXPIRES = "24h"
DEFAULT_USES = "1"
DEFAULT_ROLES = ("use", "work")
BROWSER_ROLES = ("use",)
MAX_JOINED_SHOWN = 20  # of those who joined by an invite
_ROLES = ("work", "use", "invite", "admin")
_USAGE = """meshd invite [--expires TIME] [--uses N] [--role R ...] [--browser NAME] [--qr] [--json]
       meshd invite ls [--json]
       meshd invite revoke ID [--yes]"""
MAX_BACKUP_CHARS = 16 << 10
_NOT_KNOWN = (
    "no member knows this node yet. Start it with `meshd worker` or `meshd serve`: it prints an invite. "
    "Restart one member with that as `--join INVITE`; the others learn of this node from it"
)


def ask_or_use_files(home: Path, request: Request[R], use_files: "Callable[[Authority, Home], R]") -> R:
    """Return the daemon's reply, or what `use_files` makes of the locked home if none runs.

    Raises MeshdError.
    """
    try:
        return ask(home, request)
    except NotRunning:
        from meshd.admin.authority import Authority

        with home_locked(home) as store:
            return use_files(Authority.load(store), store)


@contextlib.contextmanager
def home_locked(path: Path) -> "Iterator[Home]":
    """Lock the home. Raises UserError when it does not exist, or is in use."""
    from meshd.identity.keystore import Home

    if not path.is_dir():
        raise UserError(
            f"there is no node in `{path}`",
            hint="set MESHD_HOME to a node's directory, or start one with `meshd worker` or `meshd serve`",
        )
    home = Home(path)
    with home.lock():
        yield home


class Invite:
    """Create an invite, list the invites, or revoke one.

    The invite is the only line on standard output. Anyone who has it can join until it expires or is used up.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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
            help="role to grant: work (lend devices), use (serve a model), invite (let others in), admin "
            "(ban nodes); repeatable (default: use and work)",
        )
        parser.add_argument(
            "--browser",
            metavar="NAME",
            help="for a browser, such as that of a phone, under this name: it chats, from anywhere, without "
            "meshd; a terminal shows a QR code of the page; end it with `meshd revoke NAME`",
        )
        parser.add_argument("--qr", action="store_true", help="also draw the invite as a QR code")
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

    def run(self, args: Arguments, out: Output) -> int:
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
            out.json(to_fields(reply))
            return 0
        out.line(reply.token)
        wants_qr = args.qr or (bool(reply.url) and out.terminal)
        # in capitals, which an invite survives, it takes half as much room; beside an address, it does not
        if wants_qr and not out.qr_code(reply.url or reply.token.upper()):
            out.note("no QR code: the terminal is too narrow for it, or cannot show block characters")
        if reply.url:
            page = reply.url.removesuffix(f"#{reply.token}")
            out.note(f"in this network, scan the QR code, or open {page} and paste the invite")
        elif args.browser is not None:
            out.note("paste the invite into the saved page; this node offers no page in its network")
        out.note(reply.validity(time.time()))
        return 0


def _refuse_options_of_new_ones(args: Arguments) -> None:
    """Refuse options before `ls` and `revoke`, where argparse accepts them. Raises UsageError."""
    given = {
        "--expires": args.expires != DEFAULT_EXPIRES,
        "--uses": args.uses != DEFAULT_USES,
        "--role": args.role is not None,
        "--browser": args.browser is not None,
        "--qr": args.qr,
    }
    for option in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"`{option}` is for a new invite and cannot be combined with `{args.action}`")


def _request(args: Arguments) -> InviteRequest:
    if args.browser is not None and args.role is not None:
        raise UsageError("`--browser` cannot be combined with `--role`: a browser has the role `use`")
    if args.browser == "":
        raise UsageError("`--browser` needs a name, such as `--browser phone`")
    default = DEFAULT_ROLES if args.browser is None else BROWSER_ROLES
    roles = [part for text in args.role or default for part in text.split(",")]
    for role in roles:
        if role not in _ROLES:
            raise UsageError(f"cannot use `--role {role}`: expected one of {', '.join(_ROLES)}")
    return InviteRequest(
        expires_s=duration("--expires", args.expires),
        uses=number("--uses", args.uses, 1, 1000),
        roles=tuple(dict.fromkeys(roles)),
        browser=args.browser or "",
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
            browser=request.browser,
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
            drop=("ROLES",),
            below="JOINED WITH IT",
        )
    return 0


def _row(invite: InviteView, now: float) -> tuple[str, ...]:
    ahead = invite.expires_at - now
    when = f"in {in_time(ahead)}" if ahead > 0 else f"{in_time(-ahead)} ago"
    used = f"{invite.used} of {invite.uses}"
    roles = f"browser {invite.browser}" if invite.browser else ", ".join(invite.roles)
    return invite.id, invite.state, used, roles, when, _called(invite.joined, invite.used)


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
    out.text(f"revoked invite {banned.id} and the nodes that joined with it{removed}")
    return 0


def _sure(home: Path, start: str, out: Output) -> bool:
    """Ask the user to confirm if nodes are banned with the invite; the daemon judges the rest."""
    fits = [
        invite for invite in _invites(home).invites if start and invite.id.startswith(start.strip().lower())
    ]
    if len(fits) != 1 or not fits[0].used:
        return True
    return out.confirm(f"this also bans {_called(fits[0].joined, fits[0].used)}: continue?")


class Accept:
    """Admit a node that could not reach this one, by the reply code that it printed.

    For two machines behind NAT without a relay: the invite goes one way, the reply code the other.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add CODE."""
        parser.add_argument("code", metavar="CODE", help="reply code that the joining node printed")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the running daemon: it holds the port that the other side comes to."""
        reply = ask(home_here(), AcceptRequest(code=args.code))
        where = ", ".join(reply.addresses)
        out.text(f"node {reply.joiner[:10]} can join for {reply.seconds} s, from {where}")
        return 0


class Forget:
    """Remove a node that is gone from this node's list: it is no longer shown or dialled.

    Other nodes keep it in their lists. Nothing is banned: if the node itself comes back, it is listed again.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add PEER."""
        parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon."""
        reply = ask(home_here(), ForgetRequest(peer=args.peer))
        out.line(f"forgot {_named(reply.name, reply.id)}")
        return 0


class Revoke:
    """Ban a node from the mesh: its sessions close, and the ban spreads from node to node.

    The founder can undo this with `meshd unban`. Otherwise the node can return only with a new key and
    invite.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add PEER, --yes."""
        parser.add_argument("peer", metavar="PEER", help="name, id, or unique beginning of an id")
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon if it runs, else use the files."""
        if out.asks and not args.yes and not out.confirm(f"ban `{args.peer}` from the mesh?"):
            raise UserError("the node was not banned", hint="`--yes` skips the question")
        reply = ask_or_use_files(
            home_here(),
            RevokeRequest(peer=args.peer),
            lambda books, _: books.revoke_node(books.find_admitted(args.peer), now=int(time.time())),
        )
        out.line(f"revoked {_named(reply.name, reply.id)}")
        out.note(f"to undo this, run `meshd unban {reply.id[:10]}` on the node that founded the mesh")
        return 0


class Unban:
    """Lift the bans of a node or an invite; without ID, list all bans.

    A node returns with its old key and membership. To readmit the nodes that joined with a revoked
    invite, give the invite's id; it stays revoked. Only the founder can lift a ban.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add ID, --json."""
        parser.add_argument(
            "id",
            metavar="ID",
            nargs="?",
            help="id of a banned node or invite, or its unique beginning; or the name of a node, as listed",
        )
        parser.add_argument("--json", action="store_true", help="list the bans as JSON, for scripts")

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon if it runs, else use the files."""
        home = home_here()
        if args.id is None:
            bans = ask_or_use_files(home, BanListRequest(), lambda books, _: books.bans())
            _show_bans(bans, out, as_json=args.json)
            return 0
        reply = ask_or_use_files(
            home, UnbanRequest(id=args.id), lambda books, _: books.unban(args.id, now=int(time.time()))
        )
        out.line(f"unbanned {_named(reply.name, reply.id)}")
        out.note(
            "other nodes learn of it within seconds; the node, if it runs, connects again within a few "
            "minutes"
        )
        return 0


def _show_bans(found: BanList, out: Output, *, as_json: bool) -> None:
    if as_json:
        out.json({"bans": to_json(found.bans)})
    elif not found.bans:
        out.note("nothing is banned from this mesh")
    else:
        now = time.time()
        out.table(
            ("NAME", "ID", "KIND", "BANNED", "BY"),
            [
                (
                    entry.name or "-",
                    entry.id[:16],
                    entry.kind,
                    f"{in_time(max(0.0, now - entry.banned_at))} ago",
                    entry.by[:10],
                )
                for entry in found.bans
            ],
            drop=("BY",),
        )


def _named(name: str, node: str) -> str:
    return f"{name} ({node[:10]})" if name else node[:10]


class Leave:
    """Leave the mesh, and stop the daemon if it runs. To join a mesh again, use a new invite."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add --force, --new-identity."""
        parser.add_argument(
            "--force",
            action="store_true",
            help="leave even if this node holds the mesh's root key; back it up with `meshd mesh export "
            "FILE` first",
        )
        parser.add_argument(
            "--new-identity",
            action="store_true",
            help="also take a new key, which a banned node needs to join again (stop the daemon first)",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Ask the daemon if it runs, else use the files."""
        home = home_here()
        if args.new_identity:
            return _new_identity(out)
        try:
            end_daemon(home, LeaveRequest(drop_root=args.force), DEFAULT_SECONDS)
        except NotRunning:
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


class Mesh:
    """Back up the mesh's root key, or make this node a second founder with it.

    `export` writes a recovery code. `import` makes another node a founder too: both can invite and ban, and
    the mesh survives the loss of either. Anyone who has the code controls the mesh.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add `export [FILE]`, `import [FILE]`."""
        below = parser.add_subparsers(
            dest="action", metavar="export | import", required=True, parser_class=Parser
        )
        exporting = below.add_parser("export", description="Write the recovery code of the mesh, a secret.")
        exporting.add_argument(
            "file", metavar="FILE", nargs="?", help="file to create (default: -, standard output)"
        )
        importing = below.add_parser(
            "import",
            description="Make this node a founder of the mesh. Its daemon must be stopped. A node that is in "
            "the mesh stays in it.",
        )
        importing.add_argument(
            "file",
            metavar="FILE",
            nargs="?",
            default="-",
            help="file that `export` wrote (default: -, standard input; on a terminal, type the code)",
        )

    def run(self, args: Arguments, out: Output) -> int:
        """Work on the files: the root key never goes through the control socket."""
        home = home_here()
        return (
            _export_root(home, args.file, out)
            if args.action == "export"
            else _import_root(home, args.file, out)
        )


def _export_root(home: Path, file: str | None, out: Output) -> int:
    from meshd.identity.keystore import Home

    if not home.is_dir():
        raise UserError(
            f"there is no node in `{home}`",
            hint="set MESHD_HOME to the directory of the node that founded the mesh",
        )
    store = Home(home)
    code = store.export_root()
    if file in (None, "-"):  # a secret must not end up in a file of that name
        out.line(code)
    else:
        out.line(str(_write_new(expanded(file), code + "\n")))
    out.note("keep it secret, and away from this machine: anyone who has it controls the mesh")
    store.note_export()
    return 0


def _write_new(path: Path, text: str) -> Path:
    """Create a file that only this user can read. Raises UserError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write `{path}`: {error.strerror}", hint="name a new file in a directory you can write to"
        ) from None
    return path


def _import_root(home: Path, file: str, out: Output) -> int:
    import secrets

    from meshd.identity.keystore import Home

    if file.startswith("meshdroot"):
        raise UserError(
            "the recovery code was given as an argument, which other users of this machine can read",
            hint="run `meshd mesh import` and type the code, or name a file that contains it",
        )
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = Home(home)
    with store.lock():
        if file == "-" and out.asks:
            text = out.ask("recovery code: ")
        else:
            text = read_text(file, "the backup", MAX_BACKUP_CHARS)
        before = store.load_membership()
        membership = store.import_root(text, now=int(time.time()), random=secrets.token_bytes)
    out.text(f"this node is now a founder of mesh {membership.mesh.short}")
    if before is None or before.mesh != membership.mesh:
        out.note(_NOT_KNOWN)
    return 0
