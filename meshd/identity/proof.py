"""The proof: the exchange inside every link that shows who both ends are. Sans-IO. (Being filled in.)

How a driver uses either side: send what `start` gave (dialler), then for each chunk received send what
`receive` returns, and stop when `result` is set (send first, then look). `ProofFailed.farewell` is to be
sent before closing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from meshd.base.errors import RemoteProtocolError
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Member


class Purpose(StrEnum):
    """What the link is for."""

    JOIN = "join"
    MEMBER = "member"
    RELAY = "relay"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A node's key and, if it is a member, its chain."""

    key: KeyPair
    chain: Chain | None


@dataclass(frozen=True, slots=True)
class Proven:
    """Who is at the other end. `leftover`: bytes behind the exchange, the link's first data."""

    peer: PeerId
    purpose: Purpose
    member: Member | None
    invite_id: bytes | None
    leftover: bytes


class ProofFailed(RemoteProtocolError):
    """The other side could not prove itself: send `farewell` (may be empty), then close."""

    def __init__(self, what: str, *, code: str, hint: str = "", farewell: bytes = b"") -> None:
        super().__init__(what, code=code, hint=hint)
        self.farewell = farewell


def never_banned(chain: Chain) -> str | None:
    """For tests and for joiners, who know of no bans yet."""
    return None


class DialProof:
    """The dialler's side."""

    def __init__(
        self,
        *,
        credentials: Credentials,
        mesh: MeshId,
        expect: PeerId,
        purpose: Purpose,
        binding: bytes,
        nonce: bytes,
        join: JoinKeys | None = None,
        why_banned: Callable[[Chain], str | None] = never_banned,
    ) -> None:
        raise NotImplementedError

    @property
    def result(self) -> Proven | None:
        raise NotImplementedError

    def start(self) -> bytes:
        raise NotImplementedError

    def receive(self, data: bytes) -> bytes:
        """Raises Refused (the listener said no), ProofFailed (send its farewell)."""
        raise NotImplementedError


class ListenProof:
    """The listener's side. `invites` gives the keys of an invite id, or None."""

    def __init__(
        self,
        *,
        credentials: Credentials,
        mesh: MeshId,
        binding: bytes,
        nonce: bytes,
        invites: Callable[[bytes], JoinKeys | None],
        why_banned: Callable[[Chain], str | None] = never_banned,
        why_node_banned: Callable[[PeerId], str | None] | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def result(self) -> Proven | None:
        raise NotImplementedError

    def receive(self, data: bytes) -> bytes:
        """Raises Refused (the dialler said no), ProofFailed (send its farewell)."""
        raise NotImplementedError
