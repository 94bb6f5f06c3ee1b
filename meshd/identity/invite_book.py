"""The inviter's ledger: which invites there are, and who used them. Pure. (Being filled in.)"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshd.identity.invite import JoinKeys
from meshd.identity.keys import MeshId, PeerId
from meshd.identity.membership import Certificate, Role


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an invite: `certificate` is None between reserve and certify."""

    node: PeerId
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class InviteEntry:
    """One invite. Times are unix seconds; `uses` is how many nodes it admits."""

    invite_id: bytes
    secret: bytes = field(repr=False)
    roles: frozenset[Role]
    created_at: int
    expires_at: int
    uses: int
    used: tuple[Use, ...] = ()
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`code` is `ok`, or why not: unknown, expired, used_up, revoked. `certificate`: the one given before."""

    code: str
    text: str = ""
    hint: str = ""
    entry: InviteEntry | None = None
    certificate: Certificate | None = None

    @property
    def ok(self) -> bool:
        return self.code == "ok"


class InviteBook:
    """All invites of this node in `mesh`. The caller persists it between `reserve` and the answer."""

    def __init__(self, mesh: MeshId, entries: Iterable[InviteEntry] = ()) -> None:
        self.mesh = mesh

    def create(
        self, *, secret: bytes, roles: Iterable[Role], now: int, expires_at: int, uses: int
    ) -> InviteEntry:
        raise NotImplementedError

    def reserve(self, invite_id: bytes, node: PeerId, now: int) -> Decision:
        raise NotImplementedError

    def certify(self, invite_id: bytes, node: PeerId, certificate: Certificate) -> None:
        raise NotImplementedError

    def revoke(self, invite_id: bytes) -> InviteEntry:
        raise NotImplementedError

    def entries(self) -> tuple[InviteEntry, ...]:
        raise NotImplementedError

    def get(self, invite_id: bytes) -> InviteEntry | None:
        raise NotImplementedError

    def find(self, text: str) -> InviteEntry:
        """By the start of its id in hex, as people type it. Raises UserError."""
        raise NotImplementedError

    def current(self, *, roles: Iterable[Role], now: int) -> InviteEntry | None:
        """A printed invite that is still good: valid, not used up, of these roles."""
        raise NotImplementedError

    def join_keys(self, invite_id: bytes) -> JoinKeys | None:
        """For ListenProof's `invites`."""
        raise NotImplementedError

    def match_hmac(self, invite_id: bytes, data: bytes, mac: bytes) -> InviteEntry | None:
        raise NotImplementedError

    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes) -> "InviteBook":
        raise NotImplementedError
