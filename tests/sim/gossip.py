"""A member that tells what it likes over its news stream, and the many that an inviter may certify."""

import asyncio
import contextlib
from collections.abc import Iterable

from meshd.base.errors import Broken, EndOfStream, Refused
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Certificate, Chain, Role, issue
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import ban
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.peer.node import Service
from meshd.wire.address import Candidate
from meshd.wire.news import NEWS_SERVICE

from tests.conformance.nodes import fresh_key
from tests.sim.world import World, WorldNode

SOMEWHERE = Candidate("10.9.9.9", 7447)


class Teller:
    """The news of `node` are what a test says; what it hears is counted only. Made before it starts."""

    def __init__(self, node: WorldNode) -> None:
        self._node = node
        self._to: dict[PeerId, MessageStream] = {}
        self._change = asyncio.Event()
        self.heard_bytes = 0
        node.mesh.news.talk = self._talk  # type: ignore[method-assign]
        node.node.services[NEWS_SERVICE] = Service(self._talk, lambda _member, _metadata: None)

    async def _talk(self, stream: Stream) -> None:
        self._to[stream.peer] = MessageStream(stream)
        self._change.set()
        with contextlib.suppress(Broken, EndOfStream, Refused):
            while True:
                data = await stream.read()
                self.heard_bytes += len(data)
                stream.consumed(len(data))

    def streams(self) -> list[MessageStream]:
        """Return the streams with all of its neighbours."""
        return list(self._to.values())

    async def to(self, node: WorldNode) -> MessageStream:
        """The one news stream with it, opened by either."""
        while node.peer not in self._to:
            self._change.clear()
            await self._change.wait()
        return self._to[node.peer]

    async def tell(self, node: WorldNode, messages: Iterable[bytes]) -> None:
        """Tell all of them. Raises Broken where it is not listened to."""
        stream = await self.to(node)
        for message in messages:
            await stream.send(message)


class Inviter:
    """A key that may admit, and its chain."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.key = fresh_key()
        roles = {Role.INVITE, Role.USE, Role.WORK}
        root = world.root.root
        self.chain = Chain((self._issue(root, self.key.peer, roles),), root.peer)

    def _issue(self, signer: KeyPair, node: PeerId, roles: set[Role]) -> Certificate:
        return issue(
            signer=signer,
            mesh=self._world.root.mesh,
            node=node,
            roles=roles,
            serial=bytes(16),
            invite=b"",
            issued_at=0,
        )

    def member(self) -> tuple[KeyPair, Chain]:
        """Certify one more key."""
        key = fresh_key()
        leaf = self._issue(self.key, key.peer, {Role.USE})
        return key, Chain((leaf, self.chain.leaf), self.chain.root)

    def record(self, key: KeyPair | None = None, chain: Chain | None = None) -> PeerRecord:
        """Return the record of a member that it has certified, of one more if none is named."""
        if key is None or chain is None:
            key, chain = self.member()
        return PeerRecord.sign(
            key,
            chain=chain,
            name="sybil",
            role="worker",
            sequence=1,
            candidates=(SOMEWHERE,),
        )

    def ban(self) -> bytes:
        """Return the ban of one more key that it has certified; it holds."""
        key = fresh_key()
        return ban(
            signer=self.key,
            chain=self.chain,
            mesh=self._world.root.mesh,
            kind="node",
            target=key.peer.raw,
            issued_at=0,
            evidence=self._issue(self.key, key.peer, {Role.USE}),
        ).encode()
