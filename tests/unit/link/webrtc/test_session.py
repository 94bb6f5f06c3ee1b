"""The DTLS handshake of a webrtc link."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from aiortc import RTCDtlsFingerprint, RTCDtlsParameters
from meshd.base.errors import Broken, Closed, EndOfStream
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.link.buffered_pipe import SEND_HIGH_BYTES
from meshd.link.webrtc.session import Dtls, Identity, WebRtcPipe, WebRtcSession

from tests.conformance.run import ticks


class _Wire:
    """Holds back what the other side sends until it is told to hand it over."""

    state = "completed"
    role = "controlling"

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting = asyncio.Event()

    async def _recv(self) -> bytes:
        self.waiting.set()
        data = await self.arrived
        self.arrived = asyncio.get_running_loop().create_future()
        return data

    async def _send(self, data: bytes) -> None:
        return


@pytest.mark.parametrize("turns", range(4))
async def test_a_handshake_is_cancelled_in_the_turn_in_which_a_datagram_comes(turns: int) -> None:
    wire, identity = _Wire(), Identity()
    dtls = Dtls(wire, [identity.certificate])  # type: ignore[arg-type]
    dtls._set_role("client")
    told = RTCDtlsFingerprint(algorithm="sha-256", value=identity.fingerprint.hex(":"))
    task = asyncio.get_running_loop().create_task(dtls.start(RTCDtlsParameters(fingerprints=[told])))
    await wire.waiting.wait()
    wire.arrived.set_result(b"\x16 no record")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await ticks(10)
    ended = task.cancelled()
    await cancel_and_wait(task)
    assert ended


class StubAssociation:
    """Keeps what is written until it is told that the path took some."""

    def __init__(self) -> None:
        self.backlog_bytes = 0
        self.is_open, self.is_done = True, True
        self.farewells = self.reads = 0
        self.unread: Callable[[], int] = lambda: 0
        self.on_bytes: Callable[[bytes], None] = lambda _data: None
        self.on_drained: Callable[[], None] = lambda: None
        self.on_end: Callable[[bool], None] = lambda _clean: None

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.backlog_bytes += sum(map(len, pieces))

    def was_read(self) -> None:
        self.reads += 1

    def say_farewell(self) -> None:
        self.farewells += 1
        self.is_done = False


class StubSession:
    def __init__(self) -> None:
        self.association = StubAssociation()
        self.on_lost: Callable[[], None] = lambda: None
        self.shuts = 0
        self.tasks: list[asyncio.Task[None]] = []

    def shut(self) -> list[asyncio.Task[None]]:
        self.shuts += 1
        tasks, self.tasks = self.tasks, []
        return tasks


def made() -> tuple[WebRtcPipe, StubSession, StubAssociation]:
    session = StubSession()
    return WebRtcPipe(cast(WebRtcSession, session)), session, session.association


async def test_who_tries_has_room_below_the_high_mark_and_who_waits_below_the_low_one() -> None:
    pipe, _, association = made()
    assert pipe.try_send([bytes(SEND_HIGH_BYTES)])
    assert not pipe.try_send([b"x"])
    association.backlog_bytes = SEND_HIGH_BYTES - 1  # of which the association says nothing
    assert pipe.try_send([b"x"])
    assert not pipe.try_send([b"x"])
    async with Owner() as owner:
        sending = owner.start(pipe.send([b"y"]), name="send")
        await ticks(3)
        association.backlog_bytes = 0
        await ticks(3)
        assert not sending.done()
        association.on_drained()
        await sending
    assert association.backlog_bytes == 1


async def test_many_small_chunks_are_fetched_as_one() -> None:
    pipe, _, association = made()
    for data in (b"a", b"b", bytes(256 << 10)):
        association.on_bytes(data)
    assert association.unread() == 2 + (256 << 10)
    assert await pipe.receive() == b"ab"
    assert len(await pipe.receive()) == 256 << 10
    assert (association.unread(), association.reads) == (0, 2)


async def test_a_farewell_is_waited_for_and_so_are_the_tasks_of_the_session() -> None:
    pipe, session, association = made()
    goes_on = asyncio.Event()

    async def ending() -> None:
        await goes_on.wait()

    async with Owner() as owner:
        session.tasks = [owner.start(ending(), name="session")]
        closing = owner.start(pipe.aclose(), name="close")
        await ticks(3)
        assert (association.farewells, session.shuts) == (1, 0)
        with pytest.raises(Closed):  # at once, although the farewell is under way
            pipe.try_send([b"x"])
        association.is_done = True
        association.on_drained()
        await ticks(3)
        assert session.shuts == 1
        assert not closing.done()
        goes_on.set()
        await closing


@pytest.mark.parametrize("clean", [True, False])
async def test_who_has_heard_the_end_says_no_farewell(clean: bool) -> None:
    pipe, session, association = made()
    association.on_bytes(b"last")
    association.on_end(clean)
    assert await pipe.receive() == b"last"
    with pytest.raises(EndOfStream if clean else Broken):
        await pipe.receive()
    with pytest.raises(Broken):
        pipe.try_send([b"x"])
    await pipe.aclose()
    assert association.farewells == 0
    assert session.shuts >= 1
