"""The mark in a TLS ClientHello by which a listener tells callers of its mesh from strangers. Pure.

A listener under a flood must choose whom to keep before anybody has proven anything. So a dialler that knows
the mesh, as a member or by a token, puts a mark where the server name (RFC 6066, section 3) stands: a random
nonce, and a hash of it with the mesh id and the listener's id. To strangers it is a random name, another
one for each connection. It proves nothing and admits nobody: it only earns a place apart from those who do
not have it. A node that was invited once can make marks for ever, and an eavesdropper can repeat one; among
the marked, addresses share the places as strangers do.
"""

import hashlib
import hmac

from meshd.identity.keys import MeshId, PeerId, from_base32, joined, to_base32

MARK_NONCE_BYTES = 10
_MARK_TAG_BYTES = 10
_MARK_CHARS = 32
_CONTEXT = b"meshd caller mark v1"
# The extension as it is for a name of this length: type, length, length of the list, kind of name, length.
_SERVER_NAME = bytes((0, 0, 0, _MARK_CHARS + 5, 0, _MARK_CHARS + 3, 0, 0, _MARK_CHARS))


def caller_mark(mesh: MeshId, listener: PeerId, nonce: bytes) -> str:
    """Return the server name that a dialler of `listener` sends; `nonce` is MARK_NONCE_BYTES random bytes."""
    return to_base32(nonce + _tag(mesh, listener, nonce))


def has_caller_mark(hello: bytes | bytearray, mesh: MeshId, listener: PeerId) -> bool:
    """Return True if the first bytes of a connection hold a mark for `listener` in `mesh`.

    The bytes are searched, not parsed: they are TLS or anything else, whole or cut off.
    """
    _, found, rest = bytes(hello).partition(_SERVER_NAME)
    text = rest[:_MARK_CHARS]
    if not found or len(text) < _MARK_CHARS:
        return False
    try:
        mark = from_base32(text.decode("ascii"))
    except ValueError:
        return False
    nonce, tag = mark[:MARK_NONCE_BYTES], mark[MARK_NONCE_BYTES:]
    return hmac.compare_digest(tag, _tag(mesh, listener, nonce))


def _tag(mesh: MeshId, listener: PeerId, nonce: bytes) -> bytes:
    return hashlib.sha256(joined(_CONTEXT, mesh.raw, listener.raw, nonce)).digest()[:_MARK_TAG_BYTES]
