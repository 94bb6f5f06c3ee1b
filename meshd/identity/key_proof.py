"""How a member shows a head that it has one of its API keys, without telling the key. Pure.

Any member may say that it serves a model. One that is sent a key could use it elsewhere; a proof is of use
with the head it was made for alone, in a session of the member that made it.
"""

import hashlib
import hmac
from collections.abc import Sequence

from meshd.identity.keys import PeerId, joined

PROOF_BYTES = 32
MAX_PROOFS = 2  # a request may carry two keys, in two headers
_CONTEXT = b"meshd api key v1"


def key_digest(key: str) -> bytes:
    """SHA-256 of a key as text of a header, whose other bytes are surrogates."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def prove_key(digest: bytes, *, head: PeerId, member: PeerId) -> bytes:
    """For the key with this digest, from `member` to `head`."""
    return hmac.digest(digest, joined(_CONTEXT, head.raw, member.raw), hashlib.sha256)


def proven_key(proofs: bytes, digests: Sequence[bytes], *, head: PeerId, member: PeerId) -> bytes | None:
    """The one of `digests` that some of these proofs, one behind the other, is for; None: of none."""
    found: bytes | None = None
    for at in range(0, min(len(proofs), MAX_PROOFS * PROOF_BYTES), PROOF_BYTES):
        given = proofs[at : at + PROOF_BYTES]
        for digest in digests:
            # no early exit, as in KeyRing.match
            right = hmac.compare_digest(given, prove_key(digest, head=head, member=member))
            found = digest if right else found
    return found
