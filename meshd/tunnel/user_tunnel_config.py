"""The services that users have exposed and opened, as values and as the bytes that outlive a restart. Pure.

Names of users' services live in a space of their own: on the wire they are metadata of the one service
`tunnel`, so that none can take the place of a service of meshd (`rpc`, `lease`, `news`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from meshd.base.errors import UserError
from meshd.identity.keys import PeerId
from meshd.wire.bounds import NEEDED, As, Between, Items, NodeId, Text
from meshd.wire.codec import Message, decode_as

MAX_EXPOSED = 64
MAX_OPENED = 64
MAX_ALLOWED_PEERS = 64  # named for one service
MAX_HOST = 253  # a DNS name (RFC 1035)
MAX_TUNNELS_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ServiceName = Annotated[str, Text(64, pattern=_NAME)]
_Host = Annotated[str, Text(MAX_HOST)]
_Peer = Annotated[PeerId, As(NodeId, attrgetter("raw"), PeerId)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A local TCP service, and the nodes that may reach it: nobody else, and nobody when there are none."""

    name: _ServiceName
    host: _Host
    port: Annotated[int, Between(1, 65535)]
    peers: Annotated[tuple[_Peer, ...], Items(MAX_ALLOWED_PEERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A peer's service as a listener here. `port` 0: any free one, which is then kept."""

    peer: _Peer
    service: _ServiceName
    host: _Host
    port: Annotated[int, Between(0, 65535)]


@dataclass(frozen=True, slots=True)
class Kept(Message):
    """All exposed services and open tunnels, in the order in which they were made."""

    exposed: Annotated[tuple[Exposed, ...], Items(MAX_EXPOSED), NEEDED] = ()
    opened: Annotated[tuple[Opened, ...], Items(MAX_OPENED), NEEDED] = ()

    @classmethod
    def decode(cls, data: bytes) -> "Kept":
        """Read the output of `encode`. Raises RemoteProtocolError."""
        return decode_as(cls, data, limit=MAX_TUNNELS_BYTES)


def is_name(text: object) -> bool:
    """Return True if a service may have this name."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """Return `text`. Raises UserError when no service can have this name."""
    if not is_name(text):
        raise UserError(
            f"`{text[:80]}` cannot be the name of a service",
            hint="use 1 to 63 letters, digits, dots, hyphens or underscores",
        )
    return text


def unique(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return each once, in order. Raises UserError when there are too many."""
    named = tuple(dict.fromkeys(peers))
    if len(named) > MAX_ALLOWED_PEERS:
        raise UserError(f"a service can be exposed to {MAX_ALLOWED_PEERS} nodes, not to {len(named)}")
    return named
