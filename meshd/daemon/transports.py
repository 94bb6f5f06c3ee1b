"""All ways to and from peers that this node may use: kinds of link, signals, mDNS, the router's port.

Built before the mesh, which dials with them; served with it. A node whose mesh port is on loopback only keeps
to this machine: it asks no server, no router and no network.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from meshd.admin.api import AcceptReply
from meshd.base import log
from meshd.base.boundary import kept_up
from meshd.base.errors import UserError
from meshd.base.hosts import is_loopback
from meshd.base.tasks import Owner
from meshd.config import Config
from meshd.daemon.mesh_port import Doorway
from meshd.daemon.network_state import Surroundings
from meshd.daemon.peer_addresses import Places
from meshd.identity.invite import Invite, RelayHint, derive
from meshd.identity.invite_book import InviteBook, InviteEntry
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.relay_url import parse_relay_url
from meshd.identity.reply_code import parse_reply
from meshd.link.interface import Dialer, Link, LinkKind, Listener
from meshd.link.net import local_addresses
from meshd.link.net.reflexive_port import OuterPort
from meshd.link.net.stun import ASK_SECONDS
from meshd.link.port_prediction.links import BirthdayLinks
from meshd.link.punch.feasibility import worth_trying
from meshd.link.punch.links import PunchLinks
from meshd.link.quic.dial import QuicDialer
from meshd.link.quic.over_ice import QuicOverIce
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_member import MemberRelayLinks
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.secure.handshake import Standing
from meshd.link.secure.joining import OnJoiner
from meshd.link.tcp.dial import TcpDialer
from meshd.link.webrtc.links import WebRtcLinks
from meshd.peer.mesh import PeerMesh
from meshd.peer.node import Node
from meshd.peer.signals import SignalService
from meshd.rendezvous.book import AddressBook
from meshd.rendezvous.mdns import Mdns, find
from meshd.wire.address import Candidate, Proto
from meshd.wire.dialable import trusted

NEARBY_SECONDS = 5.0
ACCEPT_SECONDS = 120.0  # for which the joiner of a reply code is let in
MAX_MEMBERS_ASKED = 4  # of those that have a public address, how a port of ours is seen
BOX_SECONDS = 0.5  # how often the invites are looked at: a fresh token is pasted in a moment
LOG = log.get("daemon")


class RelayMail:
    """The relays' mailboxes as signals want them (peer/signal_routes.py)."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client

    async def send_mail(self, to: PeerId, blob: bytes) -> None:
        """See Mail."""
        await self._client.send_mail(to, blob)

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        """See Mail."""
        letter = await self._client.receive_mail()
        return letter.sender, letter.blob


class Links(Dialer, Listener, Protocol):
    """What makes and takes in links of a kind."""


class Ways:
    """`dialers` for the mesh; `serve` runs everything that listens, announces or asks."""

    def __init__(
        self,
        *,
        config: Config,
        home: Home,
        key: KeyPair,
        membership: Membership,
        node: Node,
        book: AddressBook,
        invites: InviteBook,
        standing: Callable[[], Standing],
        on_joiner: OnJoiner,
        doorway: Doorway,
        changed: Callable[[], None],
    ) -> None:
        links = config.links
        kinds = {LinkKind(kind) for kind in links.kinds}
        self._doorway = doorway
        self._book = book
        self._invites = invites
        self._membership = membership
        self._key = key
        self._node = node
        self._places = Places(book, local_only=doorway.local_only, outside=self._outside)
        self.relays = read_relays(config) if LinkKind.RELAY in kinds else ()
        stun = () if doorway.local_only else links.stun
        places = self._places
        self.relay_client = RelayClient(
            self.relays,
            standing,
            relays_of=places.relays_of,
            allow=places.of_relay,
            issuer_of=places.issuer_of,
        )
        self.signals = self._make_signals()
        self.members = MemberRelayLinks(standing, passes_on=not links.no_relaying)
        self.dialers: list[Dialer] = []
        self._listeners: list[Listener] = []
        self._searching: BirthdayLinks | None = None
        doorway.answer_as(standing, on_joiner)
        self._hosts = (lambda: ("127.0.0.1",)) if doorway.local_only else local_addresses.hosts
        self._servers = (*(relay.place for relay in self.relays), *stun)
        self._use_kinds(kinds, standing, on_joiner)
        self.surroundings = Surroundings(
            config=config, home=home, ports=self._ports, local_only=doorway.local_only, changed=changed
        )
        node.why_not_direct = self.surroundings.why_not_direct
        node.is_near = _is_near
        node.may_dial = self._places.may_dial
        self.outer = OuterPort(
            send=doorway.send,
            servers=lambda: (*stun, *(relay.place for relay in self.relays)),
            changed=changed,
        )
        doorway.on_stun = self.outer.heard
        self._asks_outside = LinkKind.QUIC in kinds and not doorway.local_only
        self._mesh: PeerMesh | None = None
        self._owner: Owner | None = None
        self.mdns = None if links.no_mdns or doorway.local_only else self._make_mdns()

    def _make_signals(self) -> SignalService:
        return SignalService(
            node=self._node,
            key=self._key,
            chain=lambda: self._membership.chain,
            mail=RelayMail(self.relay_client),
            issuer_of=self._places.issuer_of,
        )

    def _use(self, links: Links) -> None:
        self.dialers.append(links)
        self._listeners.append(links)

    def _use_kinds(
        self, kinds: Collection[LinkKind], standing: Callable[[], Standing], on_joiner: OnJoiner
    ) -> None:
        if LinkKind.TCP in kinds:
            self._use_tcp(standing)
        if LinkKind.QUIC in kinds:
            self._use_quic(standing)
        if LinkKind.WEBRTC in kinds:
            self._use_webrtc(standing)
        if LinkKind.RELAY in kinds:
            self._use(RelayLinks(self.relay_client, standing, on_joiner=on_joiner))
            self._use(self.members)

    def _use_tcp(self, standing: Callable[[], Standing]) -> None:
        self.dialers.append(TcpDialer(standing))
        self._listeners.append(self._doorway.listener)
        local = self._doorway.local_only
        self._use(
            PunchLinks(
                standing,
                self.signals.topic("punch"),
                servers=self._tcp_servers,
                worth=lambda peer: worth_trying(self.surroundings.facts(), self._places.facts_of(peer)),
                hosts=self._hosts() if local else None,
                may_dial=self._places.may_dial,
            )
        )

    def _use_quic(self, standing: Callable[[], Standing]) -> None:
        self.dialers.append(QuicDialer(standing, ports=self._doorway.dial_port))
        if self._doorway.quic is not None:
            self._listeners.append(self._doorway.quic)
        self._use(
            QuicOverIce(
                standing,
                self.signals.topic("quic"),
                self._servers,
                hosts=self._hosts,
                may_dial=self._places.may_dial,
            )
        )
        if not self._doorway.local_only:
            self._searching = BirthdayLinks(
                standing,
                self.signals.topic("birthday"),
                servers=lambda: self._servers,
                facts=lambda: self.surroundings.facts(),  # noqa: PLW0108 - made after this
                facts_of=self._places.facts_of,
                may_dial=self._places.may_dial,
            )
            self._use(self._searching)

    def _use_webrtc(self, standing: Callable[[], Standing]) -> None:
        topic, may_dial = self.signals.topic("webrtc"), self._places.may_dial
        self._use(WebRtcLinks(standing, topic, self._servers, hosts=self._hosts, may_dial=may_dial))

    def _outside(self) -> list[str]:
        """This node's public addresses, as servers see them."""
        public = self.surroundings.facts().public_v4
        return [*(candidate.host for candidate in self.outer.candidates()), *([public] if public else [])]

    def candidates(self) -> tuple[Candidate, ...]:
        """Where this node can be reached, as known now."""
        found = [candidate for listener in self._listeners for candidate in listener.candidates()]
        return tuple(dict.fromkeys([*found, *self.surroundings.mappings(), *self.outer.candidates()]))

    async def known_outside(self) -> None:
        """Returns when servers have told where this node is seen, or cannot be asked; 1.5 s at most."""
        if self._asks_outside:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await self.outer.asked.wait()

    def relay_urls(self) -> tuple[str, ...]:
        """Relays by which it can be reached, for its record."""
        return self.relay_client.urls() if self.relays else ()

    def addresses_changed(self) -> None:
        """This machine is in another network, or has slept."""
        self._places.moved()
        self.surroundings.addresses_changed()
        if self._searching is not None:
            self._searching.addresses_changed()
        self.relay_client.addresses_changed()

    async def serve(self, mesh: PeerMesh) -> None:
        """Until cancelled."""
        self._mesh = mesh
        self.signals.attach(mesh)
        self.members.attach(mesh)
        async with Owner() as owner:
            self._owner = owner
            owner.start(self.signals.serve(), name="signals")
            for listener in self._listeners:
                take = self._take_in if listener is self._doorway.listener else mesh.accept
                owner.start(listener.serve(take), name=f"{listener.kind.value} listener")
            if self.relays:
                owner.start(self._keep_boxes(), name="mailboxes")
            owner.start(self.relay_client.serve(), name="relays")
            owner.start(self.surroundings.serve(), name="surroundings")
            if self._asks_outside:
                owner.start(
                    kept_up(self.outer.serve, source="STUN servers", name="outer port"), name="outer port"
                )
            if self.mdns is not None:
                owner.start(kept_up(self.mdns.serve, source="neighbours", name="mdns"), name="mdns")

    async def _take_in(self, link: Link) -> None:
        self.surroundings.came_in(link)
        if self._mesh is not None:
            await self._mesh.accept(link)

    def accept(self, code: str) -> AcceptReply:
        """Open our NAT for the joiner that made this reply code. Raises UserError."""
        reply = parse_reply(code, self._invites.join_keys)
        if self._owner is None or not self._asks_outside:
            raise UserError(
                "this node has QUIC disabled, which the other one needs to join",
                hint="restart it without `--links` and without `--listen 127.0.0.1:…`",
            )
        punching = self.outer.punch(trusted(reply.candidates), ACCEPT_SECONDS)
        self._owner.start_for(f"peer {reply.joiner.short}", punching, name=f"accept {reply.joiner.short}")
        LOG.info("reply_accepted", peer=reply.joiner.short, listen=[one.place for one in reply.candidates])
        return AcceptReply(
            joiner=str(reply.joiner),
            addresses=tuple(one.place for one in reply.candidates),
            seconds=int(ACCEPT_SECONDS),
        )

    async def _keep_boxes(self) -> None:
        """Joiners find us at our relays by the mailboxes of the invites that are good now."""
        seen: tuple[InviteEntry, ...] | None = None
        while True:
            entries = self._invites.entries()
            if entries != seen:  # the seconds of each run by themselves
                seen, now = entries, self._node.wall_clock()
                boxes = {
                    derive(entry.secret).mailbox: float(entry.expires_at - now)
                    for entry in entries
                    if not entry.revoked and now < entry.expires_at  # used up: who has joined may ask again
                }
                await self.relay_client.set_boxes(boxes)
            await asyncio.sleep(BOX_SECONDS)

    def _make_mdns(self) -> Mdns:
        return Mdns(
            mesh=self._membership.mesh,
            me=self._key.peer,
            addresses=local_addresses.neighbourhood,
            candidates=self.candidates,
            peers=self._book.peers,
            found=self._found_nearby,
            random=secrets.token_bytes,
        )

    def _found_nearby(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        self._book.nearby(peer, candidates)
        if candidates and self._mesh is not None:
            self._mesh.seen_nearby(peer)

    def _tcp_servers(self) -> tuple[str, ...]:
        """Who tells how a TCP port of ours is seen: relays, public members, STUN servers (few speak TCP)."""
        relays = tuple(relay.place for relay in self.relays)
        members = self._places.stun_members(MAX_MEMBERS_ASKED)
        return (*relays, *members, *self._servers[len(relays) :])

    def _ports(self) -> Sequence[tuple[Proto, int]]:
        ports: list[tuple[Proto, int]] = [("tcp", self._doorway.listener.port)]
        if self._doorway.quic is not None:
            ports.append(("udp", self._doorway.quic.port))
        return ports


def _is_near(candidates: Sequence[Candidate]) -> bool:
    own = local_addresses.hosts()
    return any(one.proto == "tcp" and local_addresses.beside(own, one.host) for one in candidates)


def read_relays(config: Config) -> tuple[RelayHint, ...]:
    """The relays that this node was told. Raises UserError."""
    return tuple(map(parse_relay_url, config.links.relays))


async def find_nearby(invite: Invite, config: Config) -> tuple[Candidate, ...]:
    """Where the inviter of a token is seen in the networks of this machine."""
    if config.links.listen is not None and is_loopback(config.links.listen.host):
        return ()
    return await find(
        mesh=invite.mesh,
        peer=invite.inviter,
        addresses=local_addresses.neighbourhood,
        random=secrets.token_bytes,
        seconds=NEARBY_SECONDS,
    )
