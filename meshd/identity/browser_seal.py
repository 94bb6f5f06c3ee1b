"""The seal between a browser and a node: Noise NNpsk0, and the signatures of both ends over it. Pure.

`Noise_NNpsk0_25519_ChaChaPoly_SHA256` (The Noise Protocol Framework, revision 34): two messages, after which
both sides have a key for each direction. The pre-shared key comes from the secret of an invite, so whoever
does not hold it gets no answer. The listener signs the handshake's hash in its message, with the node key
that the invite names; the browser signs the last hash with a key of its own, in what it seals first.

First message: version (1 byte), invite id (8), Noise's first message (48). Second: Noise's, with the
listener's signature as its payload. The prologue names version, invite and listener.
"""

import hashlib
import hmac
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KEY_BYTES, SIGNATURE_BYTES, KeyPair, PeerId, joined, verify
from meshd.identity.membership import INVITE_ID_BYTES

VERSION = 1
TAG_BYTES = 16  # that a sealed message is longer
FIRST_BYTES = 1 + INVITE_ID_BYTES + KEY_BYTES + TAG_BYTES
SECOND_BYTES = KEY_BYTES + SIGNATURE_BYTES + TAG_BYTES
LISTENER_CONTEXT = "meshd browser listener v1"
BROWSER_CONTEXT = "meshd browser v1"
_PROTOCOL = b"Noise_NNpsk0_25519_ChaChaPoly_SHA256"
_PROLOGUE = b"meshd browser"
_CODE = "seal"


class _Cipher:
    """One direction: ChaCha20-Poly1305 with a counter (Noise 5.1). A counter of 64 bits does not run out."""

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = 0

    def seal(self, plain: bytes, aad: bytes = b"") -> bytes:
        return self._aead.encrypt(self._nonce(), plain, aad)

    def open(self, sealed: bytes, aad: bytes = b"") -> bytes:
        try:
            return self._aead.decrypt(self._nonce(), sealed, aad)
        except InvalidTag:
            raise RemoteProtocolError(
                "a sealed message was changed, or has another key", code=_CODE
            ) from None

    def _nonce(self) -> bytes:
        nonce = bytes(4) + self._count.to_bytes(8, "little")
        self._count += 1
        return nonce


class _Handshake:
    """SymmetricState of Noise (5.2), with the steps of NNpsk0."""

    def __init__(self, prologue: bytes, key: bytes) -> None:
        self.hash = self._chaining = hashlib.sha256(_PROTOCOL).digest()
        self._mix_hash(prologue)
        self._chaining, mixed, cipher = self._expand(key, 3)
        self._mix_hash(mixed)
        self._cipher = _Cipher(cipher)

    def mix_ephemeral(self, public: bytes) -> None:
        """Take in an ephemeral key as pre-shared keys demand: as hash and as key (Noise 9.2)."""
        self._mix_hash(public)
        self.mix_key(public)

    def mix_key(self, secret: bytes) -> None:
        self._chaining, cipher = self._expand(secret, 2)
        self._cipher = _Cipher(cipher)

    def seal(self, plain: bytes) -> bytes:
        sealed = self._cipher.seal(plain, self.hash)
        self._mix_hash(sealed)
        return sealed

    def open(self, sealed: bytes) -> bytes:
        plain = self._cipher.open(sealed, self.hash)
        self._mix_hash(sealed)
        return plain

    def split(self) -> tuple[_Cipher, _Cipher]:
        """Return the ciphers of the dialler's and of the listener's messages."""
        first, second = self._expand(b"", 2)
        return _Cipher(first), _Cipher(second)

    def _mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.sha256(self.hash + data).digest()

    def _expand(self, secret: bytes, count: int) -> list[bytes]:
        middle = hmac.digest(self._chaining, secret, "sha256")
        blocks = [b""]
        for number in range(1, count + 1):
            blocks.append(hmac.digest(middle, blocks[-1] + bytes([number]), "sha256"))
        return blocks[1:]


class Seal:
    """Seals and opens messages after the handshake. `binding` (32 bytes) is known to these two ends alone."""

    def __init__(self, ours: _Cipher, theirs: _Cipher, binding: bytes) -> None:
        self._ours, self._theirs = ours, theirs
        self.binding = binding

    def seal(self, plain: bytes) -> bytes:
        """Return `plain`, 16 bytes longer. Messages must arrive in the order in which they were sealed."""
        return self._ours.seal(plain)

    def open(self, sealed: bytes) -> bytes:
        """Return what the other side sealed next. Raises RemoteProtocolError (code `seal`)."""
        return self._theirs.open(sealed)


def _prologue(invite_id: bytes, listener: PeerId) -> bytes:
    return joined(_PROLOGUE, bytes([VERSION]), invite_id, listener.raw)


def _shared(secret: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a key of small order
        raise RemoteProtocolError("an ephemeral key that cannot be used", code=_CODE) from None


def answer(
    first: bytes, *, key: KeyPair, invites: Callable[[bytes], JoinKeys | None], ephemeral: bytes
) -> tuple[bytes, bytes, Seal]:
    """Answer a browser's first message as the node of `key`; `ephemeral` is 32 random bytes.

    Returns the second message, the invite's id and the seal. Raises RemoteProtocolError (code `seal`).
    """
    if len(first) != FIRST_BYTES or first[0] != VERSION:
        raise RemoteProtocolError("not a browser's first message of this version", code=_CODE)
    invite_id, public = first[1 : 1 + INVITE_ID_BYTES], first[1 + INVITE_ID_BYTES : -TAG_BYTES]
    keys = invites(invite_id)
    if keys is None:
        raise RemoteProtocolError("a browser with an unknown invite", code=_CODE)
    handshake = _Handshake(_prologue(invite_id, key.peer), keys.browser_key)
    handshake.mix_ephemeral(public)
    handshake.open(first[-TAG_BYTES:])
    own = X25519PrivateKey.from_private_bytes(ephemeral)
    shown = own.public_key().public_bytes_raw()
    handshake.mix_ephemeral(shown)
    handshake.mix_key(_shared(own, public))
    second = shown + handshake.seal(key.sign(LISTENER_CONTEXT, handshake.hash))
    theirs, ours = handshake.split()
    return second, invite_id, Seal(ours, theirs, handshake.hash)


class SealDialler:
    """The browser's side: `first`, then `finish` with the second message. `ephemeral` is 32 random bytes."""

    def __init__(self, keys: JoinKeys, listener: PeerId, *, ephemeral: bytes) -> None:
        if len(ephemeral) != KEY_BYTES:
            raise LocalProtocolError(f"ephemeral key of {len(ephemeral)} bytes, must be {KEY_BYTES}")
        self._listener = listener
        self._own = X25519PrivateKey.from_private_bytes(ephemeral)
        self._handshake = _Handshake(_prologue(keys.invite_id, listener), keys.browser_key)
        shown = self._own.public_key().public_bytes_raw()
        self._handshake.mix_ephemeral(shown)
        self.first = bytes([VERSION]) + keys.invite_id + shown + self._handshake.seal(b"")

    def finish(self, second: bytes) -> Seal:
        """Return the seal. Raises RemoteProtocolError (code `seal`) unless the listener has signed."""
        if len(second) != SECOND_BYTES:
            raise RemoteProtocolError("not the second message of the seal", code=_CODE)
        public = second[:KEY_BYTES]
        self._handshake.mix_ephemeral(public)
        self._handshake.mix_key(_shared(self._own, public))
        signed = self._handshake.hash
        signature = self._handshake.open(second[KEY_BYTES:])
        if not verify(self._listener, LISTENER_CONTEXT, signed, signature):
            raise RemoteProtocolError("another node answered", code=_CODE)
        ours, theirs = self._handshake.split()
        return Seal(ours, theirs, self._handshake.hash)
