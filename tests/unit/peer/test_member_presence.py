"""The sessions that a node keeps, whom it reports as away and when, and what it tries while it is alone."""

import asyncio
import itertools
from collections.abc import Collection

import pytest
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Chain
from meshd.identity.record import Away, Presence
from meshd.identity.revocation import RevocationSet
from meshd.mux.config import NodeBudget
from meshd.peer.node import Node
from meshd.peer.presence import (
    ALONE_SECONDS,
    DEGREE,
    DEMAND_SECONDS,
    LOSS_SECONDS,
    MAX_AGAIN_SECONDS,
    NEW_SECONDS,
    TOLD_AGAIN_SECONDS,
    VAIN_SECONDS,
    MemberPresence,
    Seat,
    in_order,
    wanted,
)
from meshd.peer.presence_gossip import SUSPECT_SECONDS, Signer

from tests.unit.identity.cast import FOUNDER, FOUNDER_CHAIN, MESH, ROOT, certificate, key
from tests.unit.peer.news_scene import Host, facts
from tests.unit.rendezvous.test_book import HERE, SavedBook, record

pytestmark = pytest.mark.virtual

LOOK_SECONDS = 15.0  # how long another one is tried
SMALL, LARGE = DEGREE, 24  # members besides the node


def chain(one: KeyPair) -> Chain:
    return Chain((certificate(ROOT, one),), ROOT.peer)


class Scene:
    """The founder, and members that it knows by their records."""

    def __init__(self, count: int, *, role: str = "serve", draws: Collection[float] = (0.0,)) -> None:
        self.keys = {one.peer: one for one in (key(f"member {number}") for number in range(count))}
        self.book = SavedBook().book
        for one in self.keys.values():
            self.book.add(record(one, 1, chain=chain(one)))
        self.draws = list(draws)
        self.node = Node(
            facts=facts(role),
            bans=RevocationSet(MESH),
            budget=NodeBudget(1 << 20),
            random=bytes,
            save_bans=lambda: None,
            host=Host(),
        )
        self.presence = MemberPresence(
            node=self.node, book=self.book, signer=Signer(FOUNDER, MESH), rng=self._draw
        )
        self.gossip = self.presence.gossip

    def _draw(self) -> float:
        self.draws.append(self.draws.pop(0))
        return self.draws[-1]

    def wanted(self, *there: PeerId) -> frozenset[PeerId]:
        """Return what the topology wants, if `there` are present, or all of them."""
        seats = {
            one: Seat(chain(self.keys[one]).place, "worker", chain(self.keys[one]).admitter)
            for one in there or self.keys
        }
        own = Seat(FOUNDER_CHAIN.place, self.node.facts.role, FOUNDER_CHAIN.admitter)
        return wanted(FOUNDER.peer, {FOUNDER.peer: own, **seats})

    async def tick(self, connected: Collection[PeerId] = (), *, after: float = 0.0) -> None:
        await asyncio.sleep(after)
        self.presence.tick(connected)

    def report(self, peer: PeerId) -> None:
        """Hear from another member that one is away."""
        by = next(one for one in self.keys.values() if one.peer != peer)
        away = Away.sign(by, mesh=MESH, peer=peer, order=self.gossip.order(peer))
        assert self.gossip.hear_away(away, self.node.now(), teller=by.peer)

    def is_reported(self, peer: PeerId) -> bool:
        return self.gossip.statements(peer)[1] is not None

    def lives(self, peer: PeerId) -> None:
        """Hear a sign of life of it."""
        sequence, count = self.gossip.order(peer)
        sign = Presence.sign(self.keys[peer], mesh=MESH, sequence=sequence, count=count + 1)
        assert self.gossip.hear_sign(sign)


@pytest.mark.parametrize(("count", "is_large"), [(0, False), (SMALL, False), (SMALL + 1, True)])
async def test_a_mesh_is_large_from_ten_nodes_on(count: int, is_large: bool) -> None:
    scene = Scene(count)
    await scene.tick()
    assert scene.presence.large == is_large


async def test_in_a_small_mesh_everybody_is_wanted_and_nobody_reported() -> None:
    scene = Scene(SMALL)
    await scene.tick()
    assert scene.presence.wishes() == scene.keys.keys()
    one = next(iter(scene.keys))
    assert scene.presence.keeps(one) and scene.presence.wants(one)
    stranger = key("nobody").peer
    assert not scene.presence.keeps(stranger) and not scene.presence.wants(stranger)
    await scene.tick(after=2 * VAIN_SECONDS)
    assert not any(map(scene.is_reported, scene.keys)) and not scene.presence.present(one)


async def test_in_a_large_mesh_the_topology_decides_and_demand_for_a_while() -> None:
    scene = Scene(LARGE)
    connected = scene.wanted()
    await scene.tick(connected)
    assert scene.presence.wishes() == connected < scene.keys.keys()
    far = in_order(scene.keys.keys() - connected)[0]
    assert not scene.presence.keeps(far) and not scene.presence.wants(far)
    scene.presence.demand(far)
    assert scene.presence.wishes() == connected | {far}
    assert scene.presence.wants(far) and not scene.presence.keeps(far)
    await scene.tick(connected, after=DEMAND_SECONDS - 1)
    assert scene.presence.wants(far)
    scene.presence.demand(far)
    await scene.tick(connected, after=DEMAND_SECONDS - 1)
    assert scene.presence.wants(far), "it was asked for again"
    await scene.tick(connected, after=1)
    assert not scene.presence.wants(far)
    scene.presence.demand(key("nobody").peer)
    assert scene.presence.wishes() == connected, "who is no member is not wished for"


async def test_who_is_away_has_no_seat_until_it_is_back() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    await scene.tick(neighbours)
    gone = in_order(neighbours)[0]
    scene.report(gone)
    rest = neighbours - {gone}
    await scene.tick(rest, after=SUSPECT_SECONDS - 0.5)
    assert scene.presence.present(gone) and scene.presence.away_since(gone) is None
    reported = scene.node.now() - SUSPECT_SECONDS + 0.5
    await scene.tick(rest, after=0.5)
    assert not scene.presence.present(gone) and scene.presence.away_since(gone) == reported
    left = scene.wanted(*(scene.keys.keys() - {gone}))
    assert {one for one in scene.keys if scene.presence.keeps(one)} == left
    scene.lives(gone)
    await scene.tick(rest)
    assert {one for one in scene.keys if scene.presence.keeps(one)} == neighbours
    assert scene.presence.present(gone)


async def test_who_is_connected_is_there_whatever_is_said() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    one = in_order(neighbours)[0]
    await scene.tick(neighbours)
    scene.report(one)
    await scene.tick(neighbours, after=SUSPECT_SECONDS)
    assert scene.presence.keeps(one)


async def test_a_member_known_by_its_address_only_is_there_for_a_while() -> None:
    scene = Scene(LARGE)
    newcomer = key("newcomer")
    scene.book.hint(newcomer.peer, [HERE])
    began = scene.node.now()
    connected = scene.wanted()
    await scene.tick(connected)
    assert scene.presence.met(newcomer.peer) == began and scene.presence.present(newcomer.peer)
    await scene.tick(connected, after=NEW_SECONDS - 0.5)
    assert scene.presence.present(newcomer.peer)
    await scene.tick(connected, after=0.5)
    assert not scene.presence.present(newcomer.peer)
    assert not scene.presence.keeps(newcomer.peer)
    scene.book.add(record(newcomer, 1, chain=chain(newcomer)))
    await scene.tick(connected)
    assert scene.presence.present(newcomer.peer) and scene.presence.met(newcomer.peer) == began


async def test_a_node_that_is_not_known_yet_was_met_now() -> None:
    scene = Scene(1)
    await scene.tick()
    met = scene.node.now()
    await asyncio.sleep(5)
    assert scene.presence.met(next(iter(scene.keys))) == met
    assert scene.presence.met(key("nobody").peer) == met + 5


async def test_who_was_dropped_from_the_book_is_forgotten() -> None:
    scene = Scene(LARGE)
    await scene.tick(scene.wanted())
    gone = next(iter(scene.keys))
    scene.report(gone)
    scene.book.forget(gone)
    await scene.tick(scene.wanted(), after=9)
    assert scene.presence.met(gone) == scene.node.now() and not scene.is_reported(gone)


# Reports.


async def test_who_had_a_session_and_is_lost_is_reported_after_a_moment() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    await scene.tick(neighbours)
    lost = in_order(neighbours)[0]
    rest = neighbours - {lost}
    await scene.tick(rest, after=LOSS_SECONDS - 0.5)
    assert not scene.is_reported(lost)
    version = scene.node.version
    await scene.tick(rest, after=0.5)
    assert scene.is_reported(lost) and scene.node.version == version + 1
    assert not any(map(scene.is_reported, rest))


async def test_who_never_had_one_is_reported_later() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    missing = in_order(neighbours)[-1]
    rest = neighbours - {missing}
    await scene.tick(rest)
    await scene.tick(rest, after=VAIN_SECONDS - 0.5)
    assert not scene.is_reported(missing)
    await scene.tick(rest, after=0.5)
    assert scene.is_reported(missing)


async def test_who_has_said_goodbye_is_reported_at_once() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    await scene.tick(neighbours)
    parted = in_order(neighbours)[0]
    unwanted = in_order(scene.keys.keys() - neighbours)[0]
    for one in (parted, unwanted):
        scene.presence.parted(one)
    await scene.tick(neighbours - {parted})
    assert scene.is_reported(parted) and not scene.is_reported(unwanted)


async def test_what_was_refuted_is_said_again_later_each_time() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    await scene.tick(neighbours)
    lost = in_order(neighbours)[0]
    rest = neighbours - {lost}
    said = []
    began = scene.node.now()
    while scene.node.now() < began + 3.5 * MAX_AGAIN_SECONDS:
        await scene.tick(rest, after=LOSS_SECONDS)
        if scene.is_reported(lost):
            said.append(scene.node.now())
            scene.lives(lost)
    gaps = [later - earlier for earlier, later in itertools.pairwise(said)]
    assert said[0] - began == LOSS_SECONDS
    assert gaps[:8] == pytest.approx(
        [TOLD_AGAIN_SECONDS * 2**doubled for doubled in range(6)] + [MAX_AGAIN_SECONDS] * 2
    )
    await scene.tick(neighbours)
    await scene.tick(rest, after=LOSS_SECONDS)
    assert scene.is_reported(lost), "it was back meanwhile: this is another loss"


async def test_what_is_said_of_this_node_is_refuted_in_a_large_mesh() -> None:
    for count, says in ((SMALL, False), (LARGE, True)):
        scene = Scene(count)
        neighbours = scene.wanted()
        await scene.tick(neighbours)
        by = next(iter(scene.keys.values()))
        away = Away.sign(by, mesh=MESH, peer=FOUNDER.peer, order=scene.gossip.order(FOUNDER.peer))
        scene.gossip.hear_away(away, scene.node.now(), teller=list(scene.keys)[-1])
        version = scene.node.version
        await scene.tick(neighbours)
        assert (scene.gossip.order(FOUNDER.peer)[1] == 1) == says == (scene.node.version == version + 1)


# Alone.


async def test_who_hears_from_nobody_knows_nothing_of_others() -> None:
    scene = Scene(LARGE)
    neighbours = scene.wanted()
    far = in_order(scene.keys.keys() - neighbours)[0]
    assert not scene.presence.present(far)
    await scene.tick(neighbours)
    last = scene.node.now()
    await scene.tick(after=ALONE_SECONDS - 0.5)
    assert scene.presence.present(far) and scene.presence.away_since(far) is None
    await scene.tick(after=0.5)
    assert not scene.presence.present(far) and scene.presence.away_since(far) == last
    await scene.tick(neighbours)
    assert scene.presence.present(far) and scene.presence.away_since(far) is None


@pytest.mark.parametrize("sessions", [0, 2])
async def test_with_few_sessions_some_members_are_tried_for_a_while(sessions: int) -> None:
    scene = Scene(LARGE, draws=(0.0, 0.999, 0.5, 0.25, 0.75, 0.1, 0.2, 0.3))
    everybody = in_order(scene.keys)
    connected = in_order(scene.wanted())[:sessions]
    await scene.tick(connected)
    first = {everybody[0], everybody[-1], everybody[LARGE // 2], everybody[LARGE // 4]}
    assert scene.presence.wishes() == scene.wanted() | first
    assert all(map(scene.presence.wants, first))
    await scene.tick(connected, after=LOOK_SECONDS - 0.5)
    assert scene.presence.wishes() == scene.wanted() | first
    await scene.tick(connected, after=0.5)
    second = {everybody[int(draw * LARGE)] for draw in (0.75, 0.1, 0.2, 0.3)}
    assert scene.presence.wishes() == scene.wanted() | second


async def test_with_enough_sessions_one_that_is_away_is_tried_now_and_then() -> None:
    scene = Scene(LARGE, draws=(0.0, 0.6))
    neighbours = scene.wanted()
    await scene.tick(neighbours)
    assert scene.presence.wishes() == neighbours, "nobody is away"
    gone = in_order(scene.keys.keys() - neighbours)[:2]
    for one in gone:
        scene.report(one)
    await scene.tick(neighbours, after=LOOK_SECONDS)
    assert scene.presence.wishes() & set(gone) == {gone[0]}
    await scene.tick(neighbours, after=LOOK_SECONDS)
    assert scene.presence.wishes() & set(gone) == {gone[1]}


def test_the_order_is_that_of_the_ids() -> None:
    ids = [PeerId(bytes([number]) * 32) for number in (3, 1, 2)]
    assert [one.raw[0] for one in in_order(ids)] == [1, 2, 3]
