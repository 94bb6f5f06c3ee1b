"""Joining by a two-way paste: no relay, both behind NAT, and two people who can carry a word each way.

The invite says where the inviter's UDP port is seen from outside. This side finds out the same of a port of
its own, puts it in a reply code for the inviter's owner (`meshd accept CODE`), and dials from that port until
the datagrams that the code has the inviter send have opened its NAT.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, TypeVar

from meshd.base import log
from meshd.base.tasks import Owner, first_error
from meshd.identity.invite import MAX_REPLY_CANDIDATES, Invite, JoinKeys, Reply, encode_reply
from meshd.identity.keys import PeerId
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.wire.address import Candidate, order
from meshd.wire.dialable import Dialable, trusted

WAIT_SECONDS = 600.0  # for somebody to paste the code
STUN_SECONDS = 2.0
TRY_SECONDS = 2.0  # for one dial: longer than a round trip, short enough to try all addresses in turn
PAUSE_SECONDS = 0.2  # after a refusal, which comes at once
MAX_TRIED = 3  # of the inviter's addresses
LOG = log.get("rendezvous")

P = TypeVar("P")
Dial = Callable[[Sequence[Dialable]], Coroutine[object, object, P]]


class ReplyPort(Protocol):
    """This node's UDP port, from which the inviter is dialled."""

    @property
    def seen(self) -> asyncio.Event:
        """True if a server has told where the port is seen."""
        ...

    @property
    def same_everywhere(self) -> bool | None:
        """True if all servers see the same port; None with fewer than two answers."""
        ...

    def candidates(self) -> Sequence[Candidate]:
        """Return its addresses as seen from outside, then those here."""
        ...

    async def ask_servers(self) -> None:
        """Ask the servers until cancelled."""
        ...


def why_no_code(invite: Invite, *, quic: bool, local_only: bool, bound: bool) -> str:
    """Return why no reply code can work; empty if one may. `bound`: this node has its UDP port."""
    if not quic:
        return "it needs quic, which `--links` excludes"
    if local_only:
        return "this node listens on loopback only"
    if not bound:
        return "another program is using this node's UDP port"
    if not targets(invite):
        return (
            "the invite contains no public UDP address, because no STUN server answered the node that made it"
        )
    return ""


async def join_by_reply(
    invite: Invite,
    keys: JoinKeys,
    me: PeerId,
    port: ReplyPort,
    dial: Dial[P],
    *,
    note: Callable[[str], object],
) -> P:
    """Print the code by `note`, then dial until the inviter answers. Raises DialError, Refused."""
    try:
        async with Owner() as owner:
            owner.start(port.ask_servers(), name="outer port")
            reached = await _say_and_dial(invite, keys, me, port, dial, note)
            owner.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None
    return reached


async def _say_and_dial(
    invite: Invite,
    keys: JoinKeys,
    me: PeerId,
    port: ReplyPort,
    dial: Dial[P],
    note: Callable[[str], object],
) -> P:
    try:
        async with asyncio.timeout(STUN_SECONDS):
            await port.seen.wait()
    except TimeoutError:
        LOG.warning("stun_silent", why="no server answers: the code contains only LAN addresses")
    if port.same_everywhere is False:
        LOG.warning("nat_symmetric", why="each server sees a different port: a reply code may not work")
    public = tuple(place for place in port.candidates() if not place.is_loopback and not place.is_v6)
    code = encode_reply(Reply(keys.invite_id, me, public[:MAX_REPLY_CANDIDATES]), keys)
    note(
        "cannot reach the node that made the invite. To admit this node, keep this running, and run "
        f"there within {WAIT_SECONDS / 60:.0f} minutes:\n\nmeshd accept {code}\n"
    )
    return await _dial(targets(invite), dial)


async def _dial(places: Sequence[Candidate], dial: Dial[P]) -> P:
    last = DialError("nobody accepted the reply code", kind=LinkKind.QUIC, failure=DialFailure.TIMEOUT)
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    while loop.time() < until:
        for place in places:
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    return await dial(trusted([place]))
            except TimeoutError:
                continue
            except DialError as error:
                if error.failure is DialFailure.WRONG_PEER:
                    last = error
                await asyncio.sleep(PAUSE_SECONDS)
    raise last


def targets(invite: Invite) -> Sequence[Candidate]:
    """Return where the inviter's UDP port may be: outside first, since no relay is at hand."""
    udp = [c for c in order(invite.candidates) if c.proto == "udp" and not c.is_v6 and not c.is_loopback]
    return sorted(udp, key=lambda candidate: candidate.kind == "host")[:MAX_TRIED]
