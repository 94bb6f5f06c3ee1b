"""Joining by a two-way paste: no relay, both behind NAT, and two people who can carry a word each way.

The token says where the inviter's UDP port is seen from outside. This side finds out the same of a port of
its own, puts it in a reply code for the inviter's owner (`meshd accept CODE`), and dials from that port until
the datagrams that the code has the inviter send have opened its NAT.
"""

import asyncio
from collections.abc import Callable, Sequence

from meshd.base import log
from meshd.base.tasks import Owner
from meshd.config import Config
from meshd.daemon.mesh_port import Doorway
from meshd.identity.invite import Invite, JoinKeys
from meshd.identity.keys import KeyPair
from meshd.identity.proof import Credentials
from meshd.identity.reply_code import MAX_REPLY_CANDIDATES, Reply, encode_reply
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.net.reflexive_port import OuterPort
from meshd.link.quic import dial
from meshd.link.secure.handshake import Standing
from meshd.link.secure.joining import Joining
from meshd.wire.address import Candidate, order
from meshd.wire.dialable import trusted

WAIT_SECONDS = 600.0  # for somebody to paste the code
STUN_SECONDS = 2.0
TRY_SECONDS = 2.0  # for one dial: longer than a round trip, short enough to try all addresses in turn
MAX_TRIED = 3  # of the inviter's addresses
LOG = log.get("daemon")


def why_not(invite: Invite, config: Config, doorway: Doorway) -> str:
    """Why no reply code can lead anywhere; empty: one may."""
    if "quic" not in config.links.kinds:
        return "it needs quic, which `--links` excludes"
    if doorway.local_only:
        return "this node listens on loopback only"
    if doorway.quic is None:
        return "another program is using this node's UDP port"
    if not _targets(invite):
        return (
            "the token contains no public UDP address, because no STUN server answered the node that made it"
        )
    return ""


async def join_by_reply(
    invite: Invite,
    keys: JoinKeys,
    key: KeyPair,
    config: Config,
    *,
    doorway: Doorway,
    note: Callable[[str], object],
) -> Joining:
    """Say the code by `note`, then dial until the inviter answers. Raises DialError, Refused."""
    known = asyncio.Event()
    outer = OuterPort(send=doorway.send, servers=lambda: config.links.stun, changed=known.set)
    doorway.on_stun = outer.heard
    async with Owner() as owner:
        owner.start(outer.serve(), name="outer port")
        try:
            async with asyncio.timeout(STUN_SECONDS):
                await known.wait()
        except TimeoutError:
            LOG.warning("stun_silent", why="no server answers: the code contains only LAN addresses")
        if outer.same_everywhere is False:
            LOG.warning("nat_symmetric", why="each server sees a different port: a reply code may not work")
        places = (*outer.candidates(), *(doorway.quic.candidates() if doorway.quic is not None else ()))
        told = tuple(place for place in places if not place.is_loopback and not place.is_v6)
        code = encode_reply(Reply(keys.invite_id, key.peer, told[:MAX_REPLY_CANDIDATES]), keys)
        note(
            "cannot reach the node that made the token. To admit this node, keep this running, and run "
            f"there within {WAIT_SECONDS / 60:.0f} minutes:\n\nmeshd accept {code}\n"
        )
        reached = await _dial(invite, keys, key, doorway)
        owner.cancel()
    return reached


async def _dial(invite: Invite, keys: JoinKeys, key: KeyPair, doorway: Doorway) -> Joining:
    standing = Standing(credentials=Credentials(key, None), mesh=invite.mesh)
    last = DialError("nobody accepted the reply code", kind=LinkKind.QUIC, failure=DialFailure.TIMEOUT)
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    while loop.time() < until:
        for target in _targets(invite):
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    return await dial.dial_join(
                        trusted([target]),
                        standing=standing,
                        inviter=invite.inviter,
                        join=keys,
                        ports=doorway.dial_port,
                    )
            except TimeoutError:
                continue
            except DialError as error:
                if error.failure is DialFailure.WRONG_PEER:
                    last = error
                await asyncio.sleep(0.2)  # a refusal comes at once
    raise last


def _targets(invite: Invite) -> Sequence[Candidate]:
    """Where the inviter's UDP port may be: outside first, which is what a token without a relay is for."""
    udp = [c for c in order(invite.candidates) if c.proto == "udp" and not c.is_v6 and not c.is_loopback]
    return sorted(udp, key=lambda candidate: candidate.kind == "host")[:MAX_TRIED]
