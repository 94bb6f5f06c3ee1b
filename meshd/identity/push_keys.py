"""The keys with which two mesh-servers seal what they exchange past their daemons.

The secret is as random as a key, new for each connection, and has crossed only a stream between two proven
members. Each direction has a key of its own.
"""

import hmac
from dataclasses import dataclass, field
from typing import Self

from meshd.base.errors import LocalProtocolError

PUSH_SECRET_BYTES = 32
PUSH_TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class PushKeys:
    """The keys of one connection, 32 bytes each: for what its opener sends, and for what the other sends."""

    opener: bytes = field(repr=False)
    other: bytes = field(repr=False)

    @classmethod
    def derive(cls, secret: bytes, tag: bytes) -> Self:
        """Derive the keys (HKDF-SHA256, RFC 5869). Raises LocalProtocolError for a secret of wrong length."""
        if len(secret) != PUSH_SECRET_BYTES:
            raise LocalProtocolError(f"secret of {len(secret)} bytes, must be {PUSH_SECRET_BYTES}")
        middle = hmac.digest(b"meshd push v1", secret, "sha256")

        def expand(what: bytes) -> bytes:
            return hmac.digest(middle, what + tag + b"\x01", "sha256")  # one block is enough

        return cls(opener=expand(b"from opener "), other=expand(b"to opener "))
