"""Invite tokens in the right form, of a mesh that does not exist."""

from meshd.identity.invite import INVITE_SECRET_BYTES, Invite, encode_token
from meshd.identity.keys import KEY_BYTES, MeshId, PeerId


def token(number: int = 0) -> str:
    """Another one for each number below 256."""
    key = bytes([number]) * KEY_BYTES
    return encode_token(Invite(MeshId(key), PeerId(key), bytes(INVITE_SECRET_BYTES), 2_000_000_000))
