"""Revocation: a grow-only set of signed bans of node keys and of invites. Pure. (Being filled in.)"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Certificate, Chain

BanKind = Literal["node", "invite"]


@dataclass(frozen=True, slots=True)
class Ban:
    """`issuer` bans a node key (32 bytes) or an invite id (8 bytes)."""

    mesh: MeshId
    kind: BanKind
    target: bytes
    issuer: PeerId
    issuer_chain: Chain | None  # None: the root itself
    issued_at: int

    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes) -> "Ban":
        raise NotImplementedError


def ban(
    *,
    signer: KeyPair,
    chain: Chain | None,
    mesh: MeshId,
    kind: BanKind,
    target: bytes,
    issued_at: int,
    evidence: Certificate | None = None,
) -> Ban:
    """A ban by `signer`; `chain` is the signer's own, None when it signs with the root's key."""
    raise NotImplementedError


class RevocationSet:
    """All bans of one mesh that are known here."""

    def __init__(self, mesh: MeshId) -> None:
        self.mesh = mesh

    def add(self, ban: Ban) -> bool:
        raise NotImplementedError

    def merge(self, entries: Iterable[bytes]) -> int:
        raise NotImplementedError

    def entries(self) -> tuple[bytes, ...]:
        raise NotImplementedError

    def digest(self) -> bytes:
        raise NotImplementedError

    @property
    def epoch(self) -> int:
        raise NotImplementedError

    def why_banned(self, chain: Chain) -> str | None:
        raise NotImplementedError

    def why_node_banned(self, node: PeerId, *, issuer: PeerId | None = None) -> str | None:
        raise NotImplementedError
