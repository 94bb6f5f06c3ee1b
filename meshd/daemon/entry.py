"""How this node comes into a mesh at its start: as it was, by a token, or as the founder of a new one."""

import secrets
import time

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, RemoteProtocolError, UserError
from meshd.config import Config
from meshd.identity.invite import Invite, derive, expired_text, parse_token, refuse_expired
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home, Membership
from meshd.identity.proof import Credentials
from meshd.identity.revocation import RevocationSet
from meshd.link.interface import DialError
from meshd.link.proving import Standing
from meshd.link.tcp import dial_join
from meshd.rendezvous.book import AddressBook
from meshd.rendezvous.join import Admitted, ask

LOG = log.get("daemon")


async def enter(home: Home, key: KeyPair, config: Config, role: str) -> tuple[Membership, Admitted | None]:
    """The membership, and what the inviter told if this node has just joined. Raises MeshdError."""
    present = home.load_membership()
    if not config.node.join:
        if present is None:
            present = home.found_mesh(now=int(time.time()), random=secrets.token_bytes)
            LOG.info("mesh_founded", mesh=present.mesh.short)
        return present, None
    invite = parse_token(config.node.join)
    if present is not None and present.mesh == invite.mesh:
        return present, None  # a restart with the same command line: the membership stands
    if present is not None:
        raise UserError(
            f"this node is in mesh `{present.mesh.short}`, the token is for mesh `{invite.mesh.short}`",
            hint="run `meshd leave` first, or use another MESHD_HOME",
        )
    refuse_expired(invite, int(time.time()))
    admitted = await _join(invite, key, config, role)
    membership = Membership(invite.mesh, admitted.chain, inviter=invite.inviter)
    home.save_membership(membership)
    LOG.info("mesh_joined", mesh=membership.mesh.short)
    return membership, admitted


def remember(
    config: Config, membership: Membership, admitted: Admitted | None, book: AddressBook, bans: RevocationSet
) -> None:
    """Put what the token and the inviter said where it is looked for."""
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


async def _join(invite: Invite, key: KeyPair, config: Config, role: str) -> Admitted:
    standing = Standing(credentials=Credentials(key, None), mesh=invite.mesh)
    try:
        pipe, proven = await dial_join(
            invite.candidates, standing=standing, inviter=invite.inviter, join=derive(invite.secret)
        )
    except DialError as error:
        raise _unreachable(invite, error) from None
    try:
        return await ask(
            pipe,
            leftover=proven.leftover,
            me=key.peer,
            mesh=invite.mesh,
            name=config.node.name,
            role=role,
        )
    except Refused as error:
        raise Refused(f"not admitted: {error.what}", code=error.code, hint=error.hint) from None
    finally:
        await pipe.aclose()


def _unreachable(invite: Invite, error: DialError) -> MeshdError:
    now = int(time.time())
    if invite.expired(now):  # by our clock, which may be the wrong one: the inviter could not be asked
        return MeshdError(
            f"cannot reach the node that made the token, which {expired_text(invite.expires_at, now)} "
            f"by this machine's clock: {error.what}",
            hint="get a new token: `meshd invite` on a member, or what `meshd worker` prints when it starts",
        )
    return MeshdError(
        f"cannot reach the node that made the token: {error.what}",
        hint=error.hint or "is it running, and does its firewall let its mesh port in",
    )
