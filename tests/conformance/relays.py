"""A relay and nodes around it, on loopback; and relays that do what none should."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.invite import RelayHint
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.proof import Credentials
from meshd.link.interface import DialError, Link
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.secure.joining import Joining
from meshd.relay.connection import Connection, Spaces
from meshd.relay.server import RelayServer
from meshd.relay.switchboard import WIDE, Limits
from meshd.wire.dialable import trusted

from tests.conformance.nodes import Node, TestMesh, fresh_key
from tests.conformance.run import run, until

LOOPBACK = "127.0.0.1"


@dataclass
class Party:
    """A node with its client and its links; accepted links and joiners go to queues."""

    node: Node
    client: RelayClient
    links: RelayLinks
    accepted: asyncio.Queue[Link] = field(default_factory=lambda: asyncio.Queue(256))
    joiners: asyncio.Queue[Joining] = field(default_factory=lambda: asyncio.Queue(16))

    async def accept(self, link: Link) -> None:
        self.accepted.put_nowait(link)
        await asyncio.Event().wait()

    async def serve(self) -> None:
        """Client and listener, until cancelled."""
        async with Owner() as owner:
            owner.start(self.client.serve(), name="client")
            owner.start(self.links.serve(self.accept), name="links")

    async def pair(self, other: "Party") -> tuple[Link, Link]:
        """A link to `other`: our end, its end."""
        mine = await self.links.dial(other.node.peer, ())
        return mine, await other.accepted.get()


async def redial(ann: Party, bob: Party) -> tuple[Link, Link]:
    """As the connector does it: again until it works."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await ann.pair(bob)
            except DialError:
                await asyncio.sleep(0.05)


def make_party(
    node: Node,
    relays: Sequence[RelayHint],
    environ: Mapping[str, str] = MappingProxyType({}),
    relays_of: Callable[[PeerId], Sequence[RelayHint]] = lambda _peer: (),
) -> Party:
    """A party; `serve` is the caller's to run."""
    client = RelayClient(relays, node.now, allow=trusted, environ=environ, relays_of=relays_of)
    party: Party

    async def joiner(joining: Joining) -> bool:
        party.joiners.put_nowait(joining)
        await asyncio.Event().wait()
        return False

    party = Party(node, client, RelayLinks(client, node.now, on_joiner=joiner))
    return party


class House:
    """Relays and parties of one test; all end with the block that `house` makes."""

    def __init__(self, owner: Owner) -> None:
        self.mesh = TestMesh()
        self.owner = owner
        self.key = fresh_key()
        self.relay: RelayServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._parties: list[asyncio.Task[None]] = []

    def start(
        self,
        *,
        limits: Limits = WIDE,
        meshes: frozenset[MeshId] = frozenset(),
        port: int = 0,
        kind: type[RelayServer] = RelayServer,
    ) -> RelayServer:
        """The relay of this test, or a new start of it."""
        self.relay = kind(Credentials(self.key, None), host=LOOPBACK, port=port, meshes=meshes, limits=limits)
        self.relay.open()
        self._serving = self.owner.start(self.relay.serve(), name="relay")
        return self.relay

    async def stop(self) -> None:
        """End the relay."""
        assert self._serving is not None
        await cancel_and_wait(self._serving)
        if self.relay is not None:
            self.relay.close()

    @property
    def hint(self) -> RelayHint:
        assert self.relay is not None
        return self.relay.hint(LOOPBACK)

    async def party(
        self,
        node: Node | None = None,
        *,
        relays: Sequence[RelayHint] | None = None,
        environ: Mapping[str, str] = MappingProxyType({}),
        relays_of: Callable[[PeerId], Sequence[RelayHint]] = lambda _peer: (),
    ) -> Party:
        """A member that is connected, or soon will be."""
        node = node or self.mesh.node()
        party = make_party(node, [self.hint] if relays is None else relays, environ, relays_of)
        self._parties.append(self.owner.start(party.serve(), name="party"))
        await until(lambda: party.client.in_use)
        return party

    async def parties(self, count: int) -> list[Party]:
        """So many more members, all connected."""
        made = [await self.party() for _ in range(count)]
        await until(lambda: all(party.client.states()[0].connected for party in made), seconds=20)
        return made

    async def close(self) -> None:
        """The parties first: their links end while there is a relay."""
        await cancel_and_wait(*self._parties)
        self.owner.cancel()


@contextlib.asynccontextmanager
async def house() -> AsyncIterator[House]:
    """An owner for everything of a test."""
    async with Owner() as owner:
        home = House(owner)
        try:
            yield home
        finally:
            await home.close()


def in_house(work: Callable[[House], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with house() as home:
            await work(home)

    run(whole())


async def read_exactly(link: Link, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        got += await link.receive()
    assert len(got) == count
    return bytes(got)


class Watched(RelayServer):
    """Counts the connections that it makes; `kept` has those that still exist."""

    def __init__(self, credentials: Credentials, **options: Any) -> None:
        super().__init__(credentials, **options)
        self.made = 0
        self.kept: weakref.WeakSet[Connection] = weakref.WeakSet()

    def _fresh(self) -> Connection:
        connection = super()._fresh()
        self.made += 1
        self.kept.add(connection)
        return connection

    @property
    def circuits(self) -> int:
        """The circuits that it knows."""
        return len(self._circuits)


class Tampering(RelayServer):
    """Changes what it forwards: `tamper` gets each piece and says what goes on instead."""

    seen = b""
    pieces = 0  # of all connections

    def tamper(self, number: int, data: bytes) -> list[bytes]:
        """Pieces to pass on for the `number`-th one of a connection."""
        return [data]

    def _fresh(self) -> Connection:
        self._next += 1
        return _Tampered(self._spaces, self, number=self._next)


class _Tampered(Connection):
    def __init__(self, spaces: Spaces, relay: Tampering, *, number: int) -> None:
        super().__init__(spaces, relay, number=number)
        self._relay = relay
        self._pieces = 0

    def _carry(self, data: memoryview) -> None:
        self._pieces += 1
        self._relay.pieces += 1
        for piece in self._relay.tamper(self._pieces, bytes(data)):
            super()._carry(memoryview(piece))


def stranger_key() -> KeyPair:
    """A key that no relay of this test has."""
    return fresh_key()
