"""State directories put back or copied: a node is heard again, and two places with one identity notice it."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from meshd.identity.membership import Statement
from meshd.identity.record import PeerRecord
from meshd.peer.interface import PeerState
from meshd.peer.local_member import COPY_SECONDS, OVERTAKE_SECONDS, LocalMember, Numbering, Signature
from meshd.wire.address import Candidate
from meshd.wire.news import RecordNews

from tests.sim.gossip import Teller
from tests.sim.world import World, WorldHost, WorldNode, pair

NOW = 1_790_000_000
AHEAD = NOW + 3 * 365 * 86_400


class SigningHost(WorldHost):
    """Signs as the daemon does, at a time `now`, on a state directory whose last number is `last`."""

    def __init__(self, node: WorldNode, *, last: int = 0, now: int = NOW) -> None:
        super().__init__(node.record())
        self._node = node
        self.signed = 0
        self.local = LocalMember(
            Signature(node.key, node.chain, node.name, "worker"),
            reach=self,
            mesh=node.mesh,
            numbers=Numbering(lambda _number: True, last=last, now=now),
            save=self._count,
        )
        node.host = node.node.host = self

    def _count(self, _candidates: Sequence[Candidate]) -> None:
        self.signed += 1

    @property
    def is_copied(self) -> bool:
        return self.local.is_copied(self._node.node.now())

    def record(self) -> PeerRecord:
        return self.local.record

    def overtaken(self, record: PeerRecord) -> None:
        self.local.overtaken(record, self._node.node.now())

    # Reach.

    def candidates(self) -> tuple[Candidate, ...]:
        return (self._node.place,)

    def relay_urls(self) -> tuple[str, ...]:
        return ()

    def capabilities(self) -> Mapping[str, str]:
        return {}

    def addresses_changed(self) -> None:
        """The addresses of this world stay."""


def known_sequence(at: WorldNode, of: WorldNode) -> int:
    record = at.book.record(of.peer)
    return 0 if record is None else record.sequence


def knows_paused(at: WorldNode, of: WorldNode) -> bool:
    record = at.book.record(of.peer)
    return record is not None and record.is_paused


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.virtual
async def test_a_node_whose_state_was_put_back_is_heard_again(leads: bool) -> None:
    """Its clock was years ahead in the meantime: its numbers of today are below those that others know."""
    async with World() as world:
        nodes = await pair(world)
        node, other = nodes if leads else nodes[::-1]
        host = SigningHost(node, now=AHEAD)
        node.mesh.record_changed()
        await other.until(lambda: known_sequence(other, node) > AHEAD)
        await node.stop()
        node.reborn()
        host = SigningHost(node, now=NOW)
        assert host.record().sequence < AHEAD
        node.start()
        await node.sees(other, PeerState.CONNECTED)
        await other.until(lambda: known_sequence(other, node) == host.record().sequence, seconds=150)
        assert host.record().sequence > AHEAD and host.signed == 2
        host.local.pause(paused=True)
        await other.until(lambda: knows_paused(other, node), seconds=5)
        assert not host.is_copied
        await asyncio.sleep(2 * COPY_SECONDS)
        assert host.signed == 3, "nothing more is signed without a reason"


@pytest.mark.virtual
async def test_two_places_with_one_identity_that_share_no_peer_both_notice() -> None:
    """The copied node knows one member, the copy another one; news between those tell each of the other."""
    async with World() as world:
        one, other = await pair(world)
        node, copy = world.node("node"), world.node("copy")
        copy.copy_identity(node, starts=6)
        for place, friend, stranger in ((node, one, other), (copy, other, one)):
            world.cable(place.name, stranger.name).unplug()
            place.book.add(friend.record())
        hosts = [SigningHost(node), SigningHost(copy, now=NOW + 10)]
        for place in (node, copy):
            place.start()
        await node.sees(one, PeerState.CONNECTED)
        await copy.sees(other, PeerState.CONNECTED)
        await asyncio.sleep(2 * OVERTAKE_SECONDS)
        assert all(host.is_copied for host in hosts)
        hours = 5
        await asyncio.sleep(hours * 3600)
        assert all(host.is_copied for host in hosts)
        most = 3 + hours * 3600 / OVERTAKE_SECONDS
        assert all(host.signed <= most for host in hosts), "they do not answer each other without end"
        await copy.stop()
        await asyncio.sleep(2 * COPY_SECONDS)
        assert not hosts[0].is_copied
        assert known_sequence(other, node) == hosts[0].record().sequence


@pytest.mark.virtual
async def test_only_what_the_node_itself_has_signed_is_its_record() -> None:
    """A hostile member makes up later records of its victim, which would use up numbers."""
    async with World() as world:
        victim, _ = await pair(world)
        hostile = world.node("mallory")
        teller = Teller(hostile)
        hostile.knows(victim)
        hostile.start()
        await hostile.sees(victim, PeerState.CONNECTED)
        genuine, later = victim.record(50), victim.record(60)
        forged = Statement(later.statement.body, genuine.statement.signature)
        for record in (forged.encode(), genuine.encode(), victim.record(1).encode()):
            await teller.tell(victim, [RecordNews(record).encode()])
        await asyncio.sleep(5)
        assert victim.host.overtaken_by == 50
        assert victim.status_of(hostile).state is PeerState.CONNECTED
