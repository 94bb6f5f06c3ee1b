"""Statements that a member is away, made by a node that should have a session with it but has none.

140 bytes: the node, the sequence number and count of its last sign of life, who says so, and the signature.
It holds against that sign of life alone: a later one (identity/presence.py, or a newer record) refutes it.
"""

import struct
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import SIGNATURE_BYTES, KeyPair, MeshId, PeerId, verify
from meshd.wire.limits import MAX_SEQUENCE
from meshd.wire.news import AWAY_BYTES

_HEAD = struct.Struct(">32sQI32s")
assert _HEAD.size + SIGNATURE_BYTES == AWAY_BYTES
_CONTEXT = "meshd away v1"


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
        head = _HEAD.pack(peer.raw, *order, key.peer.raw)
        return cls(peer, *order, key.peer, key.sign(_CONTEXT, mesh.raw + head))

    @property
    def order(self) -> tuple[int, int]:
        """The order of the sign of life that the statement contradicts."""
        return self.sequence, self.count

    def _head(self) -> bytes:
        return _HEAD.pack(self.peer.raw, self.sequence, self.count, self.reporter.raw)

    def holds(self, mesh: MeshId) -> bool:
        """Return True when the reporter signed it for this mesh."""
        return verify(self.reporter, _CONTEXT, mesh.raw + self._head(), self.signature)

    def to_bytes(self) -> bytes:
        """Return 140 bytes."""
        return self._head() + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> "Away":
        """Decode the statement; nothing is verified. Raises RemoteProtocolError (code `message`)."""
        if len(data) != AWAY_BYTES:
            raise RemoteProtocolError(f"a statement of absence has {len(data)} bytes", code="message")
        peer, sequence, count, reporter = _HEAD.unpack_from(data)
        if sequence > MAX_SEQUENCE:
            raise RemoteProtocolError("a number in a statement of absence is out of range", code="message")
        return cls(PeerId(peer), sequence, count, PeerId(reporter), data[_HEAD.size :])
