"""Which heads a client asks what they serve, where members would have it ask theirs alone."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import HEADS_FOLLOWED, HEADS_FOLLOWED_OF_ISSUER
from meshd.base.tasks import Owner
from meshd.client.follow_heads import HeadFollower
from meshd.client.head_choice import HEAD_AVOIDED_SECONDS, heads_to_follow
from meshd.identity.keys import PeerId
from meshd.identity.membership import Chain, Role
from meshd.peer.interface import PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import SERVING_SERVICE, ServingTold

from tests.conformance.run import until
from tests.unit.admin.test_snapshot import path as path_of
from tests.unit.head.fake_mesh import FakeMesh, Net
from tests.unit.identity.cast import ROOT, certificate


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


def of(issuer: str, numbers: Sequence[int]) -> list[tuple[PeerId, str]]:
    return [(peer(number), issuer) for number in numbers]


def test_an_honest_head_is_not_kept_out_by_those_of_two_invites() -> None:
    bad = [*of("one", range(12)), *of("two", range(12, 24))]
    followed = heads_to_follow(bad, ())
    assert len(followed) == HEADS_FOLLOWED.most
    honest = of("home", [100])
    later = heads_to_follow([*bad, *honest], followed)
    assert peer(100) in later and len(later) == HEADS_FOLLOWED.most
    assert len(later & followed) == HEADS_FOLLOWED.most - 1, "one gives way, and no more"


def test_one_invite_has_a_share() -> None:
    followed = heads_to_follow(of("one", range(30)), ())
    assert followed == {peer(number) for number in range(HEADS_FOLLOWED_OF_ISSUER.most)}


@given(
    st.dictionaries(st.integers(0, 60), st.integers(0, 6), max_size=60),
    st.sets(st.integers(0, 60)),
    st.randoms(use_true_random=False),
)
def test_shares_are_equal_and_the_choice_is_steady(
    issuers: dict[int, int], before: set[int], rng: Callable[..., object]
) -> None:
    heads = [(peer(number), issuer) for number, issuer in issuers.items()]
    chosen = heads_to_follow(heads, {peer(number) for number in before})
    assert heads_to_follow(heads, chosen) == chosen
    counts = {issuer: sum(one in chosen for one, own in heads if own == issuer) for _, issuer in heads}
    for issuer, count in counts.items():
        left_out = sum(own == issuer for _, own in heads) - count
        assert count <= HEADS_FOLLOWED_OF_ISSUER.most
        if left_out and count < HEADS_FOLLOWED_OF_ISSUER.most:
            assert max(counts.values()) <= count + 1 and len(chosen) == HEADS_FOLLOWED.most


class Scene:
    """A client that follows heads; their mesh is in memory. `opened`: when it opened streams to them."""

    def __init__(self, net: Net, only: Sequence[str] = ()) -> None:
        self.net = net
        self.mesh = net.mesh("client", "client")
        self.follower = HeadFollower(self.mesh, self._open, only)
        self.opened: list[float] = []

    async def _open(self, to: PeerId, service: str) -> Stream:
        await asyncio.sleep(0)
        self.opened.append(asyncio.get_running_loop().time())
        return self.mesh.open_stream(to, service, metadata={})

    def head(self, name: str, invite: str) -> FakeMesh:
        mesh = self.net.mesh(name, "serve")
        chain = Chain((certificate(ROOT, mesh.key, invite=invite.encode().ljust(8, b".")),), ROOT.peer)
        mesh.member_here = replace(mesh.member_here, chain=chain)
        mesh.handle(SERVING_SERVICE, _tells, allow=lambda _member, _metadata: None)
        mesh.say(PeerState.CONNECTED)
        return mesh

    @property
    def told(self) -> set[str]:
        """The heads of which it knows what they serve."""
        return {one.name for one in self.follower.known() if one.serving is not None}


async def _tells(stream: Stream) -> None:
    await MessageStream(stream).send(ServingTold(()).encode())
    await stream.read()


@asynccontextmanager
async def scene(*only: str) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        it = Scene(Net(owner), only)
        owner.start(it.follower.serve(), name="follow heads")
        yield it
        owner.cancel()


async def test_a_late_head_of_another_invite_is_asked() -> None:
    async with scene() as it:
        bad = [it.head(f"{invite} {number}", invite) for invite in ("one", "two") for number in range(12)]
        await until(lambda: len(it.told) == HEADS_FOLLOWED.most)
        it.head("honest", "home")
        await until(lambda: "honest" in it.told)
        assert len(it.follower.known()) == HEADS_FOLLOWED.most
        for mesh in bad[:20]:
            mesh.role = "worker"
            mesh.say(PeerState.CONNECTED)
        await until(lambda: it.told == {"honest", *(mesh.name for mesh in bad[20:])})


@pytest.mark.virtual
async def test_a_head_that_refuses_is_asked_again_at_growing_intervals() -> None:
    async with scene() as it:
        mesh = it.head("judge", "home")
        mesh.handle(SERVING_SERVICE, _tells, allow=lambda _member, _metadata: "not now")
        await asyncio.sleep(125)
        waits = [round(after - before, 1) for before, after in itertools.pairwise(it.opened)]
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
        [known] = it.follower.known()
        assert known.serving is None and "not now" in known.why_not


@pytest.mark.virtual
@pytest.mark.parametrize(("seconds", "wait"), [(29.9, 1.0), (30.1, 0.5)])
async def test_a_head_that_was_followed_for_long_is_asked_again_soon(seconds: float, wait: float) -> None:
    async def tells(stream: Stream) -> None:
        await MessageStream(stream).send(ServingTold(()).encode())
        await asyncio.sleep(seconds)
        stream.write_eof()

    async with scene() as it:
        mesh = it.head("desk", "home")
        mesh.handle(SERVING_SERVICE, tells, allow=lambda _member, _metadata: None)
        await asyncio.sleep(40)
        first, second = it.opened
        assert second - first == pytest.approx(seconds + wait, abs=0.01)


@pytest.mark.virtual
async def test_names_that_no_head_has_are_told_until_one_has() -> None:
    async with scene("desk", "attic") as it:
        assert it.follower.unknown_names() == ["desk", "attic"]
        it.head("desk", "home")
        worker = it.head("attic", "home")
        worker.role = "worker"
        it.head("garage", "home")
        await asyncio.sleep(1)
        assert it.follower.unknown_names() == ["attic"], "a worker of that name is no head"
        assert it.told == {"desk"}, "others are not asked"


@pytest.mark.virtual
async def test_requests_and_troubles_are_noted_of_heads_that_are_followed() -> None:
    async with scene() as it:
        desk, gone = it.head("desk", "home").key.peer, peer(7)
        await asyncio.sleep(1)
        for by in (1, 1, -1):
            it.follower.began(desk, by)
            it.follower.began(gone, by)
        it.follower.avoid(desk, 100.0)
        it.follower.avoid(gone, 100.0)
        [known] = it.follower.known()
        assert (known.mine, known.avoided_until) == (1, 100.0 + HEAD_AVOIDED_SECONDS)


@pytest.mark.virtual
async def test_a_head_is_asked_once_it_is_there_and_until_it_is_none() -> None:
    async with scene() as it:
        desk = it.net.mesh("desk", "serve")
        desk.handle(SERVING_SERVICE, _tells, allow=lambda _member, _metadata: None)
        for stopped in ("", "it has left"):
            desk.stopped = stopped
            desk.say(PeerState.SUSPENDED)
            await asyncio.sleep(1)
            assert [head.why_not for head in it.follower.known()] == [stopped or "not connected"]
        assert it.opened == []
        desk.stopped = ""
        desk.say(PeerState.CONNECTED)
        await asyncio.sleep(1)
        assert it.told == {"desk"} and len(it.opened) == 1
        desk.role = "worker"
        desk.say(PeerState.CONNECTED)
        await asyncio.sleep(1)
        assert it.follower.known() == []
        desk.role = "serve"
        desk.say(PeerState.CONNECTED)
        await asyncio.sleep(1)
        assert it.told == {"desk"} and len(it.opened) == 2


@pytest.mark.virtual
async def test_who_may_not_use_the_mesh_is_no_head() -> None:
    async with scene() as it:
        it.head("desk", "home")
        guest = it.head("guest", "home")
        guest.member_here = replace(guest.member_here, roles=frozenset({Role.WORK}))
        guest.say(PeerState.CONNECTED)
        await asyncio.sleep(1)
        assert it.told == {"desk"}


@pytest.mark.virtual
async def test_how_far_a_head_is_tells_the_path_that_is_used() -> None:
    async with scene() as it:
        desk = it.head("desk", "home")
        await asyncio.sleep(1)
        assert [head.rtt for head in it.follower.known()] == [None]
        used, other = path_of(selected=True), path_of(selected=False)
        for paths, rtt in (((other,), None), ((replace(other, rtt=0.9), used), 0.0015)):
            desk.paths = paths
            assert [head.rtt for head in it.follower.known()] == [rtt]
        assert [head.away_since for head in it.follower.known()] == [None]
        desk.since = 7.0
        desk.state = PeerState.SUSPENDED
        assert [head.away_since for head in it.follower.known()] == [7.0]
