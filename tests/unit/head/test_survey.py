"""A survey of all machines, rpc-servers without meshd included."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.head import survey as module
from meshd.head.served_files import lacking_shares, marks_of
from meshd.head.survey import (
    BUSY,
    COMPUTES,
    LENDS_NOTHING,
    ONLY_ASKS,
    Lendable,
    MachineSpeeds,
    Surveyor,
    ask_plain,
)
from meshd.head.worker_choice import FOR_LOSSES, Roster
from meshd.model.layer_work import LayerWork
from meshd.model.weights_index import TensorEntry, WeightsIndex
from meshd.peer.interface import PeerState
from meshd.plan.machines import IN_DOUBT, PlainRpc
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import OfferedDevice, mark
from meshd.worker.leases import Ledger

from tests.conformance.run import run
from tests.unit.admin.test_snapshot import path
from tests.unit.devices.capacity_scene import CPU, KINDS, Scene, scene
from tests.unit.head.rig import Bench
from tests.unit.plan.plain_options import PLAIN

pytestmark = pytest.mark.virtual

TENSORS = (
    TensorEntry(0, 0, 0, 100, b"a" * 32, "blk.0.ffn_up.weight"),
    TensorEntry(0, 0, 0, 300, b"b" * 32, "blk.1.ffn_up.weight"),
    TensorEntry(0, 0, 0, 900, b"c" * 32, "token_embd.weight"),
)
INDEX = WeightsIndex((), TENSORS, "f" * 64)
OPTIONS = replace(PLAIN, node_name="head", machine="machine of head")


def surveyor(
    it: Scene,
    folder: Path,
    options: HeadOptions = OPTIONS,
    lendable: Lendable = tuple,
    *,
    compressed: bool = False,
) -> tuple[Surveyor, Bench]:
    bench = Bench(it.head, folder)
    tunnels = replace(bench.runtime.tunnels, always_compressed=compressed)
    runtime = replace(bench.runtime, tunnels=tunnels)
    paths = replace(runtime.paths, speed_cache=folder / "speeds of head")
    speeds = DeviceSpeeds(
        runtime.native, runtime.processes.run_to_end, paths, machine="machine of head", threads=1
    )
    return Surveyor(runtime, options, speeds, lendable), bench


async def test_machines_are_what_a_plan_needs(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        workers = [it.teller(name) for name in ("b", "a")]
        looks, bench = surveyor(it, tmp_path)
        found = await looks.survey(KINDS, lambda _: None)
        assert [offer.node for offer in found.machines.offers] == ["a", "b"]
        assert [device.name for device in found.machines.own] == ["CPU"]
        assert set(found.machines.speeds) == {("a", "CPU"), ("b", "CPU"), ("head", "CPU")}
        assert all(0 in speed and 1 in speed for speed in found.machines.speeds.values())
        assert found.left_out == () and len(bench.timings) == 1
        assert all(worker.listed == [False, False] for worker in workers), "free memory is to be known"


@pytest.mark.parametrize("compressed", [False, True])
async def test_where_sums_could_cross_sealed_is_what_both_ends_say_unless_all_is_compressed(
    tmp_path: Path, compressed: bool
) -> None:
    async with scene(tmp_path) as it:
        workers = {name: it.teller(name) for name in ("a", "b", "c")}
        for worker in workers.values():
            worker.mesh.paths = (path(selected=True),)
        workers["a"].seals_with.add(workers["c"].mesh.key.peer)
        looks, _ = surveyor(it, tmp_path, compressed=compressed)
        paths = (await looks.survey(KINDS, lambda _: None, measure=False)).machines.paths
        assert {ends for ends, found in paths.items() if found.seals} == (
            set() if compressed else {("a", "c")}
        )
        assert len(paths) == 6


async def test_a_path_is_wireless_as_the_end_that_it_leaves_says(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        workers = {name: it.teller(name) for name in ("a", "b")}
        for worker in workers.values():
            worker.mesh.paths = (path(selected=True),)
        workers["a"].on_wifi = True
        looks, _ = surveyor(it, tmp_path)
        paths = (await looks.survey(KINDS, lambda _: None, measure=False)).machines.paths
        assert {ends: found.is_wireless for ends, found in paths.items()} == {
            ("a", "b"): True,
            ("b", "a"): False,
        }


async def test_who_is_kept_apart_is_so_wherever_machines_are_compared(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        first, second, _ = (it.teller(name).mesh.key.peer for name in ("a", "b", "c"))
        looks, _ = surveyor(it, tmp_path)
        roster = Roster(it.head, PLAIN)
        roster.backoff.part(first, second, asyncio.get_running_loop().time())
        work = LayerWork(KINDS, (0,), (1.0,), output=1)
        machines = (await looks.compared(work, PLAIN, roster, {}, measure=False)).machines
        assert machines.apart == {frozenset(("a", "b")): IN_DOUBT} and len(machines.offers) == 3


async def test_a_worker_that_looks_for_a_plan_of_its_own_keeps_to_its_memory_limit(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        looks, _ = surveyor(it, tmp_path, lendable=Ledger(limit=1000).offer)
        (own,) = (await looks.survey(KINDS, lambda _: None)).machines.own
        assert (own.free_bytes, own.total_bytes) == (1000, 1000)


async def test_workers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        first, second = it.teller("garage"), it.teller("garage", seed="other")
        looks, _ = surveyor(it, tmp_path)
        machines = (await looks.survey(KINDS, lambda _: None)).machines
        labels = {f"garage ({one.mesh.key.peer.short})" for one in (first, second)}
        assert {offer.node for offer in machines.offers} == labels
        assert set(machines.speeds) == {(node, "CPU") for node in (*labels, "head")}


async def test_who_is_away_or_silent_is_left_out(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.teller("a")
        it.teller("away").mesh.say(PeerState.SUSPENDED)
        it.head.net.mesh("old", "worker").handle(
            "capacity", _ended, allow=lambda _member, _metadata: "unknown service"
        )
        looks, _ = surveyor(it, tmp_path)
        found = await looks.survey(KINDS, lambda _: None)
        assert [offer.node for offer in found.machines.offers] == ["a"]
        assert found.left_out == (("old", "unknown service"),)


async def test_why_a_node_is_missing_or_has_no_speed(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.teller("a").busy = True
        it.teller("b")
        it.head.net.mesh("kitchen", "serve")
        it.head.net.mesh("laptop", "client")
        looks, _ = surveyor(it, tmp_path)
        found = await looks.survey(KINDS, lambda _: None)
        assert found.left_out == (("kitchen", LENDS_NOTHING), ("laptop", ONLY_ASKS))
        assert found.unmeasured == (("a", BUSY),)
        assert found.machines.unmeasured == {"a": COMPUTES}


async def test_a_head_looks_at_the_workers_that_it_would_use(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for name in ("a", "b", "c", "d"):
            it.teller(name)
        by_name = {peer.name: peer.peer for peer in it.head.peers()}
        it.head.net.meshes[by_name["b"]].paused = True
        looks, _ = surveyor(it, tmp_path)
        given = replace(OPTIONS, workers=("a", "b"), standby=("d",))
        found = await looks.survey(KINDS, lambda _: None, roster=Roster(it.head, given))
        assert [offer.node for offer in found.machines.offers] == ["a", "d"]
        assert found.left_out == (
            ("b", "b is paused (`meshd resume` there ends that)"),
            ("c", "c is not named by `--workers`"),
        )
        assert found.spared == (("d", FOR_LOSSES),)


async def test_workers_say_which_tensors_they_lack(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.teller("a").here = {mark(TENSORS[1].digest)}
        it.teller("b")
        looks, _ = surveyor(it, tmp_path)
        found = await looks.survey(KINDS, lambda _: None, marks=marks_of(INDEX))
        assert [one.offer.lacks for one in found.machines.offers] == [b"\x05", b"\x07"]
        assert lacking_shares(INDEX, found.machines.offers) == {"a": 0.25, "b": 1.0}, "of the layers"
        unasked = await looks.survey(KINDS, lambda _: None)
        assert lacking_shares(INDEX, unasked.machines.offers) == {}


async def test_another_choice_of_this_nodes_devices(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        looks, _ = surveyor(it, tmp_path, replace(OPTIONS, devices=("CUDA7",)))
        with pytest.raises(UserError, match="no device `CUDA7`"):
            await looks.survey(KINDS, lambda _: None)
        found = await looks.survey(KINDS, lambda _: None, devices=("none",))
        assert [device.name for device in found.machines.own] == ["CPU"]


async def test_who_measures_what_is_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("a")
        looks, bench = surveyor(it, tmp_path)
        told: list[str] = []
        names = {worker.mesh.key.peer: "a-1"}
        found = await looks.speeds_of(names, [CPU], KINDS, "head-1", told.append)
        assert set(found.speeds) == {("head-1", "CPU"), ("a-1", "CPU")} and found.to_measure == set()
        assert worker.listed == [False, False] and bench.listings == 0
        assert told == ["head-1: measuring CPU", "a-1: measuring CPU"]


async def test_nothing_is_measured_for_a_split_that_is_given(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        worker = it.teller("a")
        looks, bench = surveyor(it, tmp_path)
        names = {worker.mesh.key.peer: "a"}
        for measure in (False, True, False):
            found = await looks.speeds_of(names, [CPU], KINDS, "head", lambda _: None, measure=measure)
            known = [0 in found.speeds[node, "CPU"] for node in ("a", "head")]
            assert known == [bool(bench.timings)] * 2
        assert len(bench.timings) == 1


async def _ended(_stream: object) -> None:
    return


@pytest.mark.parametrize("busy", [False, True])
async def test_what_is_known_tells_who_is_to_be_measured(tmp_path: Path, busy: bool) -> None:
    """A worker that computes for somebody is not measured, whatever it lacks."""
    async with scene(tmp_path) as it:
        teller = it.teller("a")
        teller.busy = busy
        looks, bench = surveyor(it, tmp_path)
        names = {teller.mesh.key.peer: "a"}

        async def known() -> MachineSpeeds:
            answers = await looks.ask_known(names, KINDS)
            return looks.speeds_from(answers, names, [CPU], KINDS, "head", own_timed=KINDS)

        found = await known()
        assert found.to_measure == ({"head"} if busy else {"a", "head"})
        assert found.unmeasured == ({"a": COMPUTES} if busy else {})
        assert teller.listed == [True] and bench.listings == 0 and not bench.timings
        await looks.speeds_of(names, [CPU], KINDS, "head", lambda _: None)
        assert (await known()).to_measure == set()


HELLO = bytes([7, 0, 0, 0]) + bytes(24)


class Server:
    """Answers HELLO, DEVICE_COUNT and GET_DEVICE_MEMORY with what a test says, size first."""

    def __init__(self, **answers: bytes | None) -> None:
        self.answers: dict[int, bytes | None] = {
            14: answers.get("hello", HELLO),
            15: answers.get("count", struct.pack("<I", 2)),
            11: answers.get("memory", struct.pack("<QQ", 5, 9)),
        }
        self.asked: list[tuple[int, bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                command, size = struct.unpack("<BQ", await reader.readexactly(9))
                self.asked.append((command, await reader.readexactly(size)))
                answer = self.answers[command]
                if answer is None:
                    await reader.read()
                    break
                writer.write(struct.pack("<Q", len(answer)) + answer)
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def ask(self) -> tuple[PlainRpc, ...]:
        return await with_server(self.serve, lambda place: ask_plain([place], protocol="7.0.0"))


async def with_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    use: Callable[[str], Awaitable[tuple[PlainRpc, ...]]],
) -> tuple[PlainRpc, ...]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        return await use(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await server.wait_closed()


def test_devices_and_their_memory_are_asked_in_turn() -> None:
    server = Server()
    (found,) = run(server.ask())
    assert found.devices == tuple(
        OfferedDevice(f"RPC{number}", "gpu", found.endpoint, 5, 9) for number in range(2)
    )
    assert [command for command, _ in server.asked] == [14, 15, 11, 11]
    assert server.asked[-1][1] == struct.pack("<I", 1)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"hello": bytes([6, 9, 0, 0]) + bytes(24)}, "speaks RPC protocol 6.9.0, this build 7.0.0"),
        ({"hello": bytes([7, 1, 0, 0]) + bytes(24)}, "speaks RPC protocol 7.1.0"),
        ({"hello": b""}, "HELLO has 0 bytes"),
        ({"count": struct.pack("<I", 0)}, "has 0 devices"),
        ({"count": struct.pack("<I", 17)}, "has 17 devices"),
        ({"memory": b"short"}, "GET_DEVICE_MEMORY has 5 bytes"),
        ({"memory": bytes(2000)}, "is too long"),
    ],
)
def test_what_a_server_says_wrongly_names_it(answers: dict[str, bytes | None], said: str) -> None:
    with pytest.raises(MeshdError, match=r"cannot use the rpc-server `127.0.0.1:\d+`: .*" + said):
        run(Server(**answers).ask())


def test_a_server_that_is_busy_with_another_client_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.05)
    with pytest.raises(MeshdError, match="does not answer") as caught:
        run(Server(hello=None).ask())
    assert "one at a time" in caught.value.hint


def test_something_else_or_nothing_at_the_port() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    with pytest.raises(MeshdError, match=r"cannot use the rpc-server `.*`: (it closed|connection reset)"):
        run(with_server(hang_up, lambda place: ask_plain([place], protocol="7.0.0")))
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(MeshdError, match=f"cannot use the rpc-server `{place}`: nothing listens there"):
            run(ask_plain([place], protocol="7.0.0"))


def test_none_are_none() -> None:
    assert run(ask_plain([], protocol="7.0.0")) == ()
