"""Invites: the token that is pasted, and the keys that its secret gives. Pure. (Being filled in.)"""

from dataclasses import dataclass, field

from meshd.identity.keys import MeshId, PeerId
from meshd.wire.address import Candidate


@dataclass(frozen=True, slots=True)
class RelayHint:
    """A relay: `host:port` and the 32 bytes of its public key."""

    place: str
    key: PeerId


@dataclass(frozen=True, slots=True)
class Invite:
    """What a token says. `expires_at` is unix seconds."""

    mesh: MeshId
    inviter: PeerId
    secret: bytes = field(repr=False)
    expires_at: int
    candidates: tuple[Candidate, ...] = ()
    relays: tuple[RelayHint, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinKeys:
    """What the secret of an invite gives (HKDF-SHA256, RFC 5869)."""

    join_key: bytes = field(repr=False)
    mailbox: bytes
    invite_id: bytes
    ice_user: str
    ice_password: str = field(repr=False)


def encode_token(invite: Invite) -> str:
    """One word of at most 300 characters."""
    raise NotImplementedError


def parse_token(text: str) -> Invite:
    """Read a token as people paste it. Raises UserError."""
    raise NotImplementedError


def derive(secret: bytes) -> JoinKeys:
    """The keys of an invite."""
    raise NotImplementedError
