"""Reply codes: the second half of a two-way paste, if only two people can carry messages. Pure.

A joiner that cannot reach the node of its invite prints one; `meshd accept CODE` there makes that node send
to the addresses in it, which opens its own NAT for the joiner. The code is no secret: its MAC shows that
its maker holds the invite, and what it leads to is nothing but datagrams to those addresses.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.identity.armour import Armour
from meshd.identity.invite import JoinKeys
from meshd.identity.keys import KEY_BYTES, PeerId
from meshd.identity.membership import INVITE_ID_BYTES
from meshd.wire.address import Candidate, pack_candidates, unpack_candidates

MAX_REPLY_CANDIDATES = 6
REPLY_MAC_BYTES = 16
_CONTEXT = b"meshd reply v1\0"

REPLY = Armour(
    what="reply code",
    stem="meshdreply",
    version=1,
    remedy="copy the whole line that `meshd serve --join INVITE` printed on the other machine",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A joiner: its id, its invite, and where its datagrams come from (UDP candidates)."""

    invite_id: bytes
    joiner: PeerId
    candidates: tuple[Candidate, ...]


def encode_reply(reply: Reply, keys: JoinKeys) -> str:
    """Return the reply as one word; `keys` are those of the invite. Raises LocalProtocolError."""
    if not 1 <= len(reply.candidates) <= MAX_REPLY_CANDIDATES:
        raise LocalProtocolError(f"a reply code cannot have {len(reply.candidates)} addresses")
    body = reply.invite_id + reply.joiner.raw + pack_candidates(reply.candidates)
    return REPLY.write(_mac(body, keys) + body)


def parse_reply(text: str, invites: Callable[[bytes], JoinKeys | None]) -> Reply:
    """Read the output of `encode_reply`; `invites` has the keys by an invite's id. Raises UserError."""
    payload = REPLY.read(text)
    mac, body = payload[:REPLY_MAC_BYTES], payload[REPLY_MAC_BYTES:]
    invite_id, key = body[:INVITE_ID_BYTES], body[INVITE_ID_BYTES : INVITE_ID_BYTES + KEY_BYTES]
    try:
        candidates = unpack_candidates(body[INVITE_ID_BYTES + KEY_BYTES :])
        joiner = PeerId(key)
    except (RemoteProtocolError, LocalProtocolError):
        raise REPLY.wrong("its contents cannot be read") from None
    keys = invites(invite_id)
    if keys is None or not hmac.compare_digest(mac, _mac(body, keys)):
        raise UserError(
            "this reply code was made with another node's invite",
            hint="run `meshd accept` on the node that made the invite",
        )
    good = tuple(c for c in candidates if c.proto == "udp" and not c.is_loopback and not c.is_link_local)
    if not 1 <= len(candidates) <= MAX_REPLY_CANDIDATES or not good:
        raise REPLY.wrong("it contains no usable address")
    return Reply(invite_id, joiner, good)


def _mac(body: bytes, keys: JoinKeys) -> bytes:
    return hmac.digest(keys.join_key, _CONTEXT + body, "sha256")[:REPLY_MAC_BYTES]
