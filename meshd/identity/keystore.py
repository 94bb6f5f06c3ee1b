"""The home of a node: keys, membership, invites and bans as files. (Being filled in.)"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from meshd.identity.invite_book import InviteBook
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain
from meshd.identity.revocation import RevocationSet


@dataclass(frozen=True, slots=True)
class Membership:
    """This node's place in a mesh. `root_seed` is there at the founder (or after `mesh import`) only."""

    mesh: MeshId
    chain: Chain
    inviter: PeerId | None = None
    root_seed: bytes | None = field(default=None, repr=False)

    @property
    def root(self) -> PeerId:
        return self.chain.root

    @property
    def root_key(self) -> KeyPair | None:
        raise NotImplementedError


class Home:
    """The folder of one node's state. Nothing is made before the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lock(self) -> AbstractContextManager[None]:
        """Held by the one daemon (or verb) that uses this home. Raises UserError naming the holder's pid."""
        raise NotImplementedError

    def load_or_create_identity(self) -> KeyPair:
        raise NotImplementedError

    def reset_identity(self, *, now: int) -> KeyPair:
        raise NotImplementedError

    def load_membership(self) -> Membership | None:
        raise NotImplementedError

    def save_membership(self, membership: Membership) -> None:
        raise NotImplementedError

    def found_mesh(self, *, now: int, random: Callable[[int], bytes]) -> Membership:
        raise NotImplementedError

    def load_invites(self, mesh: MeshId) -> InviteBook:
        raise NotImplementedError

    def save_invites(self, book: InviteBook) -> None:
        raise NotImplementedError

    def load_revocations(self, mesh: MeshId) -> RevocationSet:
        raise NotImplementedError

    def save_revocations(self, revocations: RevocationSet) -> None:
        raise NotImplementedError

    def read_blob(self, name: str) -> bytes | None:
        raise NotImplementedError

    def write_blob(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    def remove_blob(self, name: str) -> None:
        raise NotImplementedError

    def next_incarnation(self) -> bytes:
        """16 bytes, greater at each call: an 8-byte count, then chance (a copied home differs)."""
        raise NotImplementedError

    def next_sequence(self) -> int:
        """A number for this node's next record, greater at each call."""
        raise NotImplementedError

    def leave(self, *, drop_root: bool = False) -> None:
        """Forget the mesh, its invites and bans. Raises UserError at a founder unless `drop_root`."""
        raise NotImplementedError

    def export_root(self) -> str:
        raise NotImplementedError

    def import_root(self, text: str, *, now: int, random: Callable[[int], bytes]) -> Membership:
        raise NotImplementedError
