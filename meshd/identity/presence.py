"""Signs of life: signed statements, small enough for all nodes of a large mesh to receive all of them. Pure.

108 bytes: node, sequence number of its record, a count that goes up, signature. The pair (sequence, count)
orders them; clocks do not. A new one shows that the node was there after the last one.

Statements that a member is away, made by a node that should have a session with it but has none.

140 bytes: the node, the sequence number and count of its last sign of life, who says so, and the signature.
It holds against that sign of life alone: a later one, or a newer record, refutes it.
"""

import struct
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import SIGNATURE_BYTES, KeyPair, MeshId, PeerId, verify
from meshd.wire.limits import MAX_SEQUENCE
from meshd.wire.news import AWAY_BYTES, PRESENCE_BYTES

_HEAD = struct.Struct(">32sQI")
assert _HEAD.size + SIGNATURE_BYTES == PRESENCE_BYTES
_CONTEXT = "meshd presence v1"
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
        head = _HEAD.pack(key.peer.raw, sequence, count)
        return cls(key.peer, sequence, count, key.sign(_CONTEXT, mesh.raw + head))

    @property
    def order(self) -> tuple[int, int]:
        """The order among one node's signs of life: the greater is the newer."""
        return self.sequence, self.count

    def holds(self, mesh: MeshId) -> bool:
        """Return True when the node itself signed it for this mesh."""
        head = _HEAD.pack(self.peer.raw, self.sequence, self.count)
        return verify(self.peer, _CONTEXT, mesh.raw + head, self.signature)

    def to_bytes(self) -> bytes:
        """Return 108 bytes."""
        return _HEAD.pack(self.peer.raw, self.sequence, self.count) + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> "Presence":
        """Decode a sign of life; nothing is verified. Raises RemoteProtocolError (code `message`)."""
        if len(data) != PRESENCE_BYTES:
            raise RemoteProtocolError(f"a sign of life has {len(data)} bytes", code="message")
        peer, sequence, count = _HEAD.unpack_from(data)
        if sequence > MAX_SEQUENCE:
            raise RemoteProtocolError("the sequence number of a sign of life is out of range", code="message")
        return cls(PeerId(peer), sequence, count, data[_HEAD.size :])


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
