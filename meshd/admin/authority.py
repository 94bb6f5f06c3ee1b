"""Decides about this node's mesh: invites and bans, written to disk before they are announced.

The daemon uses it with its own books in memory; a verb uses it on the files, under the home's lock, while
no daemon runs. Time and random bytes are parameters: `now` in Unix seconds, secrets as bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from meshd.admin.api import BanList, BanView, InviteList, InviteReply, InviteView, Joined, RevokeReply
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity import naming
from meshd.identity.invite import Invite, RelayHint, encode_token
from meshd.identity.invite_book import InviteBook, InviteEntry
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.membership import Certificate, Role
from meshd.identity.revocation import BanKind, RevocationSet, ban
from meshd.wire.address import Candidate
from meshd.wire.limits import MAX_NAME_BYTES

PRINTED_ROLES = frozenset({Role.USE, Role.WORK})
PRINTED_SECONDS = 24 * 3600
PRINTED_USES = 10
MAX_LISTED = 32  # of those who joined by an invite, in a list of all invites
ADDRESSES_BLOB = "addresses"  # where this node was last reached: what an invite made without a daemon says
BANNED_NAMES_BLOB = "banned-names"  # what nodes were called when this one banned them


class Authority:
    """The invites and bans of one node. Every change is saved before the method returns (but `lives_on`)."""

    def __init__(
        self,
        *,
        home: Home,
        key: KeyPair,
        membership: Membership,
        invites: InviteBook,
        bans: RevocationSet,
        lives_on: bool = False,
    ) -> None:
        """Take the node's books. `lives_on`: a daemon, in whose memory a ban holds even while the disk cannot
        be written.
        """
        self._home = home
        self._key = key
        self._membership = membership
        self._invites = invites
        self._bans = bans
        self._save_invites = partial(home.keep_invites if lives_on else home.save_invites, invites)
        self._save_bans = partial(home.keep_revocations if lives_on else home.save_revocations, bans)
        self._banned_names = _load_banned_names(home)  # by id; a banned node is dropped from the address book

    @classmethod
    def load(cls, home: Home) -> "Authority":
        """Load the books from the files. Raises UserError when this node is not in a mesh."""
        membership = home.load_membership()
        if membership is None:
            raise UserError(
                f"the node of `{home.path}` is not in a mesh",
                hint="start `meshd worker` or `meshd serve`; to join an existing mesh, add `--join INVITE`",
            )
        return cls(
            home=home,
            key=home.load_or_create_identity(),
            membership=membership,
            invites=home.load_invites(membership.mesh),
            bans=home.load_revocations(membership.mesh),
        )

    @property
    def gives(self) -> frozenset[Role]:
        """The roles that this node may give; none: it cannot invite."""
        return self._membership.gives

    def invite(
        self,
        *,
        now: int,
        expires_s: int,
        uses: int,
        roles: Iterable[str],
        secret: bytes,
        candidates: Sequence[Candidate],
        relays: Sequence[RelayHint] = (),
        printed: bool = False,
        browser: str = "",
    ) -> InviteReply:
        """Create an invite; `secret` is 16 random bytes. Raises UserError if this node may not grant it."""
        # Check that this node may grant the roles.
        wanted = frozenset(map(read_role, roles))
        may = self.gives
        if not may:
            raise self._may_not_invite(browser)
        if not wanted <= may:
            names = ", ".join(sorted(wanted - may))
            raise UserError(
                f"this node cannot grant the role {names}", hint=f"choose from {', '.join(sorted(may))}"
            )
        if browser and (not browser.isprintable() or len(browser.encode()) > MAX_NAME_BYTES):
            raise UserError(
                "the browser's name cannot be used",
                hint=f"give printable text of {MAX_NAME_BYTES} bytes at most",
            )
        # Create it, and save it before anybody gets the invite.
        entry = self._invites.create(
            secret=secret,
            roles=wanted,
            now=now,
            expires_at=now + expires_s,
            uses=uses,
            printed=printed,
            browser=browser,
        )
        try:
            self._home.save_invites(self._invites)
        except UserError:  # an invite that a restart forgets would be worth nothing
            self._invites.forget(entry.invite_id)
            raise
        return self._reply(entry, candidates, relays)

    def _may_not_invite(self, browser: str) -> UserError:
        hint = "run `meshd invite` on the node that founded the mesh, or on one with the role `invite`"
        if browser:  # the invite of another node would be of no use: a browser uses the node that invites it
            roles = " ".join(f"--role {role}" for role in sorted({*self._membership.roles, Role.INVITE}))
            hint = (
                f"a browser uses the node that invites it. Run `meshd invite {roles}` on the node that "
                "founded the mesh, then here `meshd leave`, and start this node with that invite"
            )
        return UserError("this node is not allowed to invite others", hint=hint)

    def printed_invite(
        self,
        *,
        now: int,
        secret: bytes,
        candidates: Sequence[Candidate],
        relays: Sequence[RelayHint] = (),
    ) -> InviteReply | None:
        """Return the invite that `worker` and `serve` print: unchanged while valid; None: not allowed."""
        if not self.gives >= PRINTED_ROLES:
            return None
        entry = self._invites.current(roles=PRINTED_ROLES, now=now)
        if entry is not None:
            return self._reply(entry, candidates, relays)
        return self.invite(
            now=now,
            expires_s=PRINTED_SECONDS,
            uses=PRINTED_USES,
            roles=PRINTED_ROLES,
            secret=secret,
            candidates=candidates,
            relays=relays,
            printed=True,
        )

    def _reply(
        self, entry: InviteEntry, candidates: Sequence[Candidate], relays: Sequence[RelayHint]
    ) -> InviteReply:
        token = encode_token(
            Invite(
                mesh=self._membership.mesh,
                inviter=self._key.peer,
                secret=entry.secret,
                expires_at=entry.expires_at,
                candidates=tuple(candidates),
                relays=tuple(relays),
            )
        )
        return InviteReply(token=token, id=entry.id_text, expires_at=entry.expires_at, uses=entry.left)

    def invites(self, now: int, names: Mapping[PeerId, str] = MappingProxyType({})) -> InviteList:
        """Return all remembered invites, without their secrets. `names`: the names of nodes that joined."""
        return InviteList(invites=tuple(_view(entry, now, names) for entry in self._invites.entries()))

    def revoke_invite(
        self, text: str, *, now: int, names: Mapping[PeerId, str] = MappingProxyType({})
    ) -> RevokeReply:
        """Ban an invite, by the beginning of its id, and all nodes that joined with it. Raises UserError."""
        entry = self._invites.revoke(self._invites.find(text).invite_id)
        self._save_invites()
        self._ban("invite", entry.invite_id, now, None)
        return RevokeReply(id=entry.id_text, removed=_joined(entry, names))

    def revoke_node(self, node: PeerId, *, now: int, name: str = "") -> RevokeReply:
        """Ban a node. Raises UserError when this node may not, or when it is itself."""
        if node == self._key.peer:
            raise UserError("this node cannot ban itself", hint="run `meshd leave` to leave the mesh")
        evidence = self._certificate_of(node)
        _, shown = self._membership.signer(self._key)
        if shown is not None and Role.ADMIN not in shown.leaf.roles and evidence is None:
            raise UserError(
                f"this node is not allowed to ban `{name or node.short}`, which another node admitted",
                hint="run this on the mesh's founder, on an admin, or on the node that invited it",
            )
        self._ban("node", node.raw, now, evidence)
        if naming.is_name(name):
            self._banned_names[str(node)] = name
            self._keep_banned_names()
        return RevokeReply(id=str(node), name=name)

    def bans(self) -> BanList:
        """Return all bans in force."""
        return BanList(
            bans=tuple(
                BanView(
                    id=(shown := ban_id(entry.kind, entry.target)),
                    name=self._banned_names.get(shown, ""),
                    kind=entry.kind,
                    banned_at=entry.issued_at,
                    by=str(entry.issuer),
                )
                for entry in self._bans.bans()
            )
        )

    def unban(self, text: str, *, now: int) -> RevokeReply:
        """Lift the bans of what has an id that begins with `text`, or had that name. Raises UserError."""
        # Find the one ban that `text` names.
        name = text.strip()
        start = name.lower()
        found = {
            shown: (entry.kind, entry.target)
            for entry in self._bans.bans()
            if start
            and (
                (shown := ban_id(entry.kind, entry.target)).startswith(start)
                or self._banned_names.get(shown) == name
            )
        }
        if len(found) != 1:
            why = "matches several bans" if found else "matches no ban"
            raise UserError(f"`{text[:64]}` {why}", hint="run `meshd unban` to list all bans with their ids")
        [(shown, (kind, target))] = found.items()
        # Only the root's key lifts bans.
        signer, chain = self._membership.signer(self._key)
        if chain is not None:
            raise UserError(
                "only the holder of the mesh's root key can lift a ban",
                hint="run this on the node that founded the mesh",
            )
        epoch = self._bans.next_epoch(kind, target, now=now)
        lifted = ban(
            signer=signer,
            chain=None,
            mesh=self._membership.mesh,
            kind=kind,
            target=target,
            issued_at=now,
            epoch=epoch,
            lifts=True,
        )
        # Save it before it is announced.
        self._bans.add(lifted)
        self._save_bans()
        lifted_name = self._banned_names.get(shown, "")
        self._keep_banned_names()
        return RevokeReply(id=shown, name=lifted_name)

    def _keep_banned_names(self) -> None:
        """Drop the names of nodes that are not banned any more, and save the others."""
        banned = {ban_id(entry.kind, entry.target) for entry in self._bans.bans()}
        self._banned_names = {node: name for node, name in self._banned_names.items() if node in banned}
        text = "\n".join(f"{node} {name}" for node, name in self._banned_names.items())
        self._home.keep_blob(BANNED_NAMES_BLOB, text.encode())

    @property
    def admitted(self) -> frozenset[PeerId]:
        """The nodes that joined by an invite of this node."""
        return frozenset(use.node for entry in self._invites.entries() for use in entry.used)

    def find_browser(self, text: str) -> PeerId | None:
        """Return the one browser with this name, as its invite gave it; None: there is none, or several."""
        name = text.strip()
        found = [
            use.node for entry in self._invites.entries() if entry.browser == name != "" for use in entry.used
        ]
        return found[0] if len(found) == 1 else None

    def find_admitted(self, text: str) -> PeerId:
        """Return a node by its id, or by the beginning of the id of one that joined by an invite of this
        node.
        """
        browser = self.find_browser(text)
        if browser is not None:
            return browser
        found = naming.meant(text, dict.fromkeys(map(str, self.admitted), ""))
        if len(found) == 1:
            return PeerId.parse(found[0])
        if not found and len(text.strip()) == naming.ID_CHARS:
            return PeerId.parse(text)
        why = "matches several nodes" if found else "does not match a node that this one admitted"
        raise UserError(
            f"`{text[:64]}` {why}",
            hint="give the whole id, or start the daemon, which knows the names",
        )

    def _certificate_of(self, node: PeerId) -> Certificate | None:
        for entry in self._invites.entries():
            for use in entry.used:
                if use.node == node and use.certificate is not None:
                    return use.certificate
        return None

    def _ban(self, kind: BanKind, target: bytes, now: int, evidence: Certificate | None) -> None:
        signer, chain = self._membership.signer(self._key)
        is_lifted = self._bans.is_lifted(kind, target)
        if is_lifted and chain is not None:
            raise UserError(
                "the founder has lifted the ban of this " + kind,
                hint="only the founder can ban it again: run this on the node that founded the mesh",
            )
        try:
            made = ban(
                signer=signer,
                chain=chain,
                mesh=self._membership.mesh,
                kind=kind,
                target=target,
                issued_at=now,
                evidence=evidence,
                epoch=self._bans.next_epoch(kind, target, now=now) if chain is None else 0,
            )
            self._bans.add(made)
        except RemoteProtocolError as error:  # the set says no as it would to a peer's ban
            raise UserError(
                f"not banned: {error.what}", hint="run this on the node that founded the mesh"
            ) from None
        self._save_bans()


def read_role(text: str) -> Role:
    """Return a role by its name. Raises UserError."""
    try:
        return Role(text)
    except ValueError:
        raise UserError(f"there is no role `{text[:40]}`", hint=f"choose from {', '.join(Role)}") from None


def save_addresses(home: Home, candidates: Sequence[Candidate]) -> None:
    """Save the addresses of this node, for tokens that are made while it does not run."""
    home.keep_blob(ADDRESSES_BLOB, "\n".join(map(str, candidates)).encode())


def load_addresses(home: Home) -> tuple[Candidate, ...]:
    """Return what `save_addresses` stored; nothing if it never ran. Raises UserError for a damaged file."""
    blob = home.read_blob(ADDRESSES_BLOB) or b""
    return tuple(Candidate.parse(line) for line in blob.decode(errors="replace").splitlines() if line)


def _load_banned_names(home: Home) -> dict[str, str]:
    """Return the names stored with bans, by node id. Raises UserError if they cannot be read."""
    blob = home.read_blob(BANNED_NAMES_BLOB) or b""
    lines = (line.partition(" ") for line in blob.decode(errors="replace").splitlines())
    return {node: name for node, _, name in lines if naming.is_name(name)}


def ban_id(kind: BanKind, target: bytes) -> str:
    """Return the id of what is banned, as people see it elsewhere."""
    return str(PeerId(target)) if kind == "node" else target.hex()


def _joined(entry: InviteEntry, names: Mapping[PeerId, str]) -> tuple[Joined, ...]:
    return tuple(Joined(id=str(use.node), name=names.get(use.node, entry.browser)) for use in entry.used)


def _view(entry: InviteEntry, now: int, names: Mapping[PeerId, str]) -> InviteView:
    return InviteView(
        id=entry.id_text,
        roles=tuple(sorted(entry.roles)),
        created_at=entry.created_at,
        expires_at=entry.expires_at,
        uses=entry.uses,
        used=len(entry.used),
        state=entry.state(now),
        joined=_joined(entry, names)[-MAX_LISTED:],
        browser=entry.browser,
    )
