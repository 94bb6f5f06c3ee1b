"""The inviter's ledger: its invites, and the nodes that used them. Pure.

This order makes crashes harmless: `reserve`, persist, `certify`, persist, answer. A key that returns gets the
same certificate again and never counts twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.identity.invite import INVITE_SECRET_BYTES, JoinKeys, derive, expired_text
from meshd.identity.keys import KEY_BYTES, MeshId, PeerId
from meshd.identity.membership import MAX_CERTIFICATE_BYTES, Certificate, Role, read_roles
from meshd.wire.limits import MAX_NAME_BYTES, MAX_TIME
from meshd.wire.message import Fields, Value, pack, unpack

MAX_INVITES = 256
MAX_USES = 1000
MAX_INVITE_BOOK_BYTES = 32 << 20
KEEP_EXPIRED_SECONDS = 30 * 86400  # so that a late joiner hears "expired", not "unknown"
CLOCK_SET_BACK_SECONDS = 86400  # a clock that was corrected by more was wrong when the invite was made

NEW_INVITE = "ask for a new one: `meshd invite` on a machine of that mesh"


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an invite: `certificate` is None between reserve and certify."""

    node: PeerId
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class InviteEntry:
    """One invite. Times are unix seconds; `uses` is how many nodes it admits.

    `printed`: it is the one that `worker` and `serve` print, not one that `meshd invite` made. `browser`: the
    name of the browser that it is for; empty if it is for nodes.
    """

    invite_id: bytes
    secret: bytes = field(repr=False)
    roles: frozenset[Role]
    created_at: int
    expires_at: int
    uses: int
    used: tuple[Use, ...] = ()
    revoked: bool = False
    printed: bool = False
    browser: str = ""

    @property
    def id_text(self) -> str:
        """The id as people see and type it: 16 hexadecimal digits."""
        return self.invite_id.hex()

    @property
    def left(self) -> int:
        """The number of nodes that it may still admit (if it is valid)."""
        return self.uses - len(self.used)

    def state(self, now: int) -> str:
        """Return `valid`, `revoked`, `used_up` or `expired`."""
        if self.revoked:
            return "revoked"
        if self.left <= 0:
            return "used_up"
        return "expired" if now >= self.expires_at or self.is_of_the_future(now) else "valid"

    def is_of_the_future(self, now: int) -> bool:
        """Return True if the clock was far ahead when this was made: it would be valid until that date."""
        return now < self.created_at - CLOCK_SET_BACK_SECONDS


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a join: `code` is `ok`, or why not: unknown, expired, used_up, revoked.

    `certificate` is the one that this node was given before: it gets the same again.
    """

    code: str
    text: str = ""
    hint: str = ""
    entry: InviteEntry | None = None
    certificate: Certificate | None = None

    @property
    def ok(self) -> bool:
        """True when the node may be certified."""
        return self.code == "ok"


class InviteBook:
    """All invites of this node in `mesh`. The caller persists it between `reserve` and the answer."""

    def __init__(self, mesh: MeshId, entries: Iterable[InviteEntry] = ()) -> None:
        self.mesh = mesh
        self._entries = {entry.invite_id: entry for entry in entries}
        self._keys: dict[bytes, JoinKeys] = {}

    def create(
        self,
        *,
        secret: bytes,
        roles: Iterable[Role],
        now: int,
        expires_at: int,
        uses: int,
        printed: bool = False,
        browser: str = "",
    ) -> InviteEntry:
        """Create an invite; `secret` is 16 random bytes. Raises UserError for limits out of range."""
        # Check the limits.
        wanted = frozenset(roles)
        if not wanted:
            raise UserError("an invite must grant at least one role", hint=f"choose from {', '.join(Role)}")
        if not 1 <= uses <= MAX_USES:
            raise UserError(
                f"an invite cannot have `{uses}` uses", hint=f"give a number between 1 and {MAX_USES}"
            )
        if not now < expires_at <= MAX_TIME:
            raise UserError(
                "an invite must expire in the future", hint="give a duration, such as `--expires 24h`"
            )
        # Make room: drop invites that expired long ago.
        for entry in list(self._entries.values()):
            returns = entry.browser and entry.used and not entry.revoked  # by the invite's keys
            if now >= entry.expires_at + KEEP_EXPIRED_SECONDS and not returns:
                del self._entries[entry.invite_id]
        if len(self._entries) >= MAX_INVITES:
            raise UserError(
                f"there are already {MAX_INVITES} invites, which is the maximum",
                hint="create one invite with more uses; invites are deleted 30 days after they expire",
            )
        entry = InviteEntry(
            derive(secret).invite_id,
            secret,
            wanted,
            now,
            expires_at,
            uses,
            printed=printed,
            browser=browser,
        )
        self._entries[entry.invite_id] = entry
        return entry

    def reserve(self, invite_id: bytes, node: PeerId, now: int) -> Decision:
        """Count `node` in, or return why not. A node that was counted before is always let in again.

        That holds after the invite expired, too (a crash in between costs nothing), but not after it was
        revoked.
        """
        entry = self._entries.get(invite_id)
        if entry is None:
            return Decision("unknown", "this invite is unknown here", NEW_INVITE)
        if entry.revoked:
            return Decision("revoked", "this invite was revoked", NEW_INVITE, entry)
        for use in entry.used:
            if use.node == node:
                return Decision("ok", entry=entry, certificate=use.certificate)
        if entry.left <= 0:
            times = "once" if entry.uses == 1 else f"{entry.uses} times"
            return Decision("used_up", f"this invite was valid {times} and is used up", NEW_INVITE, entry)
        if now >= entry.expires_at:
            return Decision(
                "expired", f"this invite {expired_text(entry.expires_at, now)}", NEW_INVITE, entry
            )
        if entry.is_of_the_future(now):
            why = "this invite has expired: it was made before its machine's clock was set back"
            return Decision("expired", why, NEW_INVITE, entry)
        entry = replace(entry, used=(*entry.used, Use(node, None)))
        self._entries[invite_id] = entry
        return Decision("ok", entry=entry)

    def certify(self, invite_id: bytes, node: PeerId, certificate: Certificate) -> None:
        """Store a reserved node's certificate. Raises LocalProtocolError without an open reservation."""
        entry = self._entries.get(invite_id)
        if entry is None or certificate.node != node or certificate.invite != invite_id:
            raise LocalProtocolError("the certificate does not belong to a reservation")
        used = tuple(Use(node, certificate) if use == Use(node, None) else use for use in entry.used)
        if used == entry.used:
            raise LocalProtocolError("certified without an open reservation")
        self._entries[invite_id] = replace(entry, used=used)

    def revoke(self, invite_id: bytes) -> InviteEntry:
        """Revoke an invite for new nodes (a ban of its id ends those who joined). Raises UserError if
        unknown.
        """
        entry = self._entries.get(invite_id)
        if entry is None:
            raise UserError(
                f"no invite `{invite_id.hex()}`", hint="run `meshd invite ls` to list the invites"
            )
        entry = replace(entry, revoked=True)
        self._entries[invite_id] = entry
        return entry

    def forget(self, invite_id: bytes) -> None:
        """Delete an invite that nobody has received."""
        self._entries.pop(invite_id, None)

    def entries(self) -> tuple[InviteEntry, ...]:
        """Return all kept invites, the oldest first."""
        return tuple(sorted(self._entries.values(), key=lambda entry: (entry.created_at, entry.invite_id)))

    def get(self, invite_id: bytes) -> InviteEntry | None:
        """Return the invite with this id, or None."""
        return self._entries.get(invite_id)

    def find(self, text: str) -> InviteEntry:
        """Return the invite whose id begins with `text`, as people type it. Raises UserError."""
        start = text.strip().lower()
        found = [entry for entry in self._entries.values() if start and entry.id_text.startswith(start)]
        if len(found) == 1:
            return found[0]
        why = "matches several invites" if found else "matches no invite"
        raise UserError(f"`{text[:64]}` {why}", hint="run `meshd invite ls` to list the invites")

    def current(self, *, roles: Iterable[Role], now: int) -> InviteEntry | None:
        """Return the newest printed invite of exactly these roles that is still valid."""
        wanted = frozenset(roles)
        good = (
            entry
            for entry in reversed(self.entries())
            if entry.printed and entry.roles == wanted and entry.state(now) == "valid"
        )
        return next(good, None)

    def join_keys(self, invite_id: bytes) -> JoinKeys | None:
        """Return the keys of an invite for ListenProof. Ended invites are found, too: their bearer learns
        what is wrong.
        """
        entry = self._entries.get(invite_id)
        if entry is None:
            return None
        if invite_id not in self._keys:
            self._keys[invite_id] = derive(entry.secret)
        return self._keys[invite_id]

    def browser_keys(self, invite_id: bytes) -> JoinKeys | None:
        """Return the keys of an invite for browsers, as `join_keys`."""
        entry = self._entries.get(invite_id)
        return self.join_keys(invite_id) if entry is not None and entry.browser else None

    def awaits_browsers(self, now: int) -> bool:
        """Return True if a browser may come by one of these invites, for the first time or again."""
        return any(
            entry.browser and not entry.revoked and (entry.used or entry.state(now) == "valid")
            for entry in self._entries.values()
        )

    def encode(self) -> bytes:
        """Encode the book for the key store: it holds secrets."""
        entries: list[Value] = [_pack_entry(entry) for entry in self.entries()]
        return pack({"mesh": self.mesh.raw, "entries": entries})

    @classmethod
    def decode(cls, data: bytes) -> "InviteBook":
        """Read the output of `encode`. Raises RemoteProtocolError."""
        fields = unpack(data, limit=MAX_INVITE_BOOK_BYTES)
        mesh = MeshId(fields.raw("mesh", exact=KEY_BYTES))
        return cls(mesh, (_read_entry(item) for item in fields.maps("entries", count=MAX_INVITES)))


def _pack_entry(entry: InviteEntry) -> Value:
    used: list[Value] = [
        {"node": use.node.raw, "cert": use.certificate.encode() if use.certificate else b""}
        for use in entry.used
    ]
    return {
        "secret": entry.secret,
        "roles": sorted(entry.roles),
        "created": entry.created_at,
        "expires": entry.expires_at,
        "uses": entry.uses,
        "used": used,
        "revoked": entry.revoked,
        "printed": entry.printed,
        "browser": entry.browser,
    }


def _read_entry(fields: Fields) -> InviteEntry:
    secret = fields.raw("secret", exact=INVITE_SECRET_BYTES)
    uses = fields.number("uses", low=1, high=MAX_USES)
    return InviteEntry(
        invite_id=derive(secret).invite_id,
        secret=secret,
        roles=read_roles(fields, "roles"),
        created_at=fields.number("created", low=0, high=MAX_TIME),
        expires_at=fields.number("expires", low=0, high=MAX_TIME),
        uses=uses,
        used=tuple(_read_use(item) for item in fields.maps("used", count=uses)),
        revoked=fields.flag("revoked"),
        printed=fields.flag("printed", default=False),
        browser=fields.text("browser", most=MAX_NAME_BYTES, default=""),
    )


def _read_use(fields: Fields) -> Use:
    node = PeerId(fields.raw("node", exact=KEY_BYTES))
    raw = fields.raw("cert", most=MAX_CERTIFICATE_BYTES)
    certificate = Certificate.decode(raw) if raw else None
    if certificate is not None and certificate.node != node:
        raise RemoteProtocolError("a use with another node's certificate", code="message")
    return Use(node, certificate)
