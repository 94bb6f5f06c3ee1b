"""What users have exposed and opened, as values and as the bytes that outlive a restart. Pure.

Names of users' services live in a space of their own: on the wire they are metadata of the one service
`tunnel`, so that none can take the place of a service of meshd (`rpc`, `lease`, `news`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError, UserError
from meshd.identity.keys import KEY_BYTES, PeerId
from meshd.wire.message import Fields, Value, pack, unpack

MAX_EXPOSED = 64
MAX_OPENED = 64
MAX_ALLOWED_PEERS = 64  # named for one service
MAX_HOST = 253  # a DNS name (RFC 1035)
MAX_TUNNELS_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A local TCP service, and the nodes that may reach it: nobody else, and nobody when there are none."""

    name: str
    host: str
    port: int
    peers: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A peer's service as a listener here. `port` 0: any free one, which is then kept."""

    peer: PeerId
    service: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Kept:
    """All of it, in the order in which it was made."""

    exposed: tuple[Exposed, ...] = ()
    opened: tuple[Opened, ...] = ()

    def encode(self) -> bytes:
        """For the home's blob."""
        exposed: list[Value] = [
            {"name": one.name, "host": one.host, "port": one.port, "peers": [peer.raw for peer in one.peers]}
            for one in self.exposed
        ]
        opened: list[Value] = [
            {"peer": one.peer.raw, "service": one.service, "host": one.host, "port": one.port}
            for one in self.opened
        ]
        return pack({"exposed": exposed, "opened": opened})

    @classmethod
    def decode(cls, data: bytes) -> "Kept":
        """Read what `encode` gave. Raises RemoteProtocolError."""
        fields = unpack(data, limit=MAX_TUNNELS_BYTES)
        return cls(
            tuple(map(_exposed, fields.maps("exposed", count=MAX_EXPOSED))),
            tuple(map(_opened, fields.maps("opened", count=MAX_OPENED))),
        )


def _exposed(fields: Fields) -> Exposed:
    peers = fields.raws("peers", most=KEY_BYTES, count=MAX_ALLOWED_PEERS)
    if any(len(peer) != KEY_BYTES for peer in peers):
        raise RemoteProtocolError("field `peers` must be node ids", code="message")
    return Exposed(
        name=_named(fields, "name"),
        host=fields.text("host", most=MAX_HOST),
        port=fields.number("port", low=1, high=65535),
        peers=tuple(map(PeerId, peers)),
    )


def _opened(fields: Fields) -> Opened:
    return Opened(
        peer=PeerId(fields.raw("peer", exact=KEY_BYTES)),
        service=_named(fields, "service"),
        host=fields.text("host", most=MAX_HOST),
        port=fields.number("port", low=0, high=65535),
    )


def _named(fields: Fields, name: str) -> str:
    text = fields.text(name, most=64)
    if not is_name(text):
        raise RemoteProtocolError(f"field `{name}` must be the name of a service", code="message")
    return text


def is_name(text: object) -> bool:
    """Whether a service may be called so."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """`text`. Raises UserError when no service can be called so."""
    if not is_name(text):
        raise UserError(
            f"`{text[:80]}` cannot be the name of a service",
            hint="use 1 to 63 letters, digits, dots, hyphens or underscores",
        )
    return text


def unique(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Each once, in order. Raises UserError when there are too many."""
    named = tuple(dict.fromkeys(peers))
    if len(named) > MAX_ALLOWED_PEERS:
        raise UserError(f"a service can be exposed to {MAX_ALLOWED_PEERS} nodes, not to {len(named)}")
    return named
