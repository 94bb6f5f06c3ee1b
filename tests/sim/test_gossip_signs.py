"""Signs of life that one member asks for by accusing others: they are not told by all to all."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from meshd.base.errors import Broken
from meshd.base.peer_limits import SIGNS_OF_ONE
from meshd.identity.keys import PeerId
from meshd.identity.record import Away, Presence
from meshd.peer.messages import MessageStream
from meshd.peer.presence_gossip import Order, PresenceGossip
from meshd.wire.news import AwayNews, PresenceNews, decode

from tests.sim.gossip import Teller
from tests.sim.test_peers_many import MANY
from tests.sim.world import World, WorldNode

EVERY_SECONDS = 5.0


class Accusers:
    """Two keys: one signs that a member is away, the other one brings it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._signer, self.bringer = world.node("signer"), world.node("bringer")
        self.teller = Teller(self.bringer)
        self.nodes = [world.node(f"n{number}") for number in range(MANY)]
        cast = (self._signer, self.bringer, *self.nodes)
        for node in cast[1:]:
            node.knows(*(other for other in cast if other is not node))
            node.book.add(self._signer.record())
        for node in cast[1:]:
            node.start()

    def away(self, subject: WorldNode) -> bytes:
        """Against its very last sign of life."""
        order = subject.mesh.presence.gossip.order(subject.peer)
        away = Away.sign(self._signer.key, mesh=self._world.root.mesh, peer=subject.peer, order=order)
        return AwayNews(away.to_bytes()).encode()

    def neighbour(self) -> WorldNode:
        """With which the bringer's session stays."""
        return next(node for node in self.nodes if self.bringer.mesh.presence.keeps(node.peer))

    def sign(self, subject: WorldNode) -> Presence | None:
        """Its last one."""
        return subject.mesh.presence.gossip.statements(subject.peer)[0]

    async def accuse(self, subject: WorldNode, seconds: float) -> int:
        """To itself alone; the answer is told to all others. How often it answered."""
        loop, answers, last = asyncio.get_running_loop(), 0, self.sign(subject)
        until = loop.time() + seconds
        while loop.time() < until:
            await self.teller.tell(subject, [self.away(subject)])
            await asyncio.sleep(EVERY_SECONDS)
            sign = self.sign(subject)
            if sign is None or sign == last:
                continue
            answers, last = answers + 1, sign
            for stream in self.teller.streams():
                with contextlib.suppress(Broken):  # a session that nobody needs any more
                    await stream.send(PresenceNews((sign.to_bytes(),)).encode())
        return answers


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return how many signs of life were told by anybody to anybody."""
    count = 0
    real = MessageStream.send

    async def send(self: MessageStream, message: bytes) -> None:
        nonlocal count
        count += isinstance(decode(message), PresenceNews)
        await real(self, message)

    monkeypatch.setattr(MessageStream, "send", send)
    return lambda: count


@pytest.mark.virtual
async def test_what_two_keys_make_one_member_sign_is_not_told_on_by_all(told: Callable[[], int]) -> None:
    async with World() as world:
        accusers = Accusers(world)
        await asyncio.sleep(30)
        before, seconds = told(), 300.0
        answers = await accusers.accuse(accusers.neighbour(), seconds)
        assert answers >= 0.8 * seconds / EVERY_SECONDS, "it answers all that may believe it"
        by_accusers = answers * (1 + len(accusers.teller.streams()))
        by_each = SIGNS_OF_ONE.burst + 1 + SIGNS_OF_ONE.per_second * seconds
        assert told() - before <= by_accusers + by_each * (MANY + 1) * MANY


@pytest.fixture
def believed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PeerId, Order]]:
    """Return whom anybody believed to be away, and against which sign of life."""
    found: list[tuple[PeerId, Order]] = []
    real = PresenceGossip._keep

    def keep(self: PresenceGossip, away: Away, now: float) -> None:
        found.append((away.peer, away.order))
        real(self, away, now)

    monkeypatch.setattr(PresenceGossip, "_keep", keep)
    return found


@pytest.mark.virtual
async def test_one_that_believes_it_is_answered_at_once_however_many_signs_were_asked_for(
    believed: list[tuple[PeerId, Order]],
) -> None:
    async with World() as world:
        accusers = Accusers(world)
        await asyncio.sleep(30)
        subject = accusers.neighbour()
        await accusers.accuse(subject, 60.0)
        assert subject.peer not in dict(believed)
        gossip = [node.mesh.presence.gossip for node in accusers.nodes if node is not subject]
        said, against = accusers.away(subject), subject.mesh.presence.gossip.order(subject.peer)
        for stream in accusers.teller.streams():
            with contextlib.suppress(Broken):
                await stream.send(said)
        for _ in range(400):
            await asyncio.sleep(0.1)
            now = asyncio.get_running_loop().time()
            assert all(one.away_since(subject.peer, now) is None for one in gossip)
        assert (subject.peer, against) in believed
        assert all(one.order(subject.peer) > against for one in gossip)
