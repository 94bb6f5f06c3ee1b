"""The transports by which this node joins a mesh, and those to and from its peers: links, signals, mDNS, the
router's port.

Those of a member are built before the mesh, which dials with them, and served with it. A node whose mesh
port is on loopback stays on this machine: it asks no server, no router and no network.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from meshd.base.fault_boundary import kept_up
from meshd.base.hosts import is_loopback
from meshd.base.tasks import Owner
from meshd.config.tree import Config
from meshd.daemon.mesh_port import MeshPort, PortMember
from meshd.daemon.network_state import NetworkState
from meshd.identity.invite import Invite, JoinKeys, RelayHint, parse_relay_url
from meshd.identity.invite_book import InviteBook
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Membership
from meshd.identity.proof import Credentials
from meshd.link.browser.direct import BrowserMeetings
from meshd.link.browser.entrance import Browsers
from meshd.link.browser.port import BrowserPort, page_place
from meshd.link.interface import Dialer, Link, LinkKind, Listener, Signals
from meshd.link.net import local_addresses
from meshd.link.net.happy_eyeballs import closest
from meshd.link.net.stun import ASK_SECONDS, ReflexivePort
from meshd.link.punch import PunchLinks, worth_trying
from meshd.link.quic import links as quic
from meshd.link.quic.links import QuicDialer
from meshd.link.quic.over_ice import QuicOverIce
from meshd.link.relayed import through_relay
from meshd.link.relayed.for_browsers import BrowserCircuits
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_member import MemberRelayLinks
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.joining import Joining
from meshd.link.tcp import links as tcp
from meshd.link.tcp.links import TcpDialer
from meshd.link.webrtc.links import WebRtcLinks
from meshd.peer.mesh import PeerMesh
from meshd.peer.node import Node
from meshd.peer.signals import SignalService
from meshd.rendezvous.book import AddressBook, Places
from meshd.rendezvous.join import OpenForJoiners
from meshd.rendezvous.join_or_found import Enrolment, Entered, JoinOptions
from meshd.wire.address import Candidate, Proto
from meshd.wire.dialable import Dialable, Here, Source, dialable
from meshd.wire.hello import NotAdmitted, Welcome

if TYPE_CHECKING:  # what a node that listens on loopback only does without is imported on demand
    from meshd.link.port_prediction.links import PortPredictionLinks
    from meshd.rendezvous.mdns import Mdns

NEARBY_SECONDS = 5.0


class RelayMail:
    """The relays' mailboxes for signals (implements MailRoute of peer/signals.py)."""

    def __init__(self, client: RelayClient) -> None:
        self._client = client

    async def send_mail(self, to: PeerId, blob: bytes) -> None:
        """Hand a blob to a relay of the peer. Raises MeshdError if that is impossible now."""
        await self._client.send_mail(to, blob)

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        """Wait for the next blob and return it with its sender."""
        letter = await self._client.receive_mail()
        return letter.sender, letter.blob


class Links(Dialer, Listener, Protocol):
    """The dialer and listener of one kind of link."""


class TransportUser(PortMember, Protocol):
    """The member that owns these links."""

    def admit_browser(self, browser: PeerId, invite_id: bytes) -> Welcome | NotAdmitted:
        """Decide whether a browser is let in by an invite."""
        ...

    def network_changed(self) -> None:
        """Note that this node's addresses, or the facts of its network, have changed."""
        ...

    def found_nearby(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Note that a peer was seen in one of our networks; no candidates: it is gone."""
        ...


class Transports:
    """The transports of one node (implements Reach).

    `dialers` are for the mesh; `serve` runs everything that listens, announces or asks.
    """

    def __init__(
        self,
        user: TransportUser,
        *,
        config: Config,
        home: Home,
        key: KeyPair,
        membership: Membership,
        node: Node,
        book: AddressBook,
        invites: InviteBook,
        mesh_port: MeshPort,
    ) -> None:
        # Decide which kinds may be used, and who is asked for this node's addresses.
        links, local_only = config.links, mesh_port.local_only
        kinds = {LinkKind(kind) for kind in links.kinds}
        self._user, self._mesh_port = user, mesh_port
        self.relays = read_relays(config) if LinkKind.RELAY in kinds else ()
        places = self._relay_places = tuple(relay.place for relay in self.relays)
        stun = self._stun = () if local_only else tuple(links.stun)
        self._hosts = _loopback if local_only else local_addresses.hosts
        self._asks_outside = LinkKind.QUIC in kinds and not local_only
        self.reflexive = ReflexivePort(
            send=mesh_port.send, servers=lambda: (*stun, *places), changed=user.network_changed
        )
        # Where this node and the others are.
        self.network_state = NetworkState(
            config=config, home=home, ports=self._ports, local_only=local_only, changed=user.network_changed
        )
        self.addresses = Places(book, look=self._look, local_only=local_only)
        # Relays, signals, joiners, and circuits for other members.
        self.relay_client = RelayClient(
            self.relays,
            user.handshake,
            relays_of=self.addresses.relays_of,
            allow=self.addresses.of_relay,
            issuer_of=self.addresses.issuer_of,
        )
        self.signals = SignalService(
            node=node,
            key=key,
            chain=lambda: membership.chain,
            mail=RelayMail(self.relay_client),
            issuer_of=self.addresses.issuer_of,
        )
        self.joiners = OpenForJoiners(
            invites,
            set_boxes=self.relay_client.set_boxes if self.relays else None,
            punch=self.reflexive.punch if self._asks_outside else None,
            wall_clock=node.wall_clock,
        )
        self.members = MemberRelayLinks(user.handshake, passes_on=not links.no_relaying)
        self.browsers = self._make_browsers(key, config.node.name, invites, kinds)
        self.browser_port = BrowserPort(self.browsers, lambda: invites.awaits_browsers(node.wall_clock()))
        self.dialers: list[Dialer] = []
        self._listeners: list[Listener] = []
        self._searching: PortPredictionLinks | None = None
        mesh_port.answer_as(user)
        self._use_kinds(kinds)
        self.mdns = None if links.no_mdns or local_only else self._make_mdns(membership, key, book)

    def _make_browsers(
        self, key: KeyPair, name: str, invites: InviteBook, kinds: Collection[LinkKind]
    ) -> Browsers:
        def meetings(signals: Signals) -> BrowserMeetings:
            return BrowserMeetings(
                self._user.handshake,
                signals,
                self._udp_servers,
                hosts=self._hosts,
                may_dial=self.addresses.may_dial,
            )

        return Browsers(
            key=key,
            name=name,
            invites=invites.browser_keys,
            admit=self._user.admit_browser,
            why_banned=lambda chain: self._user.handshake().why_banned(chain),
            stun=lambda: self._udp_servers,
            meetings=meetings if LinkKind.WEBRTC in kinds else None,
            random=secrets.token_bytes,
        )

    def _use(self, links: Links) -> None:
        self.dialers.append(links)
        self._listeners.append(links)

    def _use_kinds(self, kinds: Collection[LinkKind]) -> None:
        if LinkKind.TCP in kinds:
            self._use_tcp()
        if LinkKind.QUIC in kinds:
            self._use_quic()
        if LinkKind.WEBRTC in kinds:
            self._use(
                WebRtcLinks(
                    self._user.handshake,
                    self.signals.topic("webrtc"),
                    self._udp_servers,
                    hosts=self._hosts,
                    may_dial=self.addresses.may_dial,
                )
            )
        if LinkKind.RELAY in kinds:
            self._use(RelayLinks(self.relay_client, self._user.handshake, on_joiner=self._user.admit))
            self._use(self.members)

    def _use_tcp(self) -> None:
        self.dialers.append(TcpDialer(self._user.handshake))
        self._listeners.append(self._mesh_port.listener)
        self._mesh_port.listener.visitors = self.browser_port
        addresses = self.addresses
        self._use(
            PunchLinks(
                self._user.handshake,
                self.signals.topic("punch"),
                servers=lambda: addresses.tcp_servers(self._relay_places, self._stun),
                worth=lambda peer: worth_trying(self.network_state.facts(), addresses.facts_of(peer)),
                hosts=self._hosts() if self._mesh_port.local_only else None,
                may_dial=addresses.may_dial,
            )
        )

    def _use_quic(self) -> None:
        handshake, may_dial = self._user.handshake, self.addresses.may_dial
        self.dialers.append(QuicDialer(handshake, ports=self._mesh_port.dial_port))
        if self._mesh_port.quic is not None:
            self._listeners.append(self._mesh_port.quic)
        topic = self.signals.topic("quic")
        self._use(QuicOverIce(handshake, topic, self._udp_servers, hosts=self._hosts, may_dial=may_dial))
        if not self._mesh_port.local_only:
            from meshd.link.port_prediction.links import PortPredictionLinks

            self._searching = PortPredictionLinks(
                handshake,
                self.signals.topic("birthday"),
                servers=lambda: self._udp_servers,
                facts=self.network_state.facts,
                facts_of=self.addresses.facts_of,
                may_dial=may_dial,
            )
            self._use(self._searching)

    def _make_mdns(self, membership: Membership, key: KeyPair, book: AddressBook) -> "Mdns":
        from meshd.rendezvous.mdns import Mdns

        return Mdns(
            mesh=membership.mesh,
            me=key.peer,
            addresses=local_addresses.neighbourhood,
            candidates=self._nearby_candidates,
            peers=book.peers,
            found=self._user.found_nearby,
            random=secrets.token_bytes,
        )

    @property
    def _udp_servers(self) -> tuple[str, ...]:
        return (*self._relay_places, *self._stun)

    def _look(self) -> Here:
        """Return where this machine is, with its public addresses as servers see them."""
        public = self.network_state.facts().public_v4
        outside = [
            *(candidate.host for candidate in self.reflexive.candidates()),
            *([public] if public else []),
        ]
        return local_addresses.here(outside, local_only=self._mesh_port.local_only)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return where this node can be reached, as known now."""
        found = [candidate for listener in self._listeners for candidate in listener.candidates()]
        return tuple(dict.fromkeys([*found, *self.network_state.mappings(), *self.reflexive.candidates()]))

    def _nearby_candidates(self) -> Sequence[Candidate]:
        """Return `candidates` and the link-local addresses, which only neighbours on one link can use."""
        listener = self._mesh_port.listener
        return (*self.candidates(), *(listener.on_links() if listener in self._listeners else ()))

    def page_url(self, token: str) -> str:
        """Return where a browser in this network opens the page with an invite; empty: nowhere."""
        listener = self._mesh_port.listener
        if self.browser_port.read_page is None or listener not in self._listeners:
            return ""
        place = page_place(listener.candidates())
        return place and f"http://{place}/#{token}"

    def capabilities(self) -> Mapping[str, str]:
        """Return the facts for this node's record, which tell peers about its network."""
        return self.network_state.capabilities()

    async def known_outside(self) -> None:
        """Wait until servers have reported this node's outer address, or cannot be asked; 1.5 s at most."""
        if self._asks_outside:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await self.reflexive.asked.wait()

    def relay_urls(self) -> tuple[str, ...]:
        """Return the relays through which this node can be reached, for its record."""
        return self.relay_client.urls() if self.relays else ()

    def addresses_changed(self) -> None:
        """Look again: this machine is in another network, or has slept."""
        self.addresses.moved()
        self.network_state.addresses_changed()
        if self._searching is not None:
            self._searching.addresses_changed()
        self.relay_client.addresses_changed()

    async def serve(self, mesh: PeerMesh) -> None:
        """Run all transports until cancelled."""
        self.signals.attach(mesh)
        self.members.attach(mesh)
        with self._mesh_port.stun_answers(self.reflexive.heard):
            async with Owner() as owner:
                owner.start(self.signals.serve(), name="signals")
                for listener in self._listeners:
                    at_port = listener is self._mesh_port.listener
                    take = partial(self._take_in, mesh) if at_port else mesh.accept
                    owner.start(listener.serve(take), name=f"{listener.kind.value} listener")
                owner.start(self.joiners.serve(), name="joiners")
                owner.start(self.relay_client.serve(), name="relays")
                if self.relays and (callers := self._user.handshake().callers) is not None:
                    circuits = BrowserCircuits(self.relay_client, self.browsers.welcome, callers)
                    owner.start(circuits.serve(), name="browser circuits")
                owner.start(self.network_state.serve(), name="network state")
                if self._asks_outside:
                    asking = kept_up(self.reflexive.serve, source="STUN servers", name="reflexive port")
                    owner.start(asking, name="reflexive port")
                if self.mdns is not None:
                    owner.start(kept_up(self.mdns.serve, source="neighbours", name="mdns"), name="mdns")

    async def _take_in(self, mesh: PeerMesh, link: Link) -> None:
        self.network_state.came_in(link)
        await mesh.accept(link)

    def _ports(self) -> Sequence[tuple[Proto, int]]:
        ports: list[tuple[Proto, int]] = [("tcp", self._mesh_port.listener.port)]
        if self._mesh_port.quic is not None:
            ports.append(("udp", self._mesh_port.quic.port))
        return ports


def _loopback() -> tuple[str, ...]:
    return ("127.0.0.1",)


def read_relays(config: Config) -> tuple[RelayHint, ...]:
    """Return the configured relays. Raises UserError."""
    return tuple(map(parse_relay_url, config.links.relays))


async def enter(
    home: Home,
    key: KeyPair,
    config: Config,
    role: str,
    *,
    mesh_port: MeshPort,
    note: Callable[[str], object] = lambda _text: None,
    looking: Callable[[str], object] = lambda _text: None,
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
        looking=looking,
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
        from meshd.rendezvous.mdns import find

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
