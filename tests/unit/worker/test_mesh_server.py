"""A worker's mesh-server: one connection with its head, and neighbours that are handed over."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.errors import Broken, EndOfStream, RemoteProtocolError
from meshd.base.local_way import LOCAL
from meshd.process.interface import ChildState
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_protocol import HUNG_SECONDS, PROGRESS_SECONDS
from meshd.wire.lease import PUSH_SERVICE, Admit, Introduced, LeaseMessage, Loaded, Lost, Neighbour, Reached
from meshd.worker.lent_streams import CLOSING_SECONDS
from meshd.worker.mesh_server import LOOK_SECONDS, ChildSilence, most_memory
from meshd.worker.push_neighbours import ARRIVAL, COMPLETE, NEIGHBOURS_SECONDS, REACH_SECONDS

from tests.unit.head.calls import MIB
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import LEASE, Other, head_stream, heard, lent, says

pytestmark = pytest.mark.virtual


async def test_the_one_stream_of_the_head_leads_to_the_server(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        memory = server.argv.index("--memory")
        assert server.argv[memory + 1] == str(100 * MIB)
        assert server.argv[server.argv.index("--device") + 1] == "CPU"
        assert "--weights-fd" not in server.argv
        stream = head_stream(it, call, grant)
        await stream.write(talk.hello())
        await asyncio.sleep(1)
        assert server.hears() == talk.hello()
        server.head.send(talk.welcome())
        assert await heard(stream) == talk.welcome()
        with pytest.raises(Broken, match="has its connection already"):
            await heard(head_stream(it, call, grant))
        await stream.write(talk.compute(5))  # of no graph: that is for the server to refuse
        await asyncio.sleep(1)
        assert server.hears() == talk.compute(5)
        await stream.write(wire.HEADER.pack(0, 99, 0, 1))
        with pytest.raises(Broken):
            await heard(stream)
        assert server.hears() == b"", "its end of the connection has ended"
        what, hint = it.worker.status.refused[-1]
        assert what.endswith("the head's llama-server broke the protocol: message 99") and hint
        await call.release()


async def test_a_neighbour_for_which_no_descriptor_is_free_is_none(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        it.bench.pairs_left = 0
        ours, theirs = Other(it), Other(it, "theirs")
        await says(call, ours.introduction(), Admit(theirs.peer.raw, 2), Introduced())
        assert await call.hears() == Reached(3, "no connection can be made: too many open files")
        with pytest.raises(Broken):
            await heard(theirs.push(it, grant))
        await asyncio.sleep(NEIGHBOURS_SECONDS)
        assert server.arrivals() == [(COMPLETE, 0, None)]
        await call.release()


async def test_one_that_is_suspended_is_killed(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _grant, _server):
        (child,) = it.bench.children
        assert child.status.pid is not None
        it.bench.stopped.add(child.status.pid)
        assert await call.hears() == Lost(
            "rpc_server_ended", "it is suspended (SIGSTOP), and does not answer"
        )
        assert child.killed
        await call.is_over()


async def test_a_server_without_neighbours_is_told_so_at_once(tmp_path: Path) -> None:
    async with lent(tmp_path) as (_it, call, _grant, server):
        await asyncio.sleep(100)
        assert server.arrivals() == [], "the head may name some yet"
        await says(call, Introduced())
        assert server.arrivals() == [(COMPLETE, 0, None)]


async def test_one_that_we_reach_is_handed_over_and_then_it_is_complete(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = Other(it)
        await says(call, other.introduction(), Introduced())
        assert await call.hears() == Reached(3, "")
        (tunnel,) = it.bench.tunnels
        assert (tunnel.asked.peer, tunnel.asked.service, dict(tunnel.asked.metadata)) == (
            other.peer,
            PUSH_SERVICE,
            {"lease": LEASE},
        )
        assert tunnel.asked.endpoint == "3"
        inspector = tunnel.asked.inspector
        assert inspector is not None
        assert inspector.to_peer(talk.pushed()) == talk.pushed()
        with pytest.raises(RemoteProtocolError):
            inspector.from_peer(talk.write())
        (asked,) = other.streams
        assert dict(asked.metadata) == {"lease": LEASE, "ask": 1, LOCAL: asked.metadata[LOCAL]}
        ours = tunnel.asked.end
        (_, number, theirs), last = server.arrivals()
        assert number == 3 and theirs is not None
        assert last == (COMPLETE, 0, None)
        with ours, theirs:
            ours.send(b"pushed")
            assert theirs.recv(100) == b"pushed"
        await asyncio.sleep(1000)
        await call.says(Loaded())  # the lease goes on
        await asyncio.sleep(1)
        assert [one.closed for one in it.bench.tunnels] == [False]
        assert [one.peer for one in it.worker.status.tunnels] == [other.peer]
        other.over.set()
        await asyncio.sleep(1)
        assert [one.closed for one in it.bench.tunnels] == [True]
        assert it.worker.status.tunnels == []
        await call.release()


async def test_one_that_reaches_us_is_handed_over_past_its_filter(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        other = Other(it)
        await says(call, Admit(other.peer.raw, 2), Introduced())
        await other.push(it, grant, ask=1).accepted()
        assert server.arrivals() == []
        stream = other.push(it, grant)
        await asyncio.sleep(0.1)
        (_, number, theirs), last = server.arrivals()
        assert number == 2 and theirs is not None
        assert last == (COMPLETE, 0, None)
        with theirs:
            theirs.setblocking(False)
            await stream.write(talk.pushed())
            await asyncio.sleep(0.1)
            assert theirs.recv(1000) == talk.pushed()
            theirs.send(talk.pushed(8))
            assert await heard(stream) == talk.pushed(8)
            await stream.write(talk.write())
            with pytest.raises(Broken):
                await heard(stream)
            await asyncio.sleep(0.1)
            assert theirs.recv(1000) == b"", "its end has ended"
        assert [status.state for status in it.worker.status.children] == [ChildState.READY]
        await call.release()


async def test_a_second_stream_of_one_or_a_late_one_is_refused(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        one, late = Other(it), Other(it, "late")
        await says(call, Admit(one.peer.raw, 1), Admit(late.peer.raw, 2), Introduced())
        one.push(it, grant)
        with pytest.raises(Broken, match="does not wait"):
            await heard(one.push(it, grant))
        await asyncio.sleep(NEIGHBOURS_SECONDS - 1)
        (first,) = server.arrivals()
        assert first[:2] == (ARRIVAL, 1)
        await asyncio.sleep(1.1)
        assert server.arrivals() == [(COMPLETE, 0, None)]
        with pytest.raises(Broken, match="does not wait"):
            await heard(late.push(it, grant))
        assert first[2] is not None
        first[2].close()
        await call.release()


PEER = bytes(range(32))


@pytest.mark.parametrize(
    "said",
    [
        (Admit(PEER, wire.NEIGHBOURS),),
        (Neighbour(wire.NEIGHBOURS, PEER, LEASE),),
        (Admit(PEER, 1), Admit(bytes(32), 1)),
        (Admit(PEER, 1), Neighbour(1, PEER, LEASE)),
        (Neighbour(1, PEER, LEASE), Neighbour(1, PEER, LEASE)),
        (Introduced(), Admit(PEER, 1)),
        (Introduced(), Introduced()),
    ],
)
async def test_a_head_that_names_them_wrongly_is_reset(
    tmp_path: Path, said: tuple[LeaseMessage, ...]
) -> None:
    async with lent(tmp_path) as (it, call, _grant, _server):
        await says(call, *said)
        with pytest.raises((Broken, EndOfStream)):
            while True:
                await asyncio.wait_for(call.messages.receive(), REACH_SECONDS * 3)
        await asyncio.sleep(1)
        assert it.worker.status.children == []


async def test_a_server_that_has_ended_is_handed_nothing(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = Other(it)
        it.bench.children[0].die("gone")
        assert await call.hears() == Lost("rpc_server_ended", "gone")
        await says(call, other.introduction(), Introduced())
        await call.is_over()
        assert server.arrivals() == []
        assert (other.streams, it.bench.tunnels) == ([], [])


async def test_what_a_server_that_ends_meanwhile_should_have_is_closed(tmp_path: Path) -> None:
    """It cannot be handed over; the lease ends for the server's reason, not for that."""
    async with lent(tmp_path) as (it, call, _grant, server):
        other = Other(it)
        server.close()
        it.bench.children[0].die("gone")
        await says(call, other.introduction(), Introduced())
        (tunnel,) = it.bench.tunnels
        assert tunnel.closed
        assert tunnel.asked.end.fileno() == -1
        assert await call.hears() == Lost("rpc_server_ended", "gone")
        await call.is_over()
        other.over.set()


async def test_streams_end_a_second_after_their_lease_whoever_keeps_them_open(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        other = Other(it)
        await says(call, Admit(other.peer.raw, 2), Introduced())
        streams = [head_stream(it, call, grant), other.push(it, grant), other.push(it, grant, ask=1)]
        await asyncio.sleep(0.1)
        (_, _, theirs), _ = server.arrivals()
        assert theirs is not None
        theirs.close()
        server.close()
        it.bench.children[0].die("gone")
        assert isinstance(await call.hears(), Lost)
        await asyncio.sleep(CLOSING_SECONDS - 0.1)
        for stream in streams:
            with pytest.raises(EndOfStream):  # this side's half alone
                await heard(stream)
        await asyncio.sleep(0.2)
        for stream in streams:
            with pytest.raises(Broken, match="reset"):
                await heard(stream)


async def test_a_stream_that_both_sides_close_ends_without_a_reset(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        stream = head_stream(it, call, grant)
        await asyncio.sleep(0.1)
        server.close()
        it.bench.children[0].die("gone")
        assert isinstance(await call.hears(), Lost)
        stream.write_eof()
        await asyncio.sleep(10 * CLOSING_SECONDS)
        with pytest.raises(EndOfStream):
            await heard(stream)


LOOKS = int(HUNG_SECONDS / LOOK_SECONDS)


def test_one_that_says_nothing_is_given_up() -> None:
    silence = ChildSilence()
    assert not any(silence.look(0) for _ in range(2 * LOOKS)), "it has not said WELCOME"
    assert not any(silence.look(100) for _ in range(1 + LOOKS))
    assert silence.look(100) == f"it hangs: it has said nothing for {HUNG_SECONDS + LOOK_SECONDS:.0f} s"


def test_one_that_hangs_is_found_within_thirty_seconds() -> None:
    """Counted from its last word, which may be as old as the time between two."""
    silence = ChildSilence()
    seconds = float(PROGRESS_SECONDS)
    while not silence.look(100):
        seconds += LOOK_SECONDS
    assert 10.0 < seconds < 30.0


def test_a_word_now_and_then_is_enough() -> None:
    silence = ChildSilence()
    for answered in range(100, 160, 24):
        assert not any(silence.look(answered) for _ in range(LOOKS))


def test_what_is_not_taken_from_it_is_no_silence() -> None:
    silence = ChildSilence()
    silence.look(100)
    silence.peer_waits(True)
    assert not any(silence.look(100) for _ in range(3 * LOOKS))
    silence.peer_waits(False)
    silence.target_waits(True)  # nor does it read: that is no excuse
    assert not any(silence.look(100) for _ in range(LOOKS))
    assert silence.look(100)


@pytest.mark.parametrize(
    ("lent", "threads", "most"),
    [
        # a small lease: the least work buffer and room for kept graphs; then both grow with the lease
        (0, 4, (64 + 4 + 48 + 4 * 8 + 256) << 20),
        (64 << 30, 4, (64 + 64 + 4 << 30) + (4 * 8 + 256 << 20)),
    ],
)
def test_memory_is_what_the_lease_and_the_limits_of_graphs_come_to(
    lent: int, threads: int, most: int
) -> None:
    assert most_memory(lent, threads) == most
