"""The transports with which a node joins a mesh: links, mDNS, its UDP port (rendezvous/join_or_found.py)."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence

from meshd.base.hosts import is_loopback
from meshd.config.tree import Config
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.transports import read_relays
from meshd.identity.invite import Invite, JoinKeys, RelayHint
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.identity.proof import Credentials
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import closest
from meshd.link.net.stun import ReflexivePort
from meshd.link.quic import links as quic
from meshd.link.relayed import through_relay
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.joining import Joining
from meshd.link.tcp import links as tcp
from meshd.rendezvous.join_or_found import Enrolment, Entered, JoinOptions
from meshd.rendezvous.mdns import find
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Source, dialable

NEARBY_SECONDS = 5.0


async def enter(
    home: Home,
    key: KeyPair,
    config: Config,
    role: str,
    *,
    mesh_port: MeshPort,
    note: Callable[[str], object] = lambda _text: None,
    founds_mesh: bool = True,
) -> Entered[Joining]:
    """Enter a mesh as Enrolment.enter does: as a member, by an invite, or by founding one."""

    def transports(invite: Invite, keys: JoinKeys) -> "InviterDialers":
        return InviterDialers(invite, keys, key, config, mesh_port)

    # How the node may join, from the settings.
    links = config.links
    options = JoinOptions(
        name=config.node.name,
        role=role,
        kinds=links.kinds,
        relays=read_relays(config),
        mdns=not links.no_mdns,
        local_only=mesh_port.local_only,
        has_udp=mesh_port.quic is not None,
        founds_mesh=founds_mesh,
    )
    # Join.
    enrolment = Enrolment(
        home,
        key,
        options,
        transports,
        closest=closest,
        random=secrets.token_bytes,
        wall_clock=lambda: int(time.time()),
        note=note,
    )
    return await enrolment.enter(config.node.join)


class InviterDialers:
    """The transports to an inviter over real links (implements JoinTransports)."""

    def __init__(
        self, invite: Invite, keys: JoinKeys, key: KeyPair, config: Config, mesh_port: MeshPort
    ) -> None:
        self._invite = invite
        self._keys = keys
        self._config = config
        self._mesh_port = mesh_port
        self._handshake = HandshakeContext(credentials=Credentials(key, None), mesh=invite.mesh)

    async def tcp(self, places: Sequence[Dialable]) -> Joining:
        """Dial the inviter by TCP."""
        return await tcp.dial_join(
            places, handshake=self._handshake, inviter=self._invite.inviter, join=self._keys
        )

    async def quic(self, places: Sequence[Dialable]) -> Joining:
        """Dial the inviter by QUIC, from the mesh's port: see join_or_found.py."""
        return await quic.dial_join(
            places,
            handshake=self._handshake,
            inviter=self._invite.inviter,
            join=self._keys,
            ports=self._mesh_port.dial_port,
        )

    async def relay(self, relays: Sequence[RelayHint]) -> Joining:
        """Reach the inviter through a relay."""
        return await through_relay.dial_join(
            relays,
            handshake=self._handshake,
            inviter=self._invite.inviter,
            join=self._keys,
            environ=os.environ,
        )

    async def find_nearby(self) -> Sequence[Dialable]:
        """Find the inviter by mDNS, unless this node listens on loopback only."""
        listen = self._config.links.listen
        if listen is not None and is_loopback(listen.host):
            return ()
        found = await find(
            mesh=self._invite.mesh,
            peer=self._invite.inviter,
            addresses=local_addresses.neighbourhood,
            random=secrets.token_bytes,
            seconds=NEARBY_SECONDS,
        )
        return dialable(found, source=Source.NEARBY, here=local_addresses.here()) if found else ()

    def reply_port(self) -> "MeshReplyPort":
        """Return the port at which an inviter's reply arrives."""
        return MeshReplyPort(self._mesh_port, self._config.links.stun)


class MeshReplyPort:
    """The mesh's UDP port as the port of a reply (implements ReplyPort)."""

    def __init__(self, mesh_port: MeshPort, stun: Sequence[str]) -> None:
        self.seen = asyncio.Event()
        self._mesh_port = mesh_port
        self._reflexive = ReflexivePort(send=mesh_port.send, servers=lambda: stun, changed=self.seen.set)

    @property
    def same_everywhere(self) -> bool | None:
        """True if all servers see the same port of this node; None if unknown."""
        return self._reflexive.same_everywhere

    def candidates(self) -> Sequence[Candidate]:
        """Return the addresses of the port: as servers see them, then the local ones."""
        here = self._mesh_port.quic.candidates() if self._mesh_port.quic is not None else ()
        return (*self._reflexive.candidates(), *here)

    async def ask_servers(self) -> None:
        """Ask STUN servers for the port's address, until cancelled."""
        with self._mesh_port.stun_answers(self._reflexive.heard):
            await self._reflexive.serve()
