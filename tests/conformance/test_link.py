"""Test the contract of link/interface.py for each kind of link."""

import asyncio
import random

import pytest
from meshd.base.errors import Broken, Busy, Closed, EndOfStream
from meshd.base.tasks import Owner
from meshd.link.interface import TRANSPORTS, Link

from tests.conformance.links import RIGS, Ends, Rig

pytestmark = pytest.mark.parametrize("rig", RIGS)

BLOCK = bytes(random.Random(1).randbytes(64 << 10))


async def read_exactly(link: Link, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        chunk = await link.receive()
        assert chunk
        got += chunk
    assert len(got) == count
    return bytes(got)


async def test_both_ends_know_each_other(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        assert (dialled.info.peer, accepted.info.peer) == (ends.far.peer, ends.near.peer)
        assert dialled.info.member.peer == ends.far.peer
        assert accepted.info.member.peer == ends.near.peer
        assert (dialled.info.dialled, accepted.info.dialled) == (True, False)
        assert dialled.info.kind == accepted.info.kind == ends.listener.kind
        assert TRANSPORTS[ends.dialer.transport].kind == ends.listener.kind
        assert dialled.info.established_at <= asyncio.get_running_loop().time()
        await dialled.aclose()


async def test_bytes_arrive_in_order_both_ways_at_once(rig: Rig) -> None:
    rng = random.Random(7)
    there, back = rng.randbytes(3_000_000), rng.randbytes(2_500_000)

    async def write(link: Link, data: bytes) -> None:
        sizes = random.Random(len(data))
        view, at = memoryview(data), 0
        while at < len(data):
            pieces: list[bytes | memoryview] = []
            for _ in range(sizes.randrange(1, 5)):
                size = sizes.choice([0, 1, 20, 4095, 4096, 16384, 20_000, 65_536, 262_144])
                piece = view[at : at + size]
                pieces.append(bytes(piece) if sizes.random() < 0.5 else piece)
                at += len(piece)
            await link.send(pieces)

    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        async with Owner() as owner:
            owner.start(write(dialled, there), name="there")
            owner.start(write(accepted, back), name="back")
            first = owner.start(read_exactly(accepted, len(there)), name="reads there")
            second = owner.start(read_exactly(dialled, len(back)), name="reads back")
        assert first.result() == there
        assert second.result() == back
        await dialled.aclose()


async def test_a_clean_end_comes_after_all_bytes(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        await dialled.send([b"last ", BLOCK[:30_000]])  # below every high-water mark: does not wait
        await dialled.aclose()
        assert await read_exactly(accepted, 30_005) == b"last " + BLOCK[:30_000]
        for _ in range(2):
            with pytest.raises(EndOfStream):
                await accepted.receive()
        with pytest.raises(Broken):
            await accepted.send([b"nobody there"])
        await accepted.aclose()


async def test_a_closed_link_says_closed(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        async with Owner() as owner:
            waiting = owner.start(outcome(dialled), name="waiting")
            await asyncio.sleep(0)
            await dialled.aclose()
        assert waiting.result() is Closed
        await dialled.aclose()
        with pytest.raises(Closed):
            await dialled.receive()
        with pytest.raises(Closed):
            await dialled.send([b"x"])
        with pytest.raises(EndOfStream):
            await accepted.receive()


async def outcome(link: Link) -> type[Exception]:
    """The error that ends reading."""
    try:
        while True:
            await link.receive()
    except (Broken, Closed, EndOfStream) as error:
        return type(error)


async def clog(link: Link, *, most: int = 64 << 20) -> tuple[int, asyncio.Task[None]]:
    """Send until nothing more is taken; returns what was taken and the send that waits."""
    taken = 0

    async def send_on() -> None:
        nonlocal taken
        while True:
            await link.send([BLOCK])
            taken += len(BLOCK)
            assert taken < most, "a reader that does not read was sent too much"

    task = asyncio.get_running_loop().create_task(send_on())
    before, quiet = -1, 0
    while quiet < 5:  # the kernel may shuffle bytes on for a while, or a lost datagram come again
        quiet = quiet + 1 if before == taken else 0
        before = taken
        await asyncio.sleep(0.1)
        assert not task.done()
    return taken, task


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_reader_that_stops_stops_the_writer(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        taken, sending = await clog(dialled)
        with pytest.raises(Busy):
            await dialled.send([b"second"])
        # the cancelled send went out whole or not at all, and what follows it is in order
        await stop(sending)
        for _ in range(100):  # nor does trying again and again get more in
            again = asyncio.get_running_loop().create_task(dialled.send([BLOCK]))
            await asyncio.sleep(0)
            await stop(again)
        reading = asyncio.get_running_loop().create_task(read_to_end(accepted))
        await dialled.send([b"the end"])
        await dialled.aclose()
        got = await reading
        assert got.endswith(b"the end")
        blocks, rest = divmod(len(got) - len(b"the end"), len(BLOCK))
        assert rest == 0
        assert got[: blocks * len(BLOCK)] == BLOCK * blocks
        assert blocks <= taken // len(BLOCK) + 2


async def read_to_end(link: Link) -> bytes:
    got = bytearray()
    try:
        while True:
            got += await link.receive()
    except EndOfStream:
        return bytes(got)


async def test_sending_without_waiting(rig: Rig) -> None:
    """Taken at once while there is room; never in front of a send that waits; the end is told."""

    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        sent = 0
        while sent < 64 << 20 and dialled.try_send([BLOCK[:100], BLOCK[100:]]):
            sent += 1
        assert 0 < sent < 64 << 20
        waiting = asyncio.get_running_loop().create_task(dialled.send([b"after"]))
        await asyncio.sleep(0)
        if not waiting.done():
            assert not dialled.try_send([b"before"])
        assert await read_exactly(accepted, sent * len(BLOCK) + 5) == BLOCK * sent + b"after"
        await waiting
        assert dialled.try_send([b"again"])
        assert await read_exactly(accepted, 5) == b"again"
        await dialled.aclose()
        with pytest.raises(Closed):
            dialled.try_send([b"x"])
        with pytest.raises(EndOfStream):
            await accepted.receive()
        with pytest.raises(Broken):
            accepted.try_send([b"x"])


async def test_the_other_way_is_free_while_one_is_clogged(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        _, sending = await clog(dialled)
        await accepted.send([b"still here"])
        assert await dialled.receive() == b"still here"
        await stop(sending)
        await dialled.aclose()  # in spite of what cannot go out


async def test_one_reads_at_a_time(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        first = asyncio.get_running_loop().create_task(dialled.receive())
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await dialled.receive()
        await accepted.send([b"for the first"])
        assert await first == b"for the first"
        await dialled.aclose()


async def test_a_cancelled_receive_loses_nothing(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        got = bytearray()
        for number in range(50):
            reading = asyncio.get_running_loop().create_task(dialled.receive())
            await asyncio.sleep(0)
            await accepted.send([b"%3d" % number])
            for _ in range(number % 7):
                await asyncio.sleep(0)
            reading.cancel()
            try:
                got += await reading
            except asyncio.CancelledError:
                continue
        got += await read_exactly(dialled, 150 - len(got)) if len(got) < 150 else b""
        assert got == b"".join(b"%3d" % number for number in range(50))
        await dialled.aclose()


async def test_a_cut_wire_is_broken_on_both_ends(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        async with Owner() as owner:
            near = owner.start(outcome(dialled), name="near")
            far = owner.start(outcome(accepted), name="far")
            await asyncio.sleep(0)
            ends.wire.cut()
        assert issubclass(near.result(), Broken) and issubclass(far.result(), Broken)
        for link in (dialled, accepted):
            with pytest.raises(Broken):
                await link.send([b"x"])
            await link.aclose()


async def test_a_cut_wire_wakes_a_clogged_writer(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, _ = await ends.pair()
        _, sending = await clog(dialled)
        ends.wire.cut()
        with pytest.raises(Broken):
            await sending
        await dialled.aclose()


@pytest.mark.parametrize("silent", ["up", "down", "both"])
async def test_a_half_dead_wire_still_lets_go(rig: Rig, silent: str) -> None:
    """Finding out is the session's work (its pings); here: the living half lives, and closing ends."""

    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        ends.wire.stall(up=silent != "down", down=silent != "up")
        if silent == "up":
            await accepted.send([b"heard"])
            assert await dialled.receive() == b"heard"
        if silent == "down":
            await dialled.send([b"heard"])
            assert await accepted.receive() == b"heard"
        async with asyncio.timeout(10):  # the contract is 1 s; this only tells "ends" from "hangs"
            await dialled.aclose()
            await accepted.aclose()


async def test_a_stalled_wire_goes_on_where_it_was(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        ends.wire.stall()
        await dialled.send([b"late"])
        ends.wire.flow()
        assert await accepted.receive() == b"late"
        await dialled.aclose()


async def test_many_links_at_once_stay_apart(rig: Rig) -> None:
    async def one(ends: Ends, number: int) -> None:
        link = await ends.dial()
        await link.send([b"%d" % number])
        assert await link.receive() == b"%d!" % number
        await link.aclose()

    async def answer(ends: Ends, count: int) -> None:
        for _ in range(count):
            link = await ends.accepted.get()
            await link.send([await link.receive(), b"!"])

    async with rig.ends() as ends, Owner() as owner:
        for number in range(6):
            owner.start(one(ends, number), name=f"dial {number}")
        owner.start(answer(ends, 6), name="answer")
