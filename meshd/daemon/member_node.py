"""Everything a node has as a member: its key, certificates, books, links and peers, built once."""

import asyncio
import secrets
import time
from functools import partial

from meshd.admin.authority import Authority, save_addresses
from meshd.base import log
from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner, in_thread
from meshd.config import Config
from meshd.config.kept_name import keep_name
from meshd.daemon.enroll import Entered, remember
from meshd.daemon.mesh_port import Doorway
from meshd.daemon.record_numbers import Numbering
from meshd.daemon.transports import Ways
from meshd.daemon.write_retries import write_again
from meshd.identity.keys import KeyPair
from meshd.identity.keystore import Home
from meshd.identity.proof import Credentials
from meshd.identity.record import LEFT, PeerRecord
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.handshake import Standing
from meshd.link.secure.joining import Joining
from meshd.mux.config import NodeBudget
from meshd.mux.events import Code
from meshd.mux.upload import Upload
from meshd.peer.mesh import PeerMesh
from meshd.peer.node import Node, NodeFacts
from meshd.peer.presence_gossip import Signer
from meshd.rendezvous.book import AddressBook
from meshd.rendezvous.join import Inviter
from meshd.wire.address import Candidate
from meshd.wire.native import NativeVersion

NODE_WINDOW_BYTES = 64 << 20  # by which the windows of all sessions together may grow
BOOK_BLOB = "book"
BOOK_SECONDS = 1.0
LOG = log.get("daemon")


class Estate:
    """Built from the files of `home`; `serve` of mesh and listener is the daemon's to run."""

    def __init__(
        self,
        *,
        config: Config,
        home: Home,
        key: KeyPair,
        entered: Entered,
        role: str,
        native: NativeVersion,
        doorway: Doorway,
    ) -> None:
        self._config = config
        self._home = home
        self._key = key
        self._role = role
        self.membership = membership = entered.membership
        self._first_pipe = entered.pipe
        self.has_left = False
        self.invites = home.load_invites(membership.mesh)
        self.bans = home.load_revocations(membership.mesh)
        self.authority = Authority(
            home=home, key=key, membership=membership, invites=self.invites, bans=self.bans, lives_on=True
        )
        self._book_is_new = False  # not written yet
        self._book_changed = asyncio.Event()
        self.book = AddressBook(me=key.peer, verify=self._verify, save=self._save_book)
        self.book.load(home.read_blob(BOOK_BLOB), file=str(home.path / f"{BOOK_BLOB}.blob"))
        remember(config, entered, self.book, self.bans)
        self._write_book()  # now: a node that is killed in a moment finds its mesh again
        home.keep_revocations(self.bans)
        keep_name(home, config.node.name)
        self._numbering = Numbering(
            home.counters.reserve_sequences, last=home.counters.last_sequence(), now=int(time.time())
        )
        self._callers = Callers()
        self.doorway = doorway
        self.node = self._make_node(native)
        self.ways = Ways(
            config=config,
            home=home,
            key=key,
            membership=membership,
            node=self.node,
            book=self.book,
            invites=self.invites,
            standing=self.standing,
            on_joiner=self.admit,
            doorway=doorway,
            changed=self.candidates_changed,
        )
        self._record = self._sign_record()
        self.mesh = PeerMesh(
            node=self.node,
            book=self.book,
            dialers=self.ways.dialers,
            rng=secrets.SystemRandom().random,
            signer=Signer(key, membership.mesh),
        )
        self.node.on_wake = self.ways.addresses_changed  # the mesh tests and dials by itself
        self._inviter = self._make_inviter()

    def _make_node(self, native: NativeVersion) -> Node:
        return Node(
            facts=NodeFacts(
                peer=self._key.peer,
                name=self._config.node.name,
                role=self._role,
                incarnation=self._home.counters.next_incarnation(),
                native=native,
                grace=self._config.links.grace,
            ),
            bans=self.bans,
            budget=NodeBudget(NODE_WINDOW_BYTES, _upload(self._config)),
            random=secrets.token_bytes,
            save_bans=lambda: self._home.keep_revocations(self.bans),
            my_record=lambda: self._record,
        )

    def _make_inviter(self) -> Inviter:
        return Inviter(
            key=self._key,
            membership=self.membership,
            book=self.invites,
            bans=self.bans,
            save=lambda: self._home.keep_invites(self.invites),
            records=lambda: (self._record, *self.book.records()),
            random=secrets.token_bytes,
            wall_clock=lambda: int(time.time()),
        )

    def standing(self) -> Standing:
        """What links show and check, as of now."""
        return Standing(
            credentials=Credentials(self._key, self.membership.chain),
            mesh=self.membership.mesh,
            why_banned=self.bans.why_banned,
            why_node_banned=lambda node: self.bans.why_node_banned(node, issuer=self._key.peer),
            invites=self.invites.join_keys,
            callers=self._callers,
        )

    def candidates(self) -> tuple[Candidate, ...]:
        """Where this node can be reached, as known now."""
        return self.ways.candidates()

    def token_candidates(self) -> tuple[Candidate, ...]:
        """Those that a token names: a host's UDP port has the number of its TCP port."""
        found = self.candidates()
        tcp = {(c.host, c.port) for c in found if c.proto == "tcp"}
        return tuple(c for c in found if c.proto == "tcp" or (c.host, c.port) not in tcp)

    def printed_token(self) -> str | None:
        """The token that a role prints at its start; None: this node may not invite."""
        reply = self.authority.printed_invite(
            now=int(time.time()),
            secret=secrets.token_bytes(16),
            candidates=self.token_candidates(),
            relays=self.ways.relays,
        )
        return reply.token if reply is not None else None

    async def serve(self) -> None:
        """Everything that reaches peers, until cancelled."""
        async with Owner() as owner:
            owner.start(self.mesh.serve(), name="mesh")
            owner.start(self.ways.serve(self.mesh), name="ways")
            owner.start(self._keep_book(), name="book")
            owner.start(write_again(self._home.keeping), name="disk")
            if self._first_pipe is not None:
                peer = f"peer {self._first_pipe.peer.short}"
                owner.start_for(peer, self._stay(self._first_pipe), name="stay")

    async def _stay(self, pipe: Joining) -> None:
        """Go on as a member where this node has just joined: the first link, while others are dialled."""
        try:
            link = await pipe.stay(self.standing(), dialled=True)
        except (MeshdError, TimeoutError) as error:
            LOG.debug("joined_pipe_over", peer=pipe.peer.short, why=str(error) or "timed out")
        else:
            await self.mesh.accept(link)
        finally:
            await pipe.aclose()

    def candidates_changed(self) -> None:
        """A router's port came or went, or more is known of the network: tell the peers; links stay."""
        if self._record_is_old():
            self._record = self._sign_record()
            self.mesh.record_changed()
            self.mesh.nat_changed()

    def addresses_changed(self) -> None:
        """Say so in the record, to the peers, and look at every link."""
        self.ways.addresses_changed()
        if self._record_is_old():
            self._record = self._sign_record()
        LOG.info("addresses_changed", listen=[str(candidate) for candidate in self._record.candidates])
        self.mesh.addresses_changed()
        self.mesh.record_changed()

    def leave(self) -> None:
        """Tell everybody, by a last record that they pass on, that this node is no member any more."""
        self.has_left = True
        self._record = self._sign_record()
        self.mesh.record_changed()

    def say_goodbye(self) -> None:
        """End the sessions with all peers: for now, or for good."""
        if self.has_left:
            self.mesh.say_goodbye("the node has left the mesh", code=Code.LEFT)
        else:
            self.mesh.say_goodbye("the node was stopped")

    def bans_changed(self) -> None:
        """This node has banned somebody: close what is open, and tell the others."""
        self.node.on_bans(())

    async def admit(self, joining: Joining) -> bool:
        """Answer one joiner; says whether it is a member now."""
        invite = joining.proven.invite_id or b""
        return await self._inviter.admit(joining, joiner=joining.peer, invite_id=invite)

    def _record_is_old(self) -> bool:
        now = (self.candidates(), self.ways.surroundings.capabilities())
        return now != (self._record.candidates, self._record.capabilities)

    def _sign_record(self) -> PeerRecord:
        number = self._numbering.take()
        if number is None:
            return self._record  # a newer one would carry a number that may have been used
        candidates = () if self.has_left else self.candidates()
        save_addresses(self._home, candidates)
        return PeerRecord.sign(
            self._key,
            chain=self.membership.chain,
            name=self._config.node.name,
            role=self._role,
            sequence=number,
            candidates=candidates,
            relays=() if self.has_left else self.ways.relay_urls(),
            capabilities=LEFT if self.has_left else self.ways.surroundings.capabilities(),
        )

    def _verify(self, record: PeerRecord) -> None:
        member = record.verify(self.membership.mesh)
        why = self.bans.why_banned(member.chain)
        if why is not None:
            raise RemoteProtocolError(f"a record of a banned member: {why}", code="banned")

    def _save_book(self) -> None:
        self._book_is_new = True
        self._book_changed.set()

    async def _keep_book(self) -> None:
        """Write the book at most once a second: when many join, it changes with each of their records."""
        try:
            while True:
                await self._book_changed.wait()
                self._book_changed.clear()
                if self._book_is_new:
                    self._book_is_new = False
                    await in_thread(partial(self._home.keep_blob, BOOK_BLOB, self.book.encode()))
                await asyncio.sleep(BOOK_SECONDS)
        finally:
            self._write_book()

    def _write_book(self) -> None:
        if self._book_is_new:
            self._book_is_new = False
            self._home.keep_blob(BOOK_BLOB, self.book.encode())


def _upload(config: Config) -> Upload | None:
    rate = config.links.max_upload
    return None if rate is None else Upload(rate)
