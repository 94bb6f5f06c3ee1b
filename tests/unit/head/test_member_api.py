"""Test what members are told of a head's models, and how they call its API."""

import asyncio
import hashlib
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest
from meshd.base.admission import Share
from meshd.base.errors import Broken, EndOfStream, Refused
from meshd.base.peer_limits import API_CALLS_OF_PEER, SERVING_TOLD_OF_PEER
from meshd.base.tasks import Owner
from meshd.devices.capacity import NOT_FOR_YOU
from meshd.gateway.interface import MemberCaller, MemberGate
from meshd.head.member_api import MemberApi, served_models
from meshd.identity.membership import Role
from meshd.identity.proof import prove_key
from meshd.model.served_facts import ServedFacts
from meshd.model.status import AnswersAtOnce, ModelState, ModelStatus
from meshd.peer.interface import MetadataValue, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import (
    API_SERVICE,
    KEY_PROOF,
    SERVING_SERVICE,
    ApiModel,
    ServingTold,
    decode_serving,
)

from tests.unit.head.fake_mesh import Net

pytestmark = pytest.mark.virtual

STATUS = ModelStatus(
    name="tiny",
    fingerprint="f0" * 32,
    state=ModelState.READY,
    reason="loaded",
    load_seconds=1.0,
    weights_local_bytes=0,
    weights_network_bytes=0,
    tensors_from_network=(),
    bytes_per_token=None,
    split=(),
    answers=AnswersAtOnce(slots=4, tokens=4096),
    aliases=("gpt-4o",),
)
NEVER_LOADED = replace(
    STATUS, name="big", fingerprint="", state=ModelState.UNLOADED, answers=None, aliases=()
)


def test_all_models_are_told_with_what_each_has_to_do() -> None:
    facts = {"tiny": ServedFacts(4096, 8192, 1_770_000_000, capabilities=("completion", "tools"))}
    told = served_models(
        [STATUS, NEVER_LOADED],
        {"tiny": 3, "big": 0}.__getitem__,
        lambda name: facts.get(name, ServedFacts()),
        on_demand=True,
    )
    tiny = ApiModel("tiny", "ready", True, "loaded", 3, 4, b"\xf0" * 32, aliases=("gpt-4o",))
    assert told == (
        replace(tiny, context=4096, created=1_770_000_000, capabilities=("completion", "tools")),
        ApiModel("big", "unloaded", True, "loaded", 0, 1, capabilities=("completion",)),
    )


@pytest.mark.parametrize("state", ModelState)
def test_a_model_takes_requests_while_it_can_be_had_in_time(state: ModelState) -> None:
    status = replace(STATUS, state=state)
    [on_demand] = served_models([status], lambda _name: 0, lambda _name: ServedFacts(), on_demand=True)
    [alone] = served_models([status], lambda _name: 0, lambda _name: ServedFacts(), on_demand=False)
    assert alone.takes == (state is ModelState.READY)
    assert on_demand.takes == (state in (ModelState.READY, ModelState.LOADING, ModelState.UNLOADED))


# The API and what is told of it, over streams of members.

MODELS = (ApiModel("tiny", "ready", True),)
LOOK_SECONDS = 0.25


class Api:
    """A head whose API members use, and one of them. It is its own gate."""

    def __init__(self, owner: Owner, *digests: bytes, roles: frozenset[Role] = frozenset(Role)) -> None:
        net = Net(owner)
        self.key_digests: Collection[bytes] = digests
        self.head, self.member = net.mesh("head", "serve"), net.mesh("member", roles=roles)
        self.models: Sequence[ApiModel] = MODELS
        self.looks = 0
        self.callers: list[tuple[socket.socket, MemberCaller]] = []
        self.joined: list[tuple[Stream, socket.socket]] = []
        self.full = False
        self.over = asyncio.Event()
        self._owner = owner
        MemberApi(self.head, self._join, cast(MemberGate, self), self._serves, me=self.head.key.peer)

    async def take(self, end: socket.socket, caller: MemberCaller) -> None:
        if self.full:
            end.close()
            raise Refused("the API is full", code="busy")
        self.callers.append((end, caller))

    async def _join(self, stream: Stream, end: socket.socket, **_options: object) -> None:
        self.joined.append((stream, end))
        await self.over.wait()

    def _serves(self) -> Sequence[ApiModel]:
        self.looks += 1
        return self.models

    def call(self, service: str = API_SERVICE, **metadata: MetadataValue) -> Stream:
        return self.member.open_stream(self.head.key.peer, service, metadata=metadata)

    def end(self) -> None:
        self.over.set()
        for end, _ in (*self.callers, *((end, None) for _, end in self.joined)):
            end.close()


async def test_a_members_call_is_joined_with_the_api() -> None:
    async with Owner() as owner:
        api = Api(owner)
        stream = api.call()
        await stream.accepted()
        await asyncio.sleep(0.01)
        [(theirs, caller)], [(joined, ours)] = api.callers, api.joined
        theirs.send(b"an answer")
        assert ours.recv(99) == b"an answer"
        assert caller == MemberCaller(hashlib.sha256(api.member.key.peer.raw).digest())
        assert joined.peer == api.member.key.peer
        api.end()


async def test_a_call_that_the_api_does_not_take_ends() -> None:
    async with Owner() as owner:
        api = Api(owner)
        api.full = True
        with pytest.raises(Broken, match="full"):
            await api.call().read()
        assert api.joined == []


async def test_where_keys_are_asked_for_a_member_proves_that_it_has_one() -> None:
    async with Owner() as owner:
        digest = hashlib.sha256(b"the key").digest()
        api = Api(owner, digest)
        proof = prove_key(digest, head=api.head.key.peer, member=api.member.key.peer)
        shown: Sequence[Mapping[str, MetadataValue]] = (
            {KEY_PROOF: proof},
            {KEY_PROOF: bytes(len(proof))},
            {KEY_PROOF: 7},
            {},
        )
        for metadata in shown:
            api.call(API_SERVICE, **metadata)
        await asyncio.sleep(0.01)
        assert [caller for _, caller in api.callers] == [
            MemberCaller(digest),
            MemberCaller(None),
            MemberCaller(None),
            MemberCaller(None),
        ]
        api.end()


@pytest.mark.parametrize(
    ("service", "share"), [(API_SERVICE, API_CALLS_OF_PEER), (SERVING_SERVICE, SERVING_TOLD_OF_PEER)]
)
async def test_who_may_not_use_the_mesh_and_who_asks_too_often_is_refused(service: str, share: Share) -> None:
    async with Owner() as owner:
        guest = Api(owner, roles=frozenset({Role.WORK}))
        with pytest.raises(Refused, match=NOT_FOR_YOU[:20]):
            await guest.call(service).accepted()
        api = Api(owner)
        streams = [api.call(service) for _ in range(share.most + 1)]
        for stream in streams[:-1]:
            await stream.accepted()
        with pytest.raises(Refused, match="too many"):
            await streams[-1].accepted()
        api.end()
        await asyncio.sleep(0.01)
        if service == API_SERVICE:
            await api.call(service).accepted()
            await asyncio.sleep(0.01)
            api.end()
        owner.cancel()


async def test_what_is_served_is_told_when_it_changes_and_looked_up_once_for_all() -> None:
    async with Owner() as owner:
        api = Api(owner)
        streams = [MessageStream(api.call(SERVING_SERVICE)) for _ in range(SERVING_TOLD_OF_PEER.most)]
        for stream in streams:
            assert decode_serving(await stream.receive()) == ServingTold(MODELS, False)
        assert api.looks == 1
        for stream in streams:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.receive(), 10 * LOOK_SECONDS)
        looks = api.looks
        await asyncio.sleep(4 * LOOK_SECONDS)
        assert api.looks - looks == pytest.approx(4, abs=1)
        api.models, api.key_digests = (replace(MODELS[0], takes=False),), (b"d" * 32,)
        began = asyncio.get_running_loop().time()
        for stream in streams:
            assert decode_serving(await stream.receive()) == ServingTold(tuple(api.models), True)
        assert asyncio.get_running_loop().time() - began <= LOOK_SECONDS + 0.01
        streams[0].stream.write_eof()
        with pytest.raises(EndOfStream):
            await streams[0].receive()
        await streams[1].send(b"what?")
        with pytest.raises(Broken):
            await streams[1].receive()
        owner.cancel()
