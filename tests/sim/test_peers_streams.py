"""Streams between real nodes on a virtual clock: order, back-pressure, refusal, reset, cuts anywhere."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Broken, Busy, EndOfStream, Refused
from meshd.identity.membership import Role
from meshd.mux.config import MuxConfig
from meshd.mux.events import Code
from meshd.mux.session import StreamStatus
from meshd.peer.interface import PeerState, Stream

from tests.sim.echo import serve_echo
from tests.sim.loop import run
from tests.sim.world import World, WorldNode, pair

ANYBODY = lambda _member, _metadata: None  # noqa: E731


class Sink:
    """A service that collects; each of its streams waits until it may go on."""

    def __init__(self, node: WorldNode, *, reads: bool = True) -> None:
        self.received = bytearray()
        self.stream: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self.error: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.may_read = asyncio.Event()
        if reads:
            self.may_read.set()
        node.mesh.handle("sink", self._collect, allow=ANYBODY)

    async def _collect(self, stream: Stream) -> None:
        self.stream.set_result(stream)
        await self.may_read.wait()
        try:
            while True:
                chunk = await stream.read()
                self.received += chunk
                stream.consumed(len(chunk))
        except EndOfStream:
            self.error.set_result("end")
            stream.write_eof()
        except Broken as error:
            self.error.set_result(error.what)
            raise


@pytest.mark.virtual
async def test_who_may_not_use_a_service_is_told_why() -> None:
    async with World() as world:
        one, other = world.node("anna", roles=frozenset({Role.WORK})), world.node("bert")
        one.knows(other)
        other.mesh.handle(
            "rpc",
            lambda stream: asyncio.sleep(0),
            allow=lambda member, metadata: (
                None if Role.USE in member.roles else f"role `use` is missing for {metadata['what']!r}"
            ),
        )
        other.start()
        one.start()
        await one.sees(other, PeerState.CONNECTED)
        refused = one.mesh.open_stream(other.peer, "rpc", metadata={"what": b"lease"})
        with pytest.raises(Refused, match=r"role `use` is missing for b'lease'"):
            await refused.read()
        unknown = one.mesh.open_stream(other.peer, "x" * 64, metadata={})
        with pytest.raises(Refused, match="no service `xxx"):
            await unknown.accepted()
        serve_echo(one)
        welcome = other.mesh.open_stream(one.peer, "echo", metadata={})
        await welcome.accepted()


@pytest.mark.virtual
async def test_a_reset_reaches_the_other_side_and_nothing_else() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        sink = Sink(follower)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "sink", metadata={})
        beside = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        await stream.write(b"something")
        await sink.stream
        stream.reset(Code.CANCELLED, "its user went away")
        assert await sink.error == "the peer reset the stream: its user went away"
        with pytest.raises(Broken, match="its user went away"):
            await stream.write(b"more")
        await beside.accepted()
        assert leader.status_of(follower).state is PeerState.CONNECTED


@pytest.mark.virtual
async def test_a_reader_that_stops_stops_the_writer() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        sink = Sink(follower, reads=False)
        stream = leader.mesh.open_stream(follower.peer, "sink", metadata={})
        data = random.Random(1).randbytes(4 << 20)
        writer = world.owner.start(stream.write(data), name="writer")
        await asyncio.sleep(60)
        assert not writer.done()
        session = leader.mesh.table[follower.peer].streams
        assert session is not None
        written = next(s for s in session.session.status().streams if s.service == "sink").written
        assert 0 < written <= 2 * MuxConfig().stream_window
        sink.may_read.set()
        await writer
        stream.write_eof()
        assert await sink.error == "end"
        assert bytes(sink.received) == data


@pytest.mark.virtual
async def test_two_tasks_at_one_end_are_told_so() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        Sink(follower, reads=False)
        stream = leader.mesh.open_stream(follower.peer, "sink", metadata={})

        async def read() -> None:
            with pytest.raises(Broken):
                await stream.read()

        async def write() -> None:
            with pytest.raises(Broken):
                await stream.write(bytes(8 << 20))

        first = [world.owner.start(work, name="first") for work in (read(), write())]
        await asyncio.sleep(1)
        with pytest.raises(Busy):
            await stream.read()
        with pytest.raises(Busy):
            await stream.write(b"x")
        assert stream.try_write(b"x") == 0
        stream.reset(Code.NONE, "done")
        await asyncio.wait(first)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1 << 32),
    cuts=st.lists(st.integers(1, 40_000) | st.integers(1, 3000), min_size=1, max_size=20),
    sizes=st.lists(st.integers(30_000, 150_000), min_size=1, max_size=4),
)
def test_cuts_at_any_byte_lose_double_and_reorder_nothing(
    seed: int, cuts: list[int], sizes: list[int]
) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with World() as world:
            leader, follower = await pair(world, grace=3600)
            cable = world.cable("anna", "bert")

            for node in (leader, follower):
                serve_echo(node)

            async def talk(near: WorldNode, far: WorldNode, data: bytes) -> None:
                stream = near.mesh.open_stream(far.peer, "echo", metadata={})
                back = bytearray()

                async def send() -> None:
                    at = 0
                    while at < len(data):
                        size = rng.randint(1, 9000)
                        await stream.write(data[at : at + size])
                        at += size
                    stream.write_eof()

                sender = world.owner.start(send(), name="sender")
                try:
                    while True:
                        chunk = await stream.read()
                        back += chunk
                        stream.consumed(len(chunk))
                except EndOfStream:
                    pass
                await sender
                assert bytes(back) == data

            cable.due.extend(cuts)
            async with asyncio.timeout(3600):
                talks = [
                    world.owner.start(talk(*ends, rng.randbytes(size)), name="talk")
                    for size in sizes
                    for ends in ((leader, follower), (follower, leader))
                ]
                await asyncio.wait(talks)
                for done in talks:
                    done.result()
            assert cable.cuts == len(cuts) or sum(cuts) > sum(sizes)

    run(main())


@pytest.mark.virtual
async def test_cancel_at_every_turn_leaves_the_session_whole() -> None:
    """A task that writes and reads is cancelled after n turns of the loop, for every n."""
    async with World() as world:
        leader, follower = await pair(world)

        serve_echo(follower)

        async def use() -> None:
            stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
            try:
                await stream.accepted()
                await stream.write(bytes(280_000))
                stream.write_eof()
                count = 0
                while count < 280_000:
                    chunk = await stream.read()
                    count += len(chunk)
                    stream.consumed(len(chunk))
            except asyncio.CancelledError:
                stream.reset(Code.CANCELLED, "cancelled")
                raise

        turns, finished = 0, False
        while not finished:
            task = world.owner.start(use(), name="user")
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = task.done()
            task.cancel()
            await asyncio.wait([task])
            turns += 1 + turns // 20
        assert turns > 20
        await asyncio.sleep(5)
        for node, far in ((leader, follower), (follower, leader)):
            streams = node.mesh.table[far.peer].streams
            assert streams is not None
            assert {s.service for s in streams.session.status().streams} == {"news"}
            assert len(streams.by_id) == 1


@pytest.mark.virtual
async def test_who_is_connected_costs_the_same_however_many_streams_a_member_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked_at(_stream: object) -> StreamStatus:
        raise AssertionError("a stream is looked at to tell what links there are")

    async with World() as world:
        leader, follower = await pair(world)
        for _ in range(50):
            leader.mesh.open_stream(follower.peer, "nothing", metadata={})
        monkeypatch.setattr(StreamStatus, "of", looked_at)
        assert leader.mesh.direct() == [follower.peer]
        assert follower.mesh.direct() == [leader.peer]
        assert leader.status_of(follower).paths
