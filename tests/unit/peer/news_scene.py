"""A node's news and one member that listens to them, on a virtual clock, without a mesh between the two."""

import asyncio
from collections.abc import Sequence

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.link.interface import LinkInfo, MayDial
from meshd.mux.config import NodeBudget
from meshd.peer.messages import MessageStream
from meshd.peer.news import News
from meshd.peer.node import Node, NodeFacts
from meshd.peer.presence_gossip import PresenceGossip, Signer
from meshd.wire import news as wire
from meshd.wire.address import Candidate
from meshd.wire.hello import Hello
from meshd.wire.netfacts import NetFacts
from meshd.wire.versions import NativeVersion

from tests.unit.identity.cast import FOUNDER, FOUNDER_CHAIN, MESH, ROOT, WORKER
from tests.unit.rendezvous.test_book import SavedBook, record
from tests.unit.tunnel.far import streams

OWN = 3  # the number of the node's record at first


class Host:
    """A node as it shows itself: the founder."""

    def __init__(self) -> None:
        self.shown = record(FOUNDER, OWN, chain=FOUNDER_CHAIN)
        self.overtaken_by: list[int] = []
        self.near = False
        self.woken = 0
        self.may_dial: MayDial = lambda _peer, _told, _source: ()

    def record(self) -> PeerRecord:
        return self.shown

    def overtaken(self, record: PeerRecord) -> None:
        self.overtaken_by.append(record.sequence)

    def is_near(self, candidates: Sequence[Candidate]) -> bool:
        return self.near

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        return last_error

    def woke(self) -> None:
        self.woken += 1


def ban_of(who: KeyPair) -> bytes:
    """The root's ban of a node."""
    return ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=who.peer.raw, issued_at=0).encode()


def facts(role: str = "worker") -> NodeFacts:
    """The founder in each Hello."""
    native = NativeVersion("mesh 4", "pin", "sources", "cpu")
    return NodeFacts(FOUNDER.peer, "anna", role, bytes(16), native)


class Telling:
    """The founder's news, which knows some records."""

    def __init__(self, *known: PeerRecord) -> None:
        self.host = Host()
        self.saved_bans = 0
        self.node = Node(
            facts=facts(),
            bans=RevocationSet(MESH),
            budget=NodeBudget(1 << 20),
            random=bytes,
            save_bans=self._save_bans,
            host=self.host,
        )
        self.node.events = self
        self.saved = SavedBook()
        self.book = self.saved.book
        for one in known:
            self.book.add(one)
        self.gossip = PresenceGossip(
            me=FOUNDER.peer,
            own=lambda: self.host.shown.sequence,
            book=self.book,
            signer=Signer(FOUNDER, MESH),
        )
        self.heard: list[PeerRecord] = []
        self.fails: MeshdError | Exception | None = None  # on the next record
        self.greeted = 0
        self.news = News(
            self.node, self.book, self.gossip, heard=self._hear, greeted=lambda _peer: self.greeted
        )

    # NodeEvents.

    def link_made(self, peer: PeerId, hello: Hello, info: LinkInfo) -> None:
        raise AssertionError("there are no links")

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        raise AssertionError("there are no sessions")

    def bans_changed(self) -> None:
        self.node.changed()

    def _save_bans(self) -> None:
        self.saved_bans += 1

    def _hear(self, one: PeerRecord) -> None:
        self.heard.append(one)
        if self.fails is not None:
            raise self.fails

    def renew(self, sequence: int) -> None:
        """Sign another record of its own."""
        self.host.shown = record(FOUNDER, sequence, chain=FOUNDER_CHAIN)
        self.node.changed()

    def learn(self, one: PeerRecord) -> None:
        """Hear of a record from somebody else."""
        self.book.add(one)
        self.node.changed()

    def checked(self, peer: PeerId = WORKER.peer) -> float:
        """What the peer's news have cost."""
        return self.news.limits.of(peer, self.node.now()).checked


class Listener:
    """The other end of one news stream: what it was told, and when."""

    def __init__(self, telling: Telling, owner: Owner, *, peer: PeerId = WORKER.peer) -> None:
        self.telling = telling
        self.agrees = False  # it answers each digest with the same one
        near, self.far, self.port, _ = streams(peer=peer)
        self._messages = MessageStream(self.far)
        self._told: list[tuple[float, wire.News]] = []
        self.talk = owner.start(telling.news.talk(near), name="talk")
        owner.start(self._listen(), name="listener")

    async def _listen(self) -> None:
        try:
            while True:
                news = wire.decode(await self._messages.receive())
                assert news is not None
                self._told.append((asyncio.get_running_loop().time(), news))
                if self.agrees and isinstance(news, wire.DigestNews):
                    await self._messages.send(news.encode())
        except MeshdError:
            return

    async def tell(self, *news: wire.News, after: float = 0.001) -> None:
        """Say it, and let so many seconds go by."""
        for one in news:
            await self._messages.send(one.encode())
        await asyncio.sleep(after)

    async def raw(self, message: bytes) -> None:
        """Say what cannot be read, or what a later version would."""
        await self._messages.send(message)
        await asyncio.sleep(0.001)

    def told(self) -> list[wire.News]:
        """Return what it was told since the last time."""
        return [news for _, news in self.told_at()]

    def told_at(self) -> list[tuple[float, wire.News]]:
        """Return what it was told since the last time, and when."""
        told, self._told = self._told, []
        return told

    def told_of(self, kind: type[wire.News]) -> bool:
        """Say whether such news have come since the last time."""
        return any(isinstance(news, kind) for _, news in self._told)

    def digests_at(self) -> list[float]:
        """Return when it was told digests since the last time."""
        return [at for at, news in self.told_at() if isinstance(news, wire.DigestNews)]
