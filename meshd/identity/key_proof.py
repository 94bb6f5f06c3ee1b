"""Proves to a head that a member has one of its API keys, without revealing the key. Pure.

Any member may say that it serves a model. One that receives a key could use it elsewhere; a proof is of use
only with the head it was made for, in a session of the member that made it.
"""

import hashlib
import hmac
from collections.abc import Sequence

from meshd.identity.keys import PeerId, joined

PROOF_BYTES = 32
MAX_PROOFS = 2  # a request may carry two keys, in two headers
_CONTEXT = b"meshd api key v1"


def key_digest(key: str) -> bytes:
    """Return the SHA-256 of a key, read as text of a header, whose other bytes are surrogates."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def prove_key(digest: bytes, *, head: PeerId, member: PeerId) -> bytes:
    """Return the proof from `member` to `head` for the key with this digest."""
    return hmac.digest(digest, joined(_CONTEXT, head.raw, member.raw), hashlib.sha256)


def proven_key(proofs: bytes, digests: Sequence[bytes], *, head: PeerId, member: PeerId) -> bytes | None:
    """Return the one of `digests` that one of these concatenated proofs is for, or None."""
    found: bytes | None = None
    for at in range(0, min(len(proofs), MAX_PROOFS * PROOF_BYTES), PROOF_BYTES):
        given = proofs[at : at + PROOF_BYTES]
        for digest in digests:
            # no early exit, as in KeyRing.match
            right = hmac.compare_digest(given, prove_key(digest, head=head, member=member))
            found = digest if right else found
    return found
