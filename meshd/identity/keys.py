"""Ed25519 keys and the ids derived from them: of nodes and meshes.

Every signature is made over a context string and the data, both with their lengths in front, so that
a signature made for one purpose never passes for another (RFC 8032 for the scheme itself).
"""

import base64
import hashlib
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from meshd.base.errors import LocalProtocolError, UserError
from meshd.identity.naming import ID_CHARS, SHORT_CHARS

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_MESH_CONTEXT = b"meshd mesh id v1\0"


def joined(*parts: bytes) -> bytes:
    """Concatenate parts with their lengths (u32) in front: different lists never give the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def to_base32(raw: bytes) -> str:
    """Return lower-case base32 (RFC 4648) without padding."""
    return base64.b32encode(raw).decode("ascii").lower().rstrip("=")


def from_base32(text: str) -> bytes:
    """Decode `to_base32` strictly (upper case is accepted, too). Raises ValueError.

    Left-over bits must be zero: one value has one text.
    """
    raw = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    if to_base32(raw) != text.lower():
        raise ValueError("left-over bits")
    return raw


@dataclass(frozen=True, slots=True, order=True)
class _Name32:
    """A value of 32 bytes, shown as 52 characters of base32."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise LocalProtocolError(f"{type(self).__name__} of {len(self.raw)} bytes, must be {KEY_BYTES}")

    def __str__(self) -> str:
        return to_base32(self.raw)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.short})"

    @property
    def short(self) -> str:
        """The first 10 characters: for people and logs, not for decisions."""
        return str(self)[:SHORT_CHARS]

    @classmethod
    def _parse(cls, text: str, what: str) -> Self:
        plain = text.strip()
        try:
            raw = from_base32(plain)
            if len(raw) != KEY_BYTES:
                raise ValueError("length")
        except ValueError:
            raise UserError(
                f"`{text[:80]}` is not {what}",
                hint=f"{what} has {ID_CHARS} characters of a-z and 2-7, as `meshd status --json` prints it",
            ) from None
        return cls(raw)


@dataclass(frozen=True, slots=True, order=True, repr=False)
class PeerId(_Name32):
    """A node: its Ed25519 public key. `str()` is 52 characters of lower-case base32."""

    @classmethod
    def parse(cls, text: str) -> "PeerId":
        """Read the output of `str()`. Raises UserError."""
        return cls._parse(text, "a node id")


@dataclass(frozen=True, slots=True, order=True, repr=False)
class MeshId(_Name32):
    """A mesh: the hash of its root's public key."""

    @classmethod
    def of(cls, root: PeerId) -> "MeshId":
        """Return the mesh whose root key is `root`."""
        return cls(hashlib.sha256(_MESH_CONTEXT + root.raw).digest())

    @classmethod
    def parse(cls, text: str) -> "MeshId":
        """Read the output of `str()`. Raises UserError."""
        return cls._parse(text, "a mesh id")


class KeyPair:
    """An Ed25519 key pair. Its repr shows the public half only."""

    __slots__ = ("_key", "peer")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.peer = PeerId(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @classmethod
    def from_seed(cls, seed: bytes) -> "KeyPair":
        """Return the key pair of 32 random bytes."""
        if len(seed) != KEY_BYTES:
            raise LocalProtocolError(f"seed of {len(seed)} bytes, must be {KEY_BYTES}")
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes: for the key store only."""
        return self._key.private_bytes_raw()

    def sign(self, context: str, data: bytes) -> bytes:
        """Return 64 bytes that `verify` accepts for the same context and data."""
        return self._key.sign(joined(context.encode(), data))

    def __repr__(self) -> str:
        return f"KeyPair({self.peer.short})"


# Public keys of small order, without the sign bit: anybody can make signatures for them that hold for many
# messages. RFC 8032 leaves it to the caller to refuse them. The list is that of libsodium.
SMALL_ORDER = frozenset(
    map(
        bytes.fromhex,
        (
            "00" * 32,
            "01" + "00" * 31,
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
            "ec" + "ff" * 30 + "7f",
            "ed" + "ff" * 30 + "7f",
            "ee" + "ff" * 30 + "7f",
        ),
    )
)


def is_small_order(key: bytes) -> bool:
    """Return True for a public key for which anybody can sign."""
    return key[:-1] + bytes([key[-1] & 0x7F]) in SMALL_ORDER


def verify(peer: PeerId, context: str, data: bytes, signature: bytes) -> bool:
    """Return True when `peer` signed `data` for `context`; always False for a key for which anybody
    can sign.
    """
    if len(signature) != SIGNATURE_BYTES or is_small_order(peer.raw):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(peer.raw).verify(signature, joined(context.encode(), data))
    except (InvalidSignature, ValueError):
        return False
    return True
