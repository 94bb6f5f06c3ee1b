"""Test what nodes say of their devices: measured once, one by one on a machine, never during a lease."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Refused, RemoteProtocolError
from meshd.base.peer_limits import CAPACITY_ASKED, SPEEDS_ASKED
from meshd.devices.capacity import (
    NOT_FOR_YOU,
    WORDLESS_SECONDS,
    CapacityAnswer,
    ask_all,
    ask_capacity,
    lacks_rates,
    lacks_times,
    measured_paths,
)
from meshd.devices.devices import core_set
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.link.interface import LOOPBACK
from meshd.peer.interface import PathStatus, PeerStatus, Stream
from meshd.peer.messages import MessageStream
from meshd.wire.capacity import (
    CAPACITY_SERVICE,
    AskCapacity,
    Capacity,
    ComputedSpan,
    MeasuredDevice,
    MeasuredPath,
    TimedLayer,
    decode,
)
from meshd.wire.lease import Introduced
from meshd.wire.limits import MAX_CAPACITY_PATHS

from tests.unit.admin.test_snapshot import path
from tests.unit.devices.capacity_scene import CPU, KINDS, scene

pytestmark = pytest.mark.virtual

MEASURED = tuple(TimedLayer(kind, tokens, 1_000_000 * tokens) for kind in (0, 1) for tokens in (1, 128))
MEASURE = AskCapacity(KINDS, measure=True)


def quiet(_peer: object, _text: str) -> None:
    pass


async def test_it_tells_what_it_knows_and_measures_only_when_asked_to(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        told: list[str] = []
        peer = worker.mesh.key.peer
        known = await ask_capacity(it.head, peer, AskCapacity(KINDS), told.append)
        assert known.devices[0].device == CPU and known.devices[0].times == ()
        assert known.machine == "machine of worker" and worker.bench.timings == []
        measured = await ask_capacity(it.head, peer, MEASURE, told.append)
        assert measured.devices[0].times == MEASURED and told == ["measuring CPU"]
        again = await ask_capacity(it.head, peer, MEASURE, told.append)
        assert again.devices[0].times == MEASURED and len(worker.bench.timings) == 1


async def test_a_time_counts_for_the_invite_of_who_asked(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
    for line in (tmp_path / "speeds of worker").read_text().splitlines():
        assert len(line.split()) == 3, "key, times, who"


async def test_what_computes_for_somebody_is_not_disturbed(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        worker.busy = True
        told = await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
        assert told.busy and told.devices[0].times == () and worker.bench.timings == []


async def test_a_measurement_ends_as_soon_as_a_lease_computes(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        worker.bench.timing_seconds = 20.0
        asyncio.get_running_loop().call_later(3.0, setattr, worker, "busy", True)
        began = asyncio.get_running_loop().time()
        told = await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
        assert 2.9 < asyncio.get_running_loop().time() - began < 3.1
        assert told.busy and told.devices[0].times == () and worker.bench.timings_ended == 1
        worker.busy = False
        told = await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
        assert told.devices[0].times == MEASURED and len(worker.bench.timings) == 2


async def test_beside_a_lease_a_device_is_measured_where_memory_is_left(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        worker.lends = True
        for free, times in (((768 << 20) - 1, ()), (768 << 20, MEASURED)):
            worker.devices = (replace(CPU, free_bytes=free, total_bytes=1 << 30),)
            told = await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
            assert told.devices[0].times == times


async def test_two_nodes_of_one_machine_measure_one_after_the_other(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        near = [it.teller(name, machine="one") for name in ("a", "b")]
        far = it.teller("c")
        for one in (*near, far):
            one.bench.timing_seconds = 10.0
        peers = [one.mesh.key.peer for one in (*near, far)]
        began = asyncio.get_running_loop().time()
        answers = await ask_all(it.head, peers, KINDS, quiet)
        for answer in answers.values():
            assert answer.capacity is not None and answer.capacity.devices[0].times == MEASURED
        assert asyncio.get_running_loop().time() - began == pytest.approx(20.0, abs=1.0)


async def test_a_node_that_measured_before_is_asked_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        peers = [worker.mesh.key.peer]
        await ask_all(it.head, peers, KINDS, quiet)
        before = len(it.head.streams)
        await ask_all(it.head, peers, KINDS, quiet)
        assert len(it.head.streams) == before + 1


async def test_one_that_does_not_answer_keeps_nobody_from_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker, silent = it.teller("worker"), it.teller("silent")

        async def never(_stream: object) -> None:
            await asyncio.Event().wait()

        silent.mesh.services[CAPACITY_SERVICE] = (never, lambda _member, _metadata: None)
        gone = it.teller("gone").mesh.key.peer
        del it.head.net.meshes[gone]
        peers = [worker.mesh.key.peer, silent.mesh.key.peer, gone]
        answers = await ask_all(it.head, peers, KINDS, quiet)
        assert answers[peers[0]].capacity is not None
        assert answers[peers[1]] == CapacityAnswer(why_not="it does not answer")
        assert answers[gone] == CapacityAnswer(why_not="not connected")


async def test_a_slow_measurement_is_waited_for_while_there_is_word_of_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        worker.bench.timing_seconds = 3 * WORDLESS_SECONDS
        told = await ask_capacity(it.head, worker.mesh.key.peer, MEASURE, lambda _: None)
        assert told.devices[0].times == MEASURED


async def test_who_may_not_use_workers_is_told_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker, stranger = it.teller("worker"), it.stranger(frozenset(Role) - {Role.USE})
        with pytest.raises(Refused, match=NOT_FOR_YOU):
            await ask_capacity(stranger, worker.mesh.key.peer, MEASURE, lambda _: None)
        assert worker.bench.timings == []


async def test_one_member_asks_little_at_once_and_lets_little_be_measured(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        peer = worker.mesh.key.peer
        worker.bench.timing_seconds = 1.0
        asking = [
            asyncio.create_task(ask_capacity(it.head, peer, MEASURE, lambda _: None))
            for _ in range(CAPACITY_ASKED.most + 1)
        ]
        ended = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(one, Capacity) for one in ended) == CAPACITY_ASKED.most
        for number in range(20):
            kinds = (f"1=rms_norm:{64 + number}",)
            await ask_capacity(it.head, peer, AskCapacity(kinds, measure=True), lambda _: None)
        assert len(worker.bench.timings) <= SPEEDS_ASKED.burst + 1


async def test_something_else_than_a_question_ends_the_stream_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        stream = it.head.open_stream(worker.mesh.key.peer, CAPACITY_SERVICE, metadata={})
        await MessageStream(stream).send(Introduced().encode())
        with pytest.raises((Broken, RemoteProtocolError)):
            await MessageStream(stream).receive()
        told = await ask_capacity(it.head, worker.mesh.key.peer, AskCapacity(), lambda _: None)
        assert told.devices[0].device == CPU


DEVICE = MeasuredDevice(CPU, MEASURED)
HALF = MeasuredDevice(CPU, MEASURED[:2])
PATH = MeasuredPath(bytes([1]) * 32, 5, 6)
A, B = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)


@pytest.mark.parametrize(
    ("devices", "timed", "lacks"),
    [
        ((), 2, False),
        ((DEVICE,), 2, False),
        ((DEVICE,), 3, True),
        ((DEVICE, HALF), 2, True),
        ((HALF,), 1, False),
    ],
)
def test_a_time_of_each_kind_is_wanted_of_each_device(
    devices: tuple[MeasuredDevice, ...], timed: int, lacks: bool
) -> None:
    assert lacks_times(Capacity(devices, "m"), timed) == lacks


@pytest.mark.parametrize(
    ("paths", "peers", "lacks"),
    [
        ((), [A], False),
        ((PATH,), [A], False),
        ((replace(PATH, rate=0),), [A], True),
        ((replace(PATH, rate=0),), [B], False),
        ((PATH, replace(PATH, peer=B.raw, rate=0)), [A, B], True),
    ],
)
def test_a_rate_is_wanted_of_each_path_between_those_that_are_asked(
    paths: tuple[MeasuredPath, ...], peers: list[PeerId], lacks: bool
) -> None:
    assert lacks_rates(Capacity((), "m", paths), peers) == lacks


@pytest.mark.parametrize(
    ("told", "measure", "times"),
    [
        (Capacity((HALF,), "m"), True, 2),
        (Capacity((HALF,), "m"), False, 1),
        (Capacity((HALF,), "m", busy=True), True, 2),
        (Capacity((DEVICE,), "m"), True, 1),
        (Capacity((DEVICE,), "m", (replace(PATH, rate=0),)), True, 2),
        (Capacity((DEVICE,), "m", (replace(PATH, rate=0),), busy=True), True, 1),
    ],
)
async def test_who_lacks_something_is_asked_to_measure_rates_only_while_it_is_idle(
    tmp_path: Path, told: Capacity, measure: bool, times: int
) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        peer = worker.mesh.key.peer
        paths = tuple(replace(path, peer=peer.raw) for path in told.paths)
        asked: list[AskCapacity] = []
        order: list[str] = []

        async def tell(stream: Stream) -> None:
            messages = MessageStream(stream)
            question = decode(await messages.receive())
            assert isinstance(question, AskCapacity)
            asked.append(question)
            order.append("measure" if question.measure else "ask")
            await messages.send(replace(told, paths=paths).encode())

        async def before() -> None:
            order.append("before")

        worker.mesh.services[CAPACITY_SERVICE] = (tell, lambda _member, _metadata: None)
        answers = await ask_all(
            it.head, [peer], KINDS, quiet, measure=measure, marks=bytes(16), before_measuring=before
        )
        assert answers[peer].capacity == replace(told, paths=paths)
        assert order == ["ask", "before", "measure"][: times + 1]
        assert all(one.timed == KINDS and one.marks == bytes(16) and not one.recent for one in asked)


async def test_spans_are_asked_for_in_seconds_and_told_with_the_cores(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("worker")
        worker.computed = (ComputedSpan(5, 6), ComputedSpan(7, 8))
        asked = AskCapacity(lease=bytes(16), spans=((9_000_000, 5_000_000), (5_000_000, 0)))
        told = await ask_capacity(it.head, worker.mesh.key.peer, asked, lambda _: None)
        assert told.computed == worker.computed and told.core_set == core_set()
        assert worker.asked_spans == [(it.head.key.peer, bytes(16), (9.0, 5.0), (5.0, 0.0))]
        assert worker.listed == [False]
        await ask_capacity(it.head, worker.mesh.key.peer, AskCapacity(recent=True), lambda _: None)
        await ask_capacity(
            it.head, worker.mesh.key.peer, AskCapacity(recent=True, measure=True), lambda _: None
        )
        assert worker.listed == [False, True, False], "a measurement needs the memory that is free now"


def test_paths_that_carry_data_are_told_the_shortest_first() -> None:
    def status(number: int, *paths: PathStatus) -> PeerStatus:
        return PeerStatus(PeerId(bytes([number]) * 32), paths=paths)

    carries, spare = path(selected=True), path(selected=False)
    peers = [
        status(1, replace(carries, rtt=0.03)),
        status(2, spare, replace(carries, rtt=0.0020009, rate=1234.9)),
        status(3, replace(carries, rtt=None)),
        status(4, spare),
        status(5),
        status(6, replace(carries, rtt=0.03, rtt_min=-0.5)),
    ]
    local = carries.link.local
    assert measured_paths(peers) == (
        (MeasuredPath(bytes([6]) * 32, 0, 0), local),
        (MeasuredPath(bytes([2]) * 32, 2000, 1234), local),
        (MeasuredPath(bytes([1]) * 32, 30_000, 0), local),
    )
    inside = replace(carries, link=replace(carries.link, path=LOOPBACK))
    assert [where for _, where in measured_paths([status(7, inside)])] == [""]
    many = [status(1 + number % 250, carries) for number in range(MAX_CAPACITY_PATHS + 1)]
    assert len(measured_paths(many)) == MAX_CAPACITY_PATHS
