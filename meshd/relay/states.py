"""The switchboard's state of nodes, circuits and mailboxes, and its actions for the server. Pure."""

from collections import deque
from dataclasses import dataclass, field

from meshd.wire.relay import FromRelay


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node: its key and, unless it is a guest, its mesh (empty for guests)."""

    peer: bytes
    mesh: bytes

    @property
    def is_guest(self) -> bool:
        return not self.mesh


@dataclass(frozen=True, slots=True)
class Tell:
    """Send `message` to that client."""

    client: int
    message: FromRelay


@dataclass(frozen=True, slots=True)
class Drop:
    """Close that client's control connection."""

    client: int


@dataclass(frozen=True, slots=True)
class Cut:
    """End that circuit."""

    circuit: int


Action = Tell | Drop | Cut


@dataclass(slots=True)
class ConnectedNode:
    """One control connection."""

    who: NodeIdentity
    host: str
    since: float
    strikes: int = 0


@dataclass(slots=True)
class Circuit:
    """Two tickets, then two connections. `join` circuits are held to few bytes and seconds."""

    number: int
    caller: NodeIdentity
    callee: NodeIdentity
    tickets: tuple[bytes, bytes]  # of the caller, of the callee
    since: float
    box: bytes = b""
    came: set[int] = field(default_factory=set)
    answered: int = 0  # bytes of the callee

    @property
    def is_join(self) -> bool:
        return bool(self.box)


@dataclass(slots=True)
class Box:
    """A mailbox that a member opened."""

    owner: NodeIdentity
    until: float
    guests: deque[bytes]
    joins: int = 0
