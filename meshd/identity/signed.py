"""Signed statements: a body and a signature over it, kept as received.

Certificates, bans and records are statements. The signature covers the body's bytes, and they are never
encoded anew, so that a node passes on, unharmed, fields that a later version added. Only the outer
wrapping is made here, which leaves one encoding for one statement.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import SIGNATURE_BYTES, KeyPair, PeerId, verify
from meshd.wire.message import Fields, pack, unpack


@dataclass(frozen=True, slots=True)
class Statement:
    """`signature` is over `body` under the context its kind names."""

    body: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Encode one statement."""
        return pack({"b": self.body, "s": self.signature})

    @classmethod
    def decode(cls, data: bytes, *, limit: int) -> "Statement":
        """Read the output of `encode`, at most `limit` bytes. Raises RemoteProtocolError (code `message`)."""
        fields = unpack(data, limit=limit)
        found = cls(fields.raw("b", most=limit), fields.raw("s", exact=SIGNATURE_BYTES))
        if found.encode() != data:
            raise RemoteProtocolError("a signed statement is not in its canonical encoding", code="message")
        return found

    @classmethod
    def make(cls, signer: KeyPair, context: str, body: bytes) -> "Statement":
        """Sign `body`."""
        return cls(body, signer.sign(context, body))

    def holds(self, signer: PeerId, context: str) -> bool:
        """Return True when `signer` signed it."""
        return verify(signer, context, self.body, self.signature)

    def fields(self) -> Fields:
        """Return the body's fields. Raises RemoteProtocolError (code `message`)."""
        return unpack(self.body)
