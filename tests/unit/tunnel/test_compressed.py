"""A compressed stream: the same bytes in order, fewer on the wire, all credit back, lies end it."""

import asyncio
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Broken, EndOfStream, RemoteProtocolError
from meshd.mux.events import Code
from meshd.peer.interface import PathStatus
from meshd.peer.streams import MeshStream
from meshd.tunnel.compressed import COMPRESSED, CompressedStream, as_agreed, judge
from meshd.wire.compressed import Compression, Encoder

from tests.conformance.run import run, until
from tests.unit.admin.test_snapshot import path
from tests.unit.tunnel.far import PEER, Port, read_all, streams
from tests.unit.tunnel.test_pump import scene, stands_still

NOTHING, REPEATS, ALL = Compression


def content(seed: int, size: int) -> bytes:
    """As RPC has it: headers, masks, activations."""
    rng = random.Random(seed)
    parts, made = [], 0
    while made < size:
        part = rng.choice(
            (
                lambda: b"tensor blk.%d " % rng.randrange(9) * rng.randrange(1, 30),
                lambda: bytes(rng.randrange(1, 60_000)),
                lambda: struct.pack("<5000f", *(rng.gauss(0, 1) for _ in range(5000))),
                lambda: rng.randbytes(rng.randrange(1, 30_000)),
            )
        )()
        parts.append(part)
        made += len(part)
    return b"".join(parts)[:size]


@settings(max_examples=30)
@given(
    window=st.integers(1, 200_000),
    most=st.integers(1, 70_000),
    pieces=st.lists(st.integers(1, 90_000), min_size=1, max_size=12),
    pauses=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_order_is_kept_and_all_credit_comes_back(
    window: int, most: int, pieces: list[int], pauses: list[int]
) -> None:
    window = max(window, sum(pieces) // 300)

    async def main() -> None:
        out, back = content(1, sum(pieces)), content(2, sum(pieces) // 2)
        async with scene(window=window, most=max(most, window // 100)) as (it, owner):
            it.near, it.far = CompressedStream(it.near), CompressedStream(it.far)
            it.pump(owner)

            async def far() -> None:
                for at in range(0, len(back), 7000):
                    await it.far.write(back[at : at + 7000])
                it.far.write_eof()

            owner.start(it.client_sends_all(out, pieces=pieces, pauses=pauses), name="client")
            owner.start(far(), name="far")
            reading = owner.start(it.client_reads(), name="client reads")
            assert await read_all(it.far) == out
            assert await reading == back
            assert it.task is not None
            await it.task
            assert (it.counter.sent, it.counter.received) == (len(out), len(back))
            assert it.near_port.unread == it.far_port.unread == 0
            assert it.broken == []

    run(main())


async def test_masks_cross_small() -> None:
    async with scene() as (it, owner):
        it.near, it.far = CompressedStream(it.near), CompressedStream(it.far)
        it.pump(owner)
        owner.start(it.client_sends(bytes(3 << 20)), name="client")
        received = 0
        while received < 3 << 20:
            chunk = await it.far.read()
            received += len(chunk)
            it.far.consumed(len(chunk))
        assert len(it.near_port.sent) < 30_000


async def test_a_client_that_does_not_read_holds_back_what_little_makes_much() -> None:
    """A chunk of the wire may make 1000 times as much: it is made as it is taken, frame by frame."""

    async with scene(window=64 << 10) as (it, owner):
        it.near, it.far = CompressedStream(it.near), CompressedStream(it.far)
        it.pump(owner)
        size = 48 << 20  # 150 KB on the wire
        writer = owner.start(it.far.write(bytes(size)), name="far")
        await stands_still(lambda: it.counter.received)
        assert it.counter.received < 16 << 20
        assert it.far_port.unread > 0
        loop = asyncio.get_running_loop()
        got = 0
        while got < size:
            got += len(await loop.sock_recv(it.client, 1 << 20))
        await writer
        await until(lambda: it.far_port.unread == 0)


def ends(window: int = 256 << 10) -> tuple[CompressedStream, MeshStream, Port]:
    """A compressed stream, the plain far end of it, and the near end's port."""
    near, far, port, _ = streams(window=window)
    return CompressedStream(near), far, port


async def test_what_was_not_taken_at_once_is_sent_by_write_before_anything_else() -> None:
    near, far, port = ends(window=1000)
    first, second = random.Random(3).randbytes(4000), content(4, 500)
    assert near.try_write(first) == 0
    assert near.try_write(second) == 0
    assert 0 < len(port.sent) <= 1000
    writing = asyncio.ensure_future(near.write(first + second))
    there = CompressedStream(far)
    received = bytearray()
    while len(received) < 4500:
        chunk = await there.read()
        received += chunk
        there.consumed(len(chunk))
    await writing
    assert bytes(received) == first + second


@pytest.mark.parametrize("diverted", [False, True])
async def test_a_lie_is_an_error_once_and_always(diverted: bool) -> None:
    near, far, _ = ends()
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> bool:
        taken.append(bytes(data))
        near.consumed(len(data))
        return True

    if diverted:
        near.divert(take)
    await far.write(Encoder().encode(b"good") + b"\xff" * 20)
    await far.write(b"more")
    if not diverted:
        assert await near.read() == b"good"
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="kind 255"):
            await near.read()
    assert taken == ([b"good"] if diverted else [])


async def test_an_end_in_the_middle_of_a_frame_is_an_error() -> None:
    near, far, _ = ends()
    await far.write(Encoder().encode(b"whole") + Encoder().encode(b"cut")[:-1])
    far.write_eof()
    assert await near.read() == b"whole"
    with pytest.raises(RemoteProtocolError, match="middle of a frame"):
        await near.read()


async def test_the_rest_is_as_with_any_stream() -> None:
    near, far, _ = ends()
    await near.accepted()
    assert (near.peer, near.service, dict(near.metadata)) == (PEER, "rpc", {})
    near.write_eof()
    with pytest.raises(EndOfStream):
        await far.read()
    far.reset(Code.BROKEN, "enough")
    with pytest.raises(Broken):
        await near.read()
    near.reset(Code.BROKEN, "too")


@pytest.mark.parametrize(("metadata", "expected"), [({}, False), (dict(COMPRESSED), True)])
async def test_it_is_compressed_where_the_metadata_says_so(metadata: dict[str, int], expected: bool) -> None:
    near, *_ = streams(metadata=metadata)
    assert isinstance(as_agreed(near), CompressedStream) is expected


@pytest.mark.parametrize("value", [0, 2, "1", b"1"])
async def test_another_version_is_refused(value: str | int | bytes) -> None:
    near, *_ = streams(metadata={"compressed": value})
    with pytest.raises(RemoteProtocolError, match="unknown way"):
        as_agreed(near)


def made(
    *, rtt: float | None, rtt_min: float | None = None, rate: float | None = None, where: str = "public"
) -> PathStatus:
    return replace(path(selected=True, where=where), rtt=rtt, rtt_min=rtt_min, rate=rate)


@pytest.mark.parametrize(
    ("facts", "how", "why"),
    [
        (made(rtt=0.0004), NOTHING, "round trip is 0.4 ms"),
        (made(rtt=0.02), ALL, "round trip is 20.0 ms"),
        (made(rtt=0.02, rtt_min=0.0005), NOTHING, "round trip is 0.5 ms"),  # loaded, not far
        (made(rtt=0.02, rate=100e6), REPEATS, "carries 100.0 MB/s"),
        (made(rtt=0.02, rtt_min=0.009, rate=100e6), NOTHING, "carries 100.0 MB/s"),
        (made(rtt=None, rate=100e6), NOTHING, "carries 100.0 MB/s"),
        (made(rtt=0.02, rate=24e6), ALL, "carries 24.0 MB/s"),
        (made(rtt=0.0004, rate=2.5e6), ALL, "carries 2.5 MB/s"),
        (made(rtt=0.02, where="loopback", rate=1e6), NOTHING, "on this machine"),
        (made(rtt=0.0004, where="relayed"), ALL, "relayed"),
        (made(rtt=None), NOTHING, "nothing is known"),
    ],
)
def test_it_is_told_by_facts(facts: PathStatus, how: Compression, why: str) -> None:
    verdict = judge([replace(path(selected=False), rtt=0.5), facts])
    assert verdict.how is how
    assert why in verdict.why


def test_without_a_path_it_does_not() -> None:
    assert judge([]).how is NOTHING
    assert judge([path(selected=False)]).how is NOTHING
