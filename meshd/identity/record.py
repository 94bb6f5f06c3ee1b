"""Records, signs of life, reports of absence: what a node signs about itself and others. Pure.

A record is a node's statement about itself, which others forward. Which of two records of one node is newer
is decided by its sequence number, which the node persists: clocks lie. A record carries the node's chain, so
that a node that got it from another can check membership.

A sign of life is small enough for all nodes of a large mesh to receive all of them. It has 108 bytes: node,
sequence number of its record, a count that goes up, signature. The pair (sequence, count) orders them; clocks
do not. A new one shows that the node was there after the last one.

A report of absence is made by a node that should have a session with a member but has none. It has 140 bytes:
the node, the sequence number and count of its last sign of life, who says so, and the signature. It holds
against that sign of life alone: a later one, or a newer record, refutes it.
"""

import functools
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.keys import KEY_BYTES, SIGNATURE_BYTES, KeyPair, MeshId, PeerId, verify
from meshd.identity.membership import Chain, Member, Statement, check_chain
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates
from meshd.wire.limits import MAX_CHAIN_BYTES, MAX_NAME_BYTES, MAX_RECORD_BYTES, MAX_SEQUENCE
from meshd.wire.message import Fields, pack
from meshd.wire.news import AWAY_BYTES, PRESENCE_BYTES

MAX_RELAYS = 4
MAX_RELAY_BYTES = 300
MAX_CAPABILITIES = 32
MAX_CAPABILITY_BYTES = 256
KEPT_RECORDS = 512  # as they were read; 4 KiB each at most

PAUSED_MARK = "paused"  # capability of a node that lends nothing for now, whose value says why:
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}", re.ASCII)
VERSION_MARK = "meshd"  # capability whose value is the node's version of meshd
BY_USER, BY_FETCH = "1", "fetching"
LEFT = MappingProxyType({"left": "1"})  # capabilities of the last record of a node that leaves the mesh

_CONTEXT = "meshd record v1"

_PRESENCE_HEAD = struct.Struct(">32sQI")


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """Made by `sign` and `decode` only. `role` is for display (`worker`, `serve`), not a right."""

    peer: PeerId
    mesh: MeshId
    name: str
    role: str
    sequence: int
    candidates: tuple[Candidate, ...]
    relays: tuple[str, ...]
    capabilities: Mapping[str, str] = field(hash=False)
    chain: Chain = field(repr=False)
    statement: Statement = field(repr=False)

    @property
    def has_left(self) -> bool:
        """True if it is the node's last word: kept and forwarded, so that older ones do not bring the node
        back.
        """
        return "left" in self.capabilities

    @property
    def software(self) -> str:
        """The node's version of meshd; empty: unknown."""
        version = self.capabilities.get(VERSION_MARK, "")
        return version if _VERSION.fullmatch(version) else ""  # it is shown to users

    @property
    def is_paused(self) -> bool:
        """True if it lends nothing for now: its user has paused it, or it is fetching a model."""
        return PAUSED_MARK in self.capabilities

    @property
    def is_fetching(self) -> bool:
        """True if it lends nothing before its models are here."""
        return self.capabilities.get(PAUSED_MARK) == BY_FETCH

    def encode(self) -> bytes:
        """Return at most 4 KiB."""
        return self.statement.encode()

    @classmethod
    def sign(
        cls,
        key: KeyPair,
        *,
        chain: Chain,
        name: str,
        role: str,
        sequence: int,
        candidates: tuple[Candidate, ...] = (),
        relays: tuple[str, ...] = (),
        capabilities: Mapping[str, str] = MappingProxyType({}),
    ) -> "PeerRecord":
        """Sign a record of `key`'s node. Raises LocalProtocolError when it breaks a limit."""
        body = pack(
            {
                "peer": key.peer.raw,
                "mesh": chain.leaf.mesh.raw,
                "name": name,
                "role": role,
                "seq": sequence,
                "at": pack_candidates(candidates),
                "relays": list(relays),
                "caps": dict(sorted(capabilities.items())),
                "chain": chain.encode(),
            }
        )
        try:
            return cls.decode(Statement.make(key, _CONTEXT, body).encode())
        except RemoteProtocolError as error:
            raise LocalProtocolError(f"record cannot be made: {error}") from error

    @classmethod
    def decode(cls, data: bytes) -> "PeerRecord":
        """Read the output of `encode`; nothing is proven before `verify`. Raises RemoteProtocolError."""
        return _read(data)

    def verify(self, mesh: MeshId) -> Member:
        """Return the member that signed it. Raises RemoteProtocolError (code `record` or `chain`).

        Bans are not checked: ask the RevocationSet with `chain`.
        """
        if self.mesh != mesh:
            raise RemoteProtocolError("a record of another mesh", code="record")
        if not self.statement.holds(self.peer, _CONTEXT):
            raise RemoteProtocolError("a record's signature is wrong", code="record")
        return check_chain(self.chain, mesh, self.peer)


@functools.lru_cache(maxsize=KEPT_RECORDS)
def _read(data: bytes) -> PeerRecord:
    """Decode a record. Cached: every session of a large mesh begins with all records, most of which are
    known.
    """
    statement = Statement.decode(data, limit=MAX_RECORD_BYTES)
    fields = statement.fields()
    return PeerRecord(
        peer=PeerId(fields.raw("peer", exact=KEY_BYTES)),
        mesh=MeshId(fields.raw("mesh", exact=KEY_BYTES)),
        name=fields.text("name", most=MAX_NAME_BYTES),
        role=fields.text("role", most=MAX_NAME_BYTES),
        sequence=fields.number("seq", low=0, high=MAX_SEQUENCE),
        candidates=unpack_candidates(fields.raw("at", most=MAX_RECORD_BYTES)),
        relays=fields.texts("relays", most=MAX_RELAY_BYTES, count=MAX_RELAYS),
        capabilities=_capabilities(fields.map("caps")),
        chain=Chain.decode(fields.raw("chain", most=MAX_CHAIN_BYTES)),
        statement=statement,
    )


def _capabilities(fields: Fields) -> Mapping[str, str]:
    names = fields.names()
    if len(names) > MAX_CAPABILITIES:
        raise RemoteProtocolError(f"a record has more than {MAX_CAPABILITIES} capabilities", code="message")
    for name in names:
        if not name.isprintable() or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            raise RemoteProtocolError("a capability's name is too long or unprintable", code="message")
    return MappingProxyType({name: fields.text(name, most=MAX_CAPABILITY_BYTES) for name in names})


assert _PRESENCE_HEAD.size + SIGNATURE_BYTES == PRESENCE_BYTES


_PRESENCE_CONTEXT = "meshd presence v1"


_AWAY_HEAD = struct.Struct(">32sQI32s")


assert _AWAY_HEAD.size + SIGNATURE_BYTES == AWAY_BYTES


_AWAY_CONTEXT = "meshd away v1"


@dataclass(frozen=True, slots=True)
class Presence:
    """`signature` is over the mesh and the fields before it."""

    peer: PeerId
    sequence: int
    count: int
    signature: bytes

    @classmethod
    def sign(cls, key: KeyPair, *, mesh: MeshId, sequence: int, count: int) -> "Presence":
        """Sign a sign of life of this node."""
        head = _PRESENCE_HEAD.pack(key.peer.raw, sequence, count)
        return cls(key.peer, sequence, count, key.sign(_PRESENCE_CONTEXT, mesh.raw + head))

    @property
    def order(self) -> tuple[int, int]:
        """The order among one node's signs of life: the greater is the newer."""
        return self.sequence, self.count

    def holds(self, mesh: MeshId) -> bool:
        """Return True when the node itself signed it for this mesh."""
        head = _PRESENCE_HEAD.pack(self.peer.raw, self.sequence, self.count)
        return verify(self.peer, _PRESENCE_CONTEXT, mesh.raw + head, self.signature)

    def to_bytes(self) -> bytes:
        """Return 108 bytes."""
        return _PRESENCE_HEAD.pack(self.peer.raw, self.sequence, self.count) + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> "Presence":
        """Decode a sign of life; nothing is verified. Raises RemoteProtocolError (code `message`)."""
        if len(data) != PRESENCE_BYTES:
            raise RemoteProtocolError(f"a sign of life has {len(data)} bytes", code="message")
        peer, sequence, count = _PRESENCE_HEAD.unpack_from(data)
        if sequence > MAX_SEQUENCE:
            raise RemoteProtocolError("the sequence number of a sign of life is out of range", code="message")
        return cls(PeerId(peer), sequence, count, data[_PRESENCE_HEAD.size :])


@dataclass(frozen=True, slots=True)
class Away:
    """`signature` is the reporter's, over the mesh and the fields before it."""

    peer: PeerId
    sequence: int
    count: int
    reporter: PeerId
    signature: bytes

    @classmethod
    def sign(cls, key: KeyPair, *, mesh: MeshId, peer: PeerId, order: tuple[int, int]) -> "Away":
        """Sign a statement by this node; `order` is that of the last sign of life of `peer`."""
        head = _AWAY_HEAD.pack(peer.raw, *order, key.peer.raw)
        return cls(peer, *order, key.peer, key.sign(_AWAY_CONTEXT, mesh.raw + head))

    @property
    def order(self) -> tuple[int, int]:
        """The order of the sign of life that the statement contradicts."""
        return self.sequence, self.count

    def _head(self) -> bytes:
        return _AWAY_HEAD.pack(self.peer.raw, self.sequence, self.count, self.reporter.raw)

    def holds(self, mesh: MeshId) -> bool:
        """Return True when the reporter signed it for this mesh."""
        return verify(self.reporter, _AWAY_CONTEXT, mesh.raw + self._head(), self.signature)

    def to_bytes(self) -> bytes:
        """Return 140 bytes."""
        return self._head() + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> "Away":
        """Decode the statement; nothing is verified. Raises RemoteProtocolError (code `message`)."""
        if len(data) != AWAY_BYTES:
            raise RemoteProtocolError(f"a statement of absence has {len(data)} bytes", code="message")
        peer, sequence, count, reporter = _AWAY_HEAD.unpack_from(data)
        if sequence > MAX_SEQUENCE:
            raise RemoteProtocolError("a number in a statement of absence is out of range", code="message")
        return cls(PeerId(peer), sequence, count, PeerId(reporter), data[_AWAY_HEAD.size :])
