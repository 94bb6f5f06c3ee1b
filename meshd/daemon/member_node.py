"""The parts of a node as a member, built once: key, certificates, books, links and peers."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from functools import partial

from meshd.admin.api import InviteReply
from meshd.admin.authority import Authority, save_addresses
from meshd.base.backoff import Backoff
from meshd.base.tasks import Owner, in_thread
from meshd.config.load import keep_name
from meshd.config.tree import Config
from meshd.daemon.mesh_port import MeshPort
from meshd.daemon.transports import Transports
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import Home, Keeping
from meshd.identity.proof import Credentials
from meshd.identity.record import PeerRecord
from meshd.link.interface import MayDial
from meshd.link.net import local_addresses
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.joining import Joining
from meshd.mux.config import NodeBudget
from meshd.mux.upload import Upload
from meshd.peer.local_member import LocalMember, Numbering, Signature
from meshd.peer.mesh import PeerMesh
from meshd.peer.node import Node, NodeFacts
from meshd.peer.presence_gossip import Signer
from meshd.rendezvous.book import KeptBook
from meshd.rendezvous.join import Inviter
from meshd.rendezvous.join_or_found import Entered, remember
from meshd.wire.address import Candidate
from meshd.wire.hello import NotAdmitted, Welcome
from meshd.wire.netfacts import NetFacts
from meshd.wire.versions import NativeVersion

_RETRY = Backoff(first=1.0, factor=2.0, most=30.0, jitter=0.0)
PAUSED_BLOB = "paused"
NODE_WINDOW_BYTES = 64 << 20  # limit of the growth of all sessions' windows together


def was_paused(home: Home) -> bool:
    """Return True if this node was paused when it last ran."""
    return bool(home.read_blob(PAUSED_BLOB))


async def write_again(keeping: Keeping) -> None:
    """Retry until cancelled, and then once more, because unwritten state is lost with the process."""
    tries = 0
    try:
        while True:
            await asyncio.sleep(_RETRY.delay(tries, 0.0))
            if keeping.waiting:
                tries = 0 if await in_thread(keeping.retry) else tries + 1
    finally:
        keeping.retry()


class MemberNode:
    """This node as a member of its mesh: built from the files of `home`; the daemon runs `serve`.

    It decides nothing. Its parts reach one another through it, as NodeHost and TransportUser.
    """

    def __init__(
        self,
        *,
        config: Config,
        home: Home,
        key: KeyPair,
        entered: Entered[Joining],
        role: str,
        native: NativeVersion,
        mesh_port: MeshPort,
    ) -> None:
        self._config = config
        self._home = home
        self._key = key
        self._first_pipe = entered.pipe
        # Its state.
        self.membership = membership = entered.membership
        self.invites = home.load_invites(membership.mesh)
        self.bans = home.load_revocations(membership.mesh)
        self.authority = Authority(
            home=home, key=key, membership=membership, invites=self.invites, bans=self.bans, lives_on=True
        )
        self._kept_book = KeptBook(home, me=key.peer, mesh=membership.mesh, bans=self.bans)
        self.book = self._kept_book.book
        remember(entered, self._kept_book, self.bans, home)
        keep_name(home, config.node.name)
        # Its links and peers.
        self._callers = Callers()
        self.mesh_port = mesh_port
        self.node = self._make_node(role, native)
        self.transports = self._make_transports()
        self.mesh = PeerMesh(
            node=self.node,
            book=self.book,
            dialers=self.transports.dialers,
            rng=secrets.SystemRandom().random,
            signer=Signer(key, membership.mesh),
        )
        self.mesh.on_bans = self.transports.browsers.bans_changed
        self.local = self._make_local(role)
        self.inviter = self._make_inviter()

    def _make_node(self, role: str, native: NativeVersion) -> Node:
        return Node(
            facts=NodeFacts(
                peer=self._key.peer,
                name=self._config.node.name,
                role=role,
                incarnation=self._home.counters.next_incarnation(),
                native=native,
                grace=self._config.links.grace,
            ),
            bans=self.bans,
            budget=NodeBudget(NODE_WINDOW_BYTES, _upload(self._config)),
            random=secrets.token_bytes,
            save_bans=lambda: self._home.keep_revocations(self.bans),
            host=self,
        )

    def _make_transports(self) -> Transports:
        return Transports(
            self,
            config=self._config,
            home=self._home,
            key=self._key,
            membership=self.membership,
            node=self.node,
            book=self.book,
            invites=self.invites,
            mesh_port=self.mesh_port,
        )

    def _make_local(self, role: str) -> LocalMember:
        counters = self._home.counters
        return LocalMember(
            Signature(self._key, self.membership.chain, self._config.node.name, role),
            reach=self.transports,
            mesh=self.mesh,
            numbers=Numbering(
                counters.reserve_sequences, last=counters.last_sequence(), now=int(time.time())
            ),
            save=partial(save_addresses, self._home),
            paused=was_paused(self._home),
        )

    def _make_inviter(self) -> Inviter:
        return Inviter(
            key=self._key,
            membership=self.membership,
            book=self.invites,
            bans=self.bans,
            save=lambda: self._home.keep_invites(self.invites),
            records=lambda: (self.local.record, *self.book.records()),
            random=secrets.token_bytes,
            wall_clock=self.node.wall_clock,
        )

    def printed_token(self) -> str | None:
        """Return the invite of `printed_invite`."""
        reply = self.printed_invite()
        return reply.token if reply is not None else None

    def printed_invite(self) -> InviteReply | None:
        """Return the invite that a role prints at its start; None if this node may not invite."""
        return self.authority.printed_invite(
            now=int(time.time()),
            secret=secrets.token_bytes(16),
            candidates=self.local.token_candidates(),
            relays=self.transports.relays,
        )

    async def serve(self) -> None:
        """Run everything that reaches peers, until cancelled."""
        async with Owner() as owner:
            owner.start(self.mesh.serve(), name="mesh")
            owner.start(self.transports.serve(self.mesh), name="transports")
            owner.start(self._kept_book.serve(), name="book")
            owner.start(write_again(self._home.keeping), name="disk")
            if self._first_pipe is not None:
                pipe, peer = self._first_pipe, f"peer {self._first_pipe.peer.short}"
                staying = self.local.stay(pipe, lambda: pipe.stay(self.handshake(), dialled=True))
                owner.start_for(peer, staying, name="stay")

    # TransportUser.

    def handshake(self) -> HandshakeContext:
        """Return the current credentials of links, and what links check."""
        return HandshakeContext(
            credentials=Credentials(self._key, self.membership.chain),
            mesh=self.membership.mesh,
            why_banned=self.bans.why_banned,
            why_node_banned=lambda node: self.bans.why_node_banned(node, issuer=self._key.peer),
            invites=self.invites.join_keys,
            callers=self._callers,
        )

    async def admit(self, joining: Joining) -> bool:
        """Answer one joiner; return True if it is a member now."""
        invite = joining.proven.invite_id or b""
        return await self.inviter.admit(joining, joiner=joining.peer, invite_id=invite)

    def admit_browser(self, browser: PeerId, invite_id: bytes) -> Welcome | NotAdmitted:
        """Decide whether a browser is let in by an invite, which is on disk then."""
        return self.inviter.decide(browser, invite_id)

    def network_changed(self) -> None:
        """Publish new addresses or facts of the network."""
        self.local.network_changed()

    def found_nearby(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        """Note a peer's addresses in one of our networks, and dial it; no candidates: it is gone."""
        self.book.nearby(peer, candidates)
        if candidates:
            self.mesh.seen_nearby(peer)

    # NodeHost.

    @property
    def may_dial(self) -> MayDial:
        """The rule for addresses that may be dialled."""
        return self.transports.addresses.may_dial

    def record(self) -> PeerRecord:
        """Return this node's record, as others see it."""
        return self.local.record

    def overtaken(self, record: PeerRecord) -> None:
        """Sign a record above a newer one that this run of the node has not signed."""
        self.local.overtaken(record, self.node.now())

    def is_near(self, candidates: Sequence[Candidate]) -> bool:
        """Say whether one of these is on this machine, or in one LAN with it."""
        return local_addresses.any_beside(candidates)

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        """Explain in one sentence why there is no direct link."""
        return self.transports.network_state.why_not_direct(theirs, last_error)

    def woke(self) -> None:
        """Renew ports, mappings and relays after a sleep."""
        self.transports.addresses_changed()


def _upload(config: Config) -> Upload | None:
    rate = config.links.max_upload
    return None if rate is None else Upload(rate)
