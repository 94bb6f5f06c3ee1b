"""Whole nodes over links in memory: the real peer, mux and rendezvous packages, on a virtual clock.

Between each two nodes there is one cable, which a test may cut after so many bytes, stall, or unplug.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from meshd.base.errors import Broken, CutOff, MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.keys import PeerId
from meshd.identity.membership import Chain, Role, issue
from meshd.identity.proof import Credentials
from meshd.identity.record import LEFT, PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.link.interface import DialError, DialFailure, Link, LinkKind, MayDial, Transport
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.handshake import HandshakeContext
from meshd.mux.config import MuxConfig, NodeBudget
from meshd.peer.interface import PeerState, PeerStatus
from meshd.peer.mesh import PeerMesh
from meshd.peer.node import Node, NodeFacts
from meshd.peer.presence_gossip import Signer
from meshd.peer.signals import MailRoute, SignalService
from meshd.rendezvous.book import AddressBook
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable, Here, Source, dialable
from meshd.wire.netfacts import NetFacts
from meshd.wire.versions import NativeVersion

from tests.conformance.memory_link import MemoryDialer, MemoryListener, MemoryNet, MemoryPipe, MemoryWire
from tests.conformance.nodes import TestMesh, fresh_key

NATIVE = NativeVersion("mesh 4", "pin", "sources", "cpu")
ROLES = frozenset({Role.USE, Role.WORK})


class Cable(MemoryWire):
    """All pipes between two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.unplugged = False
        self.garble = 0  # so many of the next byte strings are nonsense of the same length
        self.stays_out = False  # a cut that is due unplugs it as well
        self.due: deque[int] = deque()  # after so many bytes, of both directions, it is cut; again and again
        self.made = 0
        self.cuts = 0

    def pipes(self) -> tuple[MemoryPipe, MemoryPipe]:
        self.made += 1
        near, far = super().pipes()
        return _CablePipe(self, near), _CablePipe(self, far)

    def cut(self, end: type[MeshdError] = Broken) -> None:
        """Break what there is; what was on its way is lost."""
        super().cut(end)
        self.cuts += 1
        self.ups.clear()
        self.downs.clear()

    def unplug(self) -> None:
        """Cut, and no new link until `plug`."""
        self.unplugged = True
        self.cut()

    def plug(self) -> None:
        """New links may be made."""
        self.unplugged = False


class _CablePipe(MemoryPipe):
    """A pipe that ends in the middle of a byte string where the cable is cut."""

    def __init__(self, cable: Cable, pipe: MemoryPipe) -> None:
        super().__init__(*pipe.directions)
        self._cable = cable

    def _put(self, data: Sequence[bytes | memoryview]) -> None:
        whole = b"".join(data)
        cable = self._cable
        if cable.garble and whole:
            cable.garble -= 1
            whole = b"\xff" * len(whole)
        if not cable.due or len(whole) < cable.due[0]:
            if cable.due:
                cable.due[0] -= len(whole)
            super()._put([whole])
            return
        super()._put([whole[: cable.due.popleft()]])
        cable.cuts += 1
        cable.unplugged = cable.stays_out
        for direction in cable.ups + cable.downs:  # what was put before still arrives
            direction.ended = direction.ended or Broken
            direction.change()
        cable.ups.clear()
        cable.downs.clear()


PATHS = {
    LinkKind.TCP: "loopback",
    LinkKind.WEBRTC: "punched",
    LinkKind.QUIC: "punched",
    LinkKind.RELAY: "relayed",
}
_PORTS = {kind: 7447 + number for number, kind in enumerate(PATHS)}


class WorldDialer:
    """Finds the node that lives there by the cable of its kind."""

    def __init__(self, owner: "WorldNode", kind: LinkKind) -> None:
        self._node = owner
        self.kind = kind
        self.transport = Transport(kind.value)  # the plain one, called as its kind
        self.dials = 0
        self.seconds = 0.0  # that a dial takes, whatever comes of it

    async def dial(self, peer: PeerId, candidates: Sequence[Candidate]) -> Link:
        self.dials += 1
        world = self._node.world
        await asyncio.sleep(self.seconds)
        place = self._place(peer, candidates)
        if place is None or place not in world.places:
            raise DialError("nobody lives there", kind=self.kind, failure=DialFailure.UNREACHABLE)
        cable = world.cable(self._node.name, world.places[place], self.kind)
        if cable.unplugged:
            raise DialError("the cable is out", kind=self.kind, failure=DialFailure.UNREACHABLE)
        if place not in world.listeners:  # the machine is there, its process is not
            failure = DialFailure.REFUSED if self.kind is LinkKind.TCP else DialFailure.TIMEOUT
            raise DialError("nobody listens there", kind=self.kind, failure=failure, place=place.place)
        net = MemoryNet()
        net.wire = cable
        net.listeners = world.listeners
        dialer = MemoryDialer(net, self._node.handshake)
        dialer.kind, dialer.path = self.kind, PATHS[self.kind]
        return await dialer.dial(peer, [place])

    def _place(self, peer: PeerId, candidates: Sequence[Candidate]) -> Candidate | None:
        """Find a place by address alone for TCP; other kinds ask by signals or a relay, which know it."""
        if self.kind is LinkKind.TCP:
            listening = (place for place in candidates if place in self._node.world.listeners)
            return next(listening, candidates[0] if candidates else None)
        home = next((node for node in self._node.world.nodes.values() if node.peer == peer), None)
        return home.places[self.kind] if home is not None else None


class WorldHost:
    """A node of the world as it shows itself: a record, which a test may change, and no networks."""

    def __init__(self, record: PeerRecord) -> None:
        self.shown = record
        self.overtaken_by = 0  # the number of a record of this node that others have told of
        self.may_dial: MayDial = _as_a_stranger

    def record(self) -> PeerRecord:
        return self.shown

    def overtaken(self, record: PeerRecord) -> None:
        self.overtaken_by = record.sequence

    def is_near(self, candidates: Sequence[Candidate]) -> bool:
        return False

    def why_not_direct(self, theirs: NetFacts | None, last_error: str) -> str:
        return last_error or "direct transports are being tried"

    def woke(self) -> None:
        """Nothing of it has slept."""


def _as_a_stranger(_peer: PeerId, told: Sequence[Candidate], source: Source) -> Sequence[Dialable]:
    return dialable(told, source=source, here=Here())


class WorldNode:
    """A node of the world; `start` it after its services are in place, again after each stop."""

    def __init__(
        self,
        world: "World",
        name: str,
        *,
        role: str,
        grace: int,
        roles: frozenset[Role],
        kinds: Sequence[LinkKind],
    ) -> None:
        self.world = world
        self.name = name
        self.key = fresh_key()
        certificate = issue(
            signer=world.root.root,
            mesh=world.root.mesh,
            node=self.key.peer,
            roles=roles,
            serial=bytes(16),
            invite=b"",
            issued_at=0,
        )
        self.chain = Chain((certificate,), world.root.root.peer)
        self.bans = RevocationSet(world.root.mesh)
        self._callers = Callers()
        self.bans_blob: bytes | None = None  # the bans as they were last written
        self._book_blob: bytes | None = None
        number = len(world.nodes) + 1
        host = f"10.0.{number >> 8}.{number & 255}"
        self.places = {kind: Candidate(host, _PORTS[kind]) for kind in PATHS}
        self.place = self.places[LinkKind.TCP]
        self.dialers = {kind: WorldDialer(self, kind) for kind in kinds}
        self.dialer = next(iter(self.dialers.values()))
        self.boot_ahead = 0.0  # seconds that the machine slept: the clock since boot runs on
        self._listeners: dict[LinkKind, MemoryListener] = {}
        self._role, self._grace = role, grace
        self._starts = 0
        self._book_is_new = False
        self._task: asyncio.Task[None] | None = None
        self.mail: MailRoute | None = None
        self.book, self.node, self.mesh, self.signals = self._build()

    @property
    def peer(self) -> PeerId:
        return self.key.peer

    @property
    def is_alive(self) -> bool:
        """True from `start` until it ends."""
        return self._task is not None and not self._task.done()

    def copy_identity(self, other: "WorldNode", *, starts: int) -> None:
        """Be another node from here on, after so many starts of that one's home."""
        self.key, self.chain = other.key, other.chain
        self._starts = starts
        self.reborn()

    @property
    def book_blob(self) -> bytes | None:
        """The book as it was last written."""
        if self._starts and self._book_is_new:
            self._book_blob, self._book_is_new = self.book.encode(), False
        return self._book_blob

    @book_blob.setter
    def book_blob(self, blob: bytes | None) -> None:
        self._book_blob, self._book_is_new = blob, False

    def handshake(self) -> HandshakeContext:
        """Return what its links show and check."""
        return HandshakeContext(
            credentials=Credentials(self.key, self.chain),
            mesh=self.world.root.mesh,
            why_banned=self.bans.why_banned,
            callers=self._callers,
        )

    def record(self, sequence: int = 1, *, left: bool = False) -> PeerRecord:
        """Its own word on where it is."""
        return PeerRecord.sign(
            self.key,
            chain=self.chain,
            name=self.name,
            role=self._role,
            sequence=sequence,
            candidates=() if left else (self.place,),
            capabilities=LEFT if left else {},
        )

    def knows(self, *others: "WorldNode") -> None:
        """It has their records from the start."""
        for other in others:
            self.book.add(other.record())

    def _verify(self, record: PeerRecord) -> None:
        member = record.verify(self.world.root.mesh)
        if (why := self.bans.why_banned(member.chain)) is not None:
            raise RemoteProtocolError(why, code="banned")

    def _build(self) -> tuple[AddressBook, Node, PeerMesh, SignalService]:
        def save() -> None:
            self._book_is_new = True

        def save_bans() -> None:
            self.bans_blob = self.bans.encode()

        blob = self.book_blob
        self._starts += 1
        self._book_is_new = False
        book = AddressBook(me=self.peer, verify=self._verify, save=save)
        book.load(blob)
        self.host = WorldHost(self.record(self._starts))
        node = Node(
            facts=NodeFacts(
                peer=self.peer,
                name=self.name,
                role=self._role,
                incarnation=self._starts.to_bytes(16, "big"),
                native=NATIVE,
                grace=self._grace,
            ),
            bans=self.bans,
            budget=NodeBudget(64 << 20),
            random=self.world.random,
            save_bans=save_bans,
            host=self.host,
            config=self.world.config,
        )
        rng = random.Random(f"{self.name} {self._starts}").random  # nobody is picked for ever
        signals = SignalService(
            node=node,
            key=self.key,
            chain=lambda: self.chain,
            mail=self.mail,
            issuer_of=lambda peer: one.chain.admitter if (one := book.record(peer)) is not None else None,
            rng=random.Random(self.name).random,
        )
        mesh = PeerMesh(
            node=node,
            book=book,
            dialers=tuple(self.dialers.values()),
            rng=rng,
            boot=lambda: node.now() + self.boot_ahead,
            signer=Signer(self.key, self.world.root.mesh),
        )
        signals.attach(mesh)
        signals.topic("webrtc")  # what no kind of link asks for is dropped
        return book, node, mesh, signals

    def start(self) -> None:
        """Live from here on."""
        self._task = self.world.owner.start(self._live(), name=self.name)

    async def _live(self) -> None:
        net = MemoryNet()
        net.listeners = self.world.listeners
        async with Owner() as owner:
            owner.start(self.mesh.serve(), name=f"mesh of {self.name}")
            owner.start(self.signals.serve(), name=f"signals of {self.name}")
            for kind in self.dialers:
                listener = self._listeners[kind] = MemoryListener(net, self.handshake, self.places[kind])
                listener.kind, listener.path = kind, PATHS[kind]
                owner.start(listener.serve(self.mesh.accept), name=f"listener of {self.name}")

    def move(self, host: str, *, sequence: int) -> None:
        """Another address for TCP, and a record with that sequence number that says so; nobody is told."""
        fresh = Candidate(host, self.place.port)
        listener = self._listeners[LinkKind.TCP]
        self.world.listeners[fresh] = self.world.listeners.pop(self.place)
        self.world.places[fresh] = self.name
        self.place = self.places[LinkKind.TCP] = listener._place = fresh
        self.host.shown = self.record(sequence)

    async def stop(self, *, cut: bool = True) -> None:
        """As kill -9: no goodbye. With `cut` the kernel ends its connections, else they go silent."""
        for other in self.world.nodes.values():
            if other is not self:
                for kind in self.dialers:
                    cable = self.world.cable(self.name, other.name, kind)
                    cable.cut(CutOff) if cut else cable.stall()
        if self._task is not None:
            await cancel_and_wait(self._task)

    def reborn(self) -> None:
        """A new process on the same state, not yet started."""
        self.book, self.node, self.mesh, self.signals = self._build()

    def status_of(self, other: "WorldNode") -> PeerStatus:
        """Return how it sees the other."""
        return next(status for status in self.mesh.peers() if status.peer == other.peer)

    async def until(self, ready: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Wait for something that this node's mesh tells of. Raises TimeoutError (virtual seconds)."""
        seen = -1
        async with asyncio.timeout(seconds):
            while not ready():
                seen = await self.mesh.changed(seen)

    async def sees(self, other: "WorldNode", state: PeerState, *, seconds: float = 60.0) -> PeerStatus:
        """Wait until the other is in `state` here."""

        def ready() -> bool:
            return any(status.peer == other.peer and status.state is state for status in self.mesh.peers())

        await self.until(ready, seconds=seconds)
        return self.status_of(other)


class World:
    """Nodes of one mesh and the cables between them; an async context manager that ends them all."""

    def __init__(self, config: MuxConfig | None = None) -> None:
        self.config = config or MuxConfig()
        self.root = TestMesh()
        self.nodes: dict[str, WorldNode] = {}
        self.listeners = MemoryNet().listeners
        self.places: dict[Candidate, str] = {}
        self.owner = Owner()
        self._cables: dict[tuple[frozenset[str], LinkKind], Cable] = {}
        self._drawn = 0

    async def __aenter__(self) -> Self:
        await self.owner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.owner.cancel()
        await self.owner.__aexit__(kind, error, trace)

    def random(self, count: int) -> bytes:
        """Bytes that never repeat, the same in each run."""
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")

    def node(
        self,
        name: str,
        *,
        role: str = "worker",
        grace: int = 30,
        roles: frozenset[Role] = ROLES,
        kinds: Sequence[LinkKind] = (LinkKind.TCP,),
    ) -> WorldNode:
        """A new node, not started."""
        node = WorldNode(self, name, role=role, grace=grace, roles=roles, kinds=kinds)
        self.nodes[name] = node
        self.places |= dict.fromkeys(node.places.values(), name)
        return node

    def cable(self, one: str, other: str, kind: LinkKind = LinkKind.TCP) -> Cable:
        """Return what joins the two for links of this kind."""
        return self._cables.setdefault((frozenset((one, other)), kind), Cable())

    def ban(self, node: WorldNode, *, epoch: int = 0, lifts: bool = False) -> bytes:
        """The root's ban of a node, signed; with `lifts` the end of its bans."""
        return ban(
            signer=self.root.root,
            chain=None,
            mesh=self.root.mesh,
            kind="node",
            target=node.peer.raw,
            issued_at=0,
            epoch=epoch,
            lifts=lifts,
        ).encode()


def apart(
    world: World, *, grace: int = 30, kinds: Sequence[LinkKind] = (LinkKind.TCP,)
) -> tuple[WorldNode, WorldNode]:
    """Two nodes, not started: the leader of the two first."""
    one, other = (world.node(name, grace=grace, kinds=kinds) for name in ("anna", "bert"))
    return (one, other) if one.peer > other.peer else (other, one)


async def pair(
    world: World, *, grace: int = 30, kinds: Sequence[LinkKind] = (LinkKind.TCP,)
) -> tuple[WorldNode, WorldNode]:
    """Two connected nodes: the leader of the two first."""
    leader, follower = apart(world, grace=grace, kinds=kinds)
    leader.knows(follower)
    follower.start()
    leader.start()
    await leader.sees(follower, PeerState.CONNECTED)
    await follower.sees(leader, PeerState.CONNECTED)
    return leader, follower
