"""How this node comes into a mesh at its start: as it was, by a token, or as the founder of a new one."""

import os
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.tasks import first_success
from meshd.config import Config
from meshd.daemon.mesh_port import Doorway
from meshd.daemon.paste_join import join_by_reply, why_not
from meshd.daemon.transports import find_nearby, read_relays
from meshd.identity.invite import Invite, JoinKeys, derive, expired_text, parse_token, refuse_expired
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.proof import Credentials
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import closest
from meshd.link.quic import dial as quic
from meshd.link.relayed import through_relay
from meshd.link.secure.handshake import Standing
from meshd.link.secure.joining import Joining
from meshd.link.tcp import dial as tcp
from meshd.rendezvous.book import AddressBook
from meshd.rendezvous.join import Admitted, ask
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source, dialable, trusted

QUIC_AFTER = 0.3  # seconds: TCP is ten times cheaper, and tells sooner that nobody is there
NEARBY_AFTER = 0.5  # for a token whose addresses are those of yesterday
LOG = log.get("daemon")


class DialJoin(Protocol):
    """How a kind of link reaches an inviter at its addresses."""

    def __call__(
        self, candidates: Sequence[Dialable], /, *, standing: Standing, inviter: PeerId, join: JoinKeys
    ) -> Coroutine[object, object, Joining]: ...


@dataclass(frozen=True, slots=True)
class Entered:
    """A membership; of a node that has just joined also what the inviter told, and the pipe to it."""

    membership: Membership
    admitted: Admitted | None = None
    pipe: Joining | None = None

    async def aclose(self) -> None:
        """Idempotent."""
        if self.pipe is not None:
            await self.pipe.aclose()


async def enter(
    home: Home,
    key: KeyPair,
    config: Config,
    role: str,
    *,
    doorway: Doorway,
    note: Callable[[str], object] = lambda _text: None,
) -> Entered:
    """Find the membership, join if need be. Raises MeshdError; whoever is given a pipe closes it in the end.

    `note` gets what a person must do: a reply code to be carried to the inviter, where nothing else leads.
    """
    present = home.load_membership()
    if not config.node.join:
        if present is None:
            present = home.found_mesh(now=int(time.time()), random=secrets.token_bytes)
            LOG.info("mesh_founded", mesh=present.mesh.short)
        return Entered(present)
    invite = parse_token(config.node.join)
    if present is not None and present.mesh == invite.mesh:
        # mostly a restart with the same command line: the membership stands
        LOG.info("join_not_used", why=f"this home is already a member of mesh `{present.mesh.short}`")
        return Entered(present)
    if present is not None:
        raise UserError(
            f"this node is in mesh `{present.mesh.short}`, but the token is for mesh `{invite.mesh.short}`",
            hint="run `meshd leave` first, or use another MESHD_HOME",
        )
    refuse_expired(invite, int(time.time()))
    admitted, pipe = await _join(invite, key, config, role, doorway, note)
    membership = Membership(invite.mesh, admitted.chain, inviter=invite.inviter)
    home.save_membership(membership)
    LOG.info("mesh_joined", mesh=membership.mesh.short)
    return Entered(membership, admitted, pipe)


def remember(config: Config, entered: Entered, book: AddressBook, bans: RevocationSet) -> None:
    """Put what the token and the inviter said where it is looked for."""
    membership, admitted = entered.membership, entered.admitted
    if config.node.join:
        invite = parse_token(config.node.join)
        if invite.mesh == membership.mesh and bans.why_node_banned(invite.inviter) is None:
            book.hint(invite.inviter, invite.candidates)
    if admitted is None:
        return
    for entry in admitted.bans:
        try:
            bans.merge([entry])
        except RemoteProtocolError as error:
            LOG.warning("ban_refused", why=error.what)
    for record in admitted.records:
        try:
            book.add(record)
        except RemoteProtocolError as error:
            LOG.warning("record_refused", why=error.what)


async def _join(
    invite: Invite,
    key: KeyPair,
    config: Config,
    role: str,
    doorway: Doorway,
    note: Callable[[str], object],
) -> tuple[Admitted, Joining]:
    no_code = why_not(invite, config, doorway)
    try:
        try:
            pipe = await _reach(invite, key, config, doorway)
        except DialError:
            if no_code:
                raise
            keys = derive(invite.secret)
            pipe = await join_by_reply(invite, keys, key, config, doorway=doorway, note=note)
    except DialError as error:
        raise _unreachable(invite, error, no_code) from None
    try:
        admitted = await ask(pipe, me=key.peer, mesh=invite.mesh, name=config.node.name, role=role)
    except BaseException as error:
        await pipe.aclose()
        if isinstance(error, Refused):
            raise Refused(f"not admitted: {error.what}", code=error.code, hint=error.hint) from None
        raise
    return admitted, pipe


async def _reach(invite: Invite, key: KeyPair, config: Config, doorway: Doorway) -> Joining:
    """The inviter, by whatever way is first. Raises DialError, Refused."""
    standing = Standing(credentials=Credentials(key, None), mesh=invite.mesh)
    join = derive(invite.secret)
    kinds = config.links.kinds
    relays = tuple(dict.fromkeys((*invite.relays, *read_relays(config))))

    def over(dial: DialJoin, candidates: Sequence[Candidate]) -> Coroutine[object, object, Joining]:
        return dial(trusted(candidates), standing=standing, inviter=invite.inviter, join=join)

    async def nearby() -> Joining:
        found = await find_nearby(invite, config)
        if not found:
            raise DialError(
                "mDNS does not find it on this network", kind=LinkKind.TCP, failure=DialFailure.UNREACHABLE
            )
        near = dialable(found, source=Source.NEARBY, here=local_addresses.here())
        return await tcp.dial_join(near, standing=standing, inviter=invite.inviter, join=join)

    starts: list[tuple[float, Callable[[], Coroutine[object, object, Joining]]]] = []
    if "tcp" in kinds:
        starts.append((0.0, lambda: over(tcp.dial_join, invite.candidates)))
        if not config.links.no_mdns:
            starts.append((NEARBY_AFTER, nearby))
    if "relay" in kinds and relays:
        starts.append(
            (
                0.0,
                lambda: through_relay.dial_join(
                    relays, standing=standing, inviter=invite.inviter, join=join, environ=os.environ
                ),
            )
        )
    if "quic" in kinds:
        from_port = partial(quic.dial_join, ports=doorway.dial_port)
        starts.append((QUIC_AFTER, lambda: over(from_port, with_udp(invite.candidates))))
    if not starts:
        raise UserError(
            f"links of the kinds `{','.join(kinds)}` cannot join a mesh",
            hint="add tcp, quic or relay to --links",
        )
    try:
        return await first_success(starts, discard=_discard)
    except ExceptionGroup as group:
        raise closest(group.exceptions) from None


def with_udp(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """A node's UDP port has the number of its TCP port, which a token names for both."""
    twins = [replace(c, proto="udp") for c in candidates if c.proto == "tcp" and c.kind == "host"]
    return tuple(dict.fromkeys([*candidates, *twins]))


async def _discard(reached: Joining) -> None:
    await reached.aclose()


def _unreachable(invite: Invite, error: DialError, no_code: str) -> MeshdError:
    """`no_code`: why there is no reply code that could help, if so."""
    now = int(time.time())
    if invite.expired(now):  # by our clock, which may be the wrong one: the inviter could not be asked
        return MeshdError(
            f"cannot reach the node that made the token, which {expired_text(invite.expires_at, now)} "
            f"by this machine's clock: {error.what}",
            hint="run `meshd invite` on a member to get a new token, and check this machine's clock",
        )
    hint = error.hint or "check that it is running and that its firewall allows its mesh port"
    return MeshdError(
        f"cannot reach the node that made the token: {error.what}",
        hint=f"{hint}; no reply code is possible: {no_code}" if no_code else hint,
    )
