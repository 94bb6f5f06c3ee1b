"""The API of heads, without HTTP: the models of all, the head of each request, and the one after a loss."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from meshd.base import log
from meshd.base.errors import Broken, Closed, UserError
from meshd.base.tasks import Owner
from meshd.client.api_client import ApiClient, HeadCall, check_may_use
from meshd.client.follow_heads import HeadFollower
from meshd.client.head_choice import HEAD_AVOIDED_SECONDS, HEAD_AWAY_SECONDS
from meshd.devices.interface import Tunnel, TunnelRequest
from meshd.gateway.interface import ModelWish
from meshd.gateway.request import PlainModel
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.identity.proof import MAX_PROOFS, prove_key
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.models import API_SERVICE, KEY_PROOF, SERVING_SERVICE, ApiModel, ServingTold

from tests.sim.loop import until
from tests.unit.head.fake_mesh import FakeMesh, Net

pytestmark = pytest.mark.virtual

TINY = ApiModel("tiny", "ready", takes=True, slots=4, fingerprint=b"t" * 32)
BIG = ApiModel("big", "ready", takes=True, slots=4, fingerprint=b"b" * 32)
LOADING = ApiModel("tiny", "loading", takes=False, reason="40 %")
FAILED = ApiModel("tiny", "failed", takes=False, reason="no memory")
KEYS = tuple(hashlib.sha256(bytes([number])).digest() for number in range(MAX_PROOFS + 1))


class Way:
    """Implements Tunnel; it is served until the test ends it."""

    endpoint = ""

    def __init__(self, asked: TunnelRequest) -> None:
        self.asked = asked
        self.serving = self.closed = self.cancelled = False
        self.over = asyncio.Event()

    @property
    def status(self) -> TunnelStatus:
        return TunnelStatus(self.asked.peer, self.asked.service, "", 1, 2, 3)

    async def serve(self) -> None:
        self.serving = True
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def close(self) -> None:
        self.closed = True
        self.asked.end.close()


@dataclass
class Head:
    """A node that tells what it serves, and tells again when that has changed."""

    mesh: FakeMesh
    serves: ServingTold
    streams: list[Stream] = field(default_factory=list)

    @property
    def peer(self) -> PeerId:
        return self.mesh.key.peer

    async def handle(self, stream: Stream) -> None:
        self.streams.append(stream)
        await MessageStream(stream).send(self.serves.encode())
        await stream.read()

    async def tell(self, *models: ApiModel) -> None:
        self.serves = replace(self.serves, models=models)
        await MessageStream(self.streams[-1]).send(self.serves.encode())
        await asyncio.sleep(0.01)

    def lose(self) -> None:
        """Its last link is lost now."""
        self.mesh.since = now()
        self.mesh.say(PeerState.SUSPENDED)


@dataclass
class Scene:
    """A client whose connections are noted."""

    net: Net
    api: ApiClient
    ways: list[Way]

    async def head(self, name: str, *models: ApiModel, asks_key: bool = False) -> Head:
        mesh = self.net.mesh(name, "serve")
        head = Head(mesh, ServingTold(models, asks_key))
        mesh.handle(SERVING_SERVICE, head.handle, allow=lambda _member, _metadata: None)
        mesh.say(PeerState.CONNECTED)
        await until(lambda: any(known.name == name and known.serving for known in self.api.heads.known()))
        return head

    def call(self, model: str = "", *, keys: tuple[bytes, ...] = ()) -> HeadCall:
        found = self.api.find(ModelWish(model, keys))
        assert found is not None and isinstance(found.upstream, HeadCall)
        return found.upstream

    @property
    def chosen(self) -> list[str]:
        """The names of the heads that were connected to, in order."""
        names = {mesh.key.peer: mesh.name for mesh in self.net.meshes.values()}
        return [names[way.asked.peer] for way in self.ways]

    @property
    def mine(self) -> dict[str, int]:
        """This node's requests under way, by head."""
        return {head.name: head.mine for head in self.api.heads.known()}


def now() -> float:
    return asyncio.get_running_loop().time()


def state_of(what: ApiClient | HeadCall) -> ModelState:
    return what.readiness.state


@asynccontextmanager
async def scene(*, only: Sequence[str] = ()) -> AsyncIterator[Scene]:
    async with Owner() as owner:
        net = Net(owner)
        mesh = net.mesh("client", "client")
        ways: list[Way] = []

        def opened(asked: TunnelRequest) -> Tunnel:
            ways.append(Way(asked))
            return ways[-1]

        async def stream(to: PeerId, service: str) -> Stream:
            return mesh.open_stream(to, service, metadata={})

        api = ApiClient(HeadFollower(mesh, stream, only), opened, mesh.key.peer, PlainModel)
        serving = owner.start(api.serve(), name="client")
        await until(lambda: api.owner is not None)
        yield Scene(net, api, ways)
        serving.cancel()
        await asyncio.wait([serving])
        assert api.owner is None
        owner.cancel()


@asynccontextmanager
async def connected(call: HeadCall) -> AsyncIterator[socket.socket]:
    connection = await call.connect()
    try:
        await asyncio.sleep(0.01)
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("role", list(Role))
def test_only_who_may_use_the_mesh_may_call_heads(role: Role) -> None:
    if role is Role.USE:
        check_may_use(frozenset({Role.USE}))
        return
    with pytest.raises(UserError) as raised:
        check_may_use(frozenset({role}))
    assert raised.value.is_final and "--role use" in raised.value.hint


async def test_the_api_is_as_ready_as_any_head() -> None:
    async with scene(only=("desk", "attic")) as here:
        state = here.api.readiness
        assert state.state is ModelState.WAITING
        assert state.reason.startswith("no head is called `desk`; no head is called `attic`; no member of")
        desk = await here.head("desk", LOADING)
        state = here.api.readiness
        assert state.state is ModelState.LOADING
        assert state.reason == "no head is called `attic`; `tiny` on `desk` is loading: 40 %"
        await desk.tell(TINY)
        await here.head("attic", TINY, BIG)
        assert state_of(here.api) is ModelState.READY
        assert here.api.readiness.reason == "models: big on attic, tiny on attic and desk"
        assert [model.upstream.model_name for model in here.api.all] == ["big", "tiny"]


async def test_a_model_that_no_head_has_is_not_found() -> None:
    async with scene() as here:
        assert here.api.find(ModelWish("tiny")) is None
        await here.head("one", TINY)
        assert here.call("gpt-4o").model_name == "tiny", "there is but one"
        await here.head("two", BIG)
        assert here.api.find(ModelWish("gpt-4o")) is None
        assert here.call("big").model_name == "big" and here.call().model_name == ""


async def test_a_change_of_the_api_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.set_up(level="info")
    try:
        async with scene() as here:
            head = await here.head("one", TINY)
            await asyncio.sleep(5)
            await head.tell(BIG)
            await asyncio.sleep(5)
    finally:
        log.set_up(level="warning")
    lines = [line for line in capsys.readouterr().err.splitlines() if "api_state" in line]
    assert len(lines) == 3 and "state=waiting" in lines[0]
    assert "tiny on one" in lines[1] and "big on one" in lines[2]


@pytest.mark.parametrize(
    ("model", "facts"),
    [
        (TINY, ServedFacts()),
        (
            replace(TINY, context=4096, created=7, capabilities=("completion", "tools")),
            ServedFacts(context=4096, created=7, capabilities=("completion", "tools")),
        ),
        (replace(TINY, takes=False, context=4096), ServedFacts()),
    ],
)
async def test_facts_are_those_of_the_head_that_would_be_asked(model: ApiModel, facts: ServedFacts) -> None:
    async with scene() as here:
        await here.head("one", model)
        assert here.call("tiny").facts == facts


async def test_a_request_is_carried_to_the_best_head_and_counted_until_it_is_over() -> None:
    async with scene() as here:
        one = await here.head("one", TINY)
        await here.head("two", replace(TINY, requests=3))
        call = here.call("tiny")
        assert call.slots is None and call.tunnel is None and here.api.status.tunnels == []
        async with connected(call) as connection:
            [way] = here.ways
            asked = way.asked
            assert (asked.peer, asked.service, asked.endpoint, dict(asked.metadata)) == (
                one.peer,
                API_SERVICE,
                "",
                {},
            )
            assert way.serving and not connection.getblocking()
            connection.send(b"x")
            assert asked.end.recv(9) == b"x", "its other end"
            assert here.api.status.tunnels == [way.status] == [call.tunnel]
            assert here.mine == {"one": 1, "two": 0}
            way.over.set()
            await asyncio.sleep(0.01)
            assert way.closed and here.mine == {"one": 0, "two": 0}
            assert here.api.status.tunnels == [] and not here.api.open_calls


async def test_requests_spread_before_heads_have_counted_them() -> None:
    async with scene() as here:
        for name in ("one", "two"):
            await here.head(name, TINY)
        sockets = [await here.call("tiny").connect() for _ in range(4)]
        assert sorted(here.chosen) == ["one", "one", "two", "two"]
        assert here.mine == {"one": 2, "two": 2}
        for connection in sockets:
            connection.close()


@pytest.mark.parametrize(
    ("asks_key", "keys", "proofs"),
    [(False, 1, 0), (True, 0, 0), (True, 1, 1), (True, MAX_PROOFS + 1, MAX_PROOFS)],
)
async def test_keys_are_proven_to_heads_that_ask_for_one(asks_key: bool, keys: int, proofs: int) -> None:
    async with scene() as here:
        head = await here.head("one", TINY, asks_key=asks_key)
        async with connected(here.call("tiny", keys=KEYS[:keys])):
            shown: Mapping[str, object] = here.ways[0].asked.metadata
    proven = b"".join(prove_key(key, head=head.peer, member=here.api.me) for key in KEYS[:proofs])
    assert shown == ({KEY_PROOF: proven} if proofs else {})


async def test_without_a_head_there_is_no_connection_but_a_reason() -> None:
    async with scene() as here:
        head = await here.head("one", TINY)
        call = here.call("tiny")
        assert state_of(call) is ModelState.READY and call.readiness.reason == ""
        await head.tell(LOADING)
        assert state_of(call) is ModelState.LOADING
        with pytest.raises(Broken, match="`tiny` on `one` is loading: 40 %"):
            await call.connect()
        await head.tell(TINY)
    with pytest.raises(Broken):
        await call.connect()
    assert here.ways == []


@pytest.mark.parametrize(
    ("status", "refusal"), [(200, False), (500, False), (501, False), (502, True), (503, True), (504, False)]
)
async def test_another_head_may_take_what_one_refuses(status: int, refusal: bool) -> None:
    async with scene() as here:
        await here.head("one", TINY)
        call = here.call("tiny")
        async with connected(call):
            assert call.is_refusal(status) is refusal
            reason = await call.upstream_broke("busy")
        assert reason == ("`one`: busy" if refusal else "`one` broke the answer off")


async def test_a_request_tries_each_head_once_and_all_reasons_are_given() -> None:
    async with scene() as here:
        one, two, three = [await here.head(name, TINY) for name in ("one", "two", "three")]
        call = here.call("tiny")
        assert await call.upstream_broke("nobody was asked") == "nobody was asked"
        async with connected(call):
            call.is_refusal(503)
            assert await call.upstream_broke("busy") == f"`{here.chosen[0]}`: busy"
        async with connected(call):
            here.ways[1].asked.on_broken(Broken("no link for 20 s"))
            here.ways[1].asked.on_broken(Broken("closed"))
            reasons = await call.upstream_broke("llama-server exited")
            assert reasons.endswith(f"; the connection to `{here.chosen[1]}` was lost: no link for 20 s")
        async with connected(call):
            reasons = await call.upstream_broke("llama-server exited")
            assert reasons.count("; ") == 2 and reasons.endswith(f"; `{here.chosen[2]}` broke the answer off")
        assert sorted(here.chosen) == ["one", "three", "two"]
        assert state_of(call) is ModelState.FAILED
        with pytest.raises(Broken):
            await call.connect()
        avoided = {head.name: head.avoided_until for head in here.api.heads.known()}
        assert avoided == dict.fromkeys(
            ("one", "two", "three"), pytest.approx(now() + HEAD_AVOIDED_SECONDS, abs=0.1)
        )
        assert {one.peer, two.peer, three.peer} == {way.asked.peer for way in here.ways}


async def test_other_requests_avoid_a_head_that_broke_one_off() -> None:
    async with scene() as here:
        for name in ("one", "two"):
            await here.head(name, TINY)
        call = here.call("tiny")
        async with connected(call):
            await call.upstream_broke("gone")
        for _ in range(2):
            async with connected(here.call("tiny")):
                pass
        first, *others = here.chosen
        assert set(others) == {"one", "two"} - {first}


async def test_a_lost_request_waits_while_some_head_may_load_its_model() -> None:
    async with scene() as here:
        await here.head("one", TINY)
        call = here.call("tiny")
        async with connected(call):
            await call.upstream_broke("gone")
        assert state_of(call) is ModelState.FAILED
        two = await here.head("two", FAILED)
        assert state_of(call) is ModelState.FAILED
        await two.tell(LOADING)
        assert state_of(call) is ModelState.LOADING
        await two.tell(TINY)
        assert state_of(call) is ModelState.READY


@pytest.mark.parametrize(
    ("before", "after", "other", "state"),
    [
        (TINY, TINY, TINY, ModelState.READY),
        (TINY, TINY, replace(TINY, fingerprint=b"o" * 32), ModelState.FAILED),
        # it was loaded for the request: its head tells later with which weights
        (replace(TINY, fingerprint=b""), TINY, TINY, ModelState.READY),
        (replace(TINY, fingerprint=b""), TINY, replace(TINY, fingerprint=b"o" * 32), ModelState.FAILED),
        (replace(TINY, fingerprint=b""), replace(TINY, fingerprint=b""), TINY, ModelState.FAILED),
    ],
)
async def test_what_has_begun_goes_on_with_the_same_weights_alone(
    before: ApiModel, after: ApiModel, other: ApiModel, state: ModelState
) -> None:
    async with scene() as here:
        one = await here.head("one", before)
        call = here.call("tiny")
        call.generated(1, 1, alone=True)  # nobody was asked: it says nothing
        async with connected(call):
            await here.head("two", other)
            await one.tell(after)
            call.generated(1, 1, alone=True)
            if after.fingerprint:
                await one.tell(replace(TINY, fingerprint=b"x" * 32))  # the next model is another one
            call.generated(2, 1, alone=True)
            await call.upstream_broke("gone")
        assert state_of(call) is state
        if after.fingerprint == b"":
            assert "not known with which weights" in call.readiness.reason


async def test_what_has_not_begun_may_go_on_anywhere() -> None:
    async with scene() as here:
        await here.head("one", TINY)
        call = here.call("tiny")
        async with connected(call):
            await here.head("two", replace(TINY, fingerprint=b"o" * 32))
            await call.upstream_broke("gone")
        async with connected(call):
            assert here.chosen == ["one", "two"]


@pytest.mark.parametrize(("others", "left_after"), [(0, None), (1, HEAD_AWAY_SECONDS)])
async def test_a_head_without_a_link_is_left_if_another_can_answer(
    others: int, left_after: float | None
) -> None:
    async with scene() as here:
        one = await here.head("one", TINY)
        call, rest = here.call("tiny"), here.call("tiny")
        async with connected(call), connected(rest):
            for number in range(others):
                await here.head(f"other {number}", TINY)
            one.lose()
            began = now()
            way = here.ways[0]
            if left_after is None:
                await asyncio.sleep(60)
                assert not way.closed and here.mine["one"] == 2
                return
            await until(lambda: way.closed)
            assert left_after <= now() - began <= left_after + 0.6 and way.cancelled
            assert here.mine == {"one": 0, "other 0": 0} and here.api.status.tunnels == []
            reason = await call.upstream_broke("llama-server exited")
            assert reason == "the connection to `one` was lost: nothing was heard from it for some seconds"


async def test_a_head_that_is_there_is_not_left_for_another() -> None:
    async with scene() as here:
        await here.head("one", TINY)
        async with connected(here.call("tiny")):
            await here.head("two", TINY)
            await asyncio.sleep(60)
            assert not here.ways[0].closed


async def test_the_first_reason_of_a_lost_connection_is_kept() -> None:
    async with scene() as here:
        one = await here.head("one", TINY)
        call = here.call("tiny")
        async with connected(call):
            await here.head("two", TINY)
            here.ways[0].asked.on_broken(Broken("its certificate ended"))
            one.lose()
            await until(lambda: here.ways[0].closed)
            assert (await call.upstream_broke("x")).endswith("was lost: its certificate ended")


async def test_a_new_connection_of_a_call_is_not_ended_with_the_old_one() -> None:
    async with scene() as here:
        await here.head("one", TINY)
        await here.head("two", TINY)
        call = here.call("tiny")
        async with connected(call):
            await call.upstream_broke("gone")
            async with connected(call):
                first, second = here.ways
                first.over.set()
                await asyncio.sleep(0.01)
                assert first.closed and not second.closed
                assert here.api.status.tunnels == [second.status] and here.api.open_calls == {call}
                assert sorted(here.mine.values()) == [0, 1]


async def test_a_connection_that_cannot_be_carried_leaves_nothing() -> None:
    """All that runs is being ended, and a request asks for a head meanwhile."""
    async with scene() as here:
        await here.head("one", TINY)
        call, before = here.call("tiny"), here.api.owner

        async def asks_late() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                with pytest.raises(Closed):
                    await call.connect()

        async def ending() -> None:
            async with Owner() as owner:
                here.api.owner = owner
                owner.start(asks_late(), name="late")
                await asyncio.sleep(1000)

        task = asyncio.get_running_loop().create_task(ending())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        here.api.owner = before
        [way] = here.ways
        assert way.closed and not way.serving and way.asked.end.fileno() == -1
        assert here.mine == {"one": 0} and here.api.status.tunnels == [] and not here.api.open_calls
        async with connected(call):
            assert here.mine == {"one": 1}
