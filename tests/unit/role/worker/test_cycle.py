"""The worker against a head that a test plays: agreed, refused, released, lost; nothing leaks."""

import asyncio
import os
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Refused, UserError
from meshd.base.tasks import Owner
from meshd.identity.membership import Role
from meshd.model.weights_index import FileEntry, WeightsIndex
from meshd.mux.events import Code
from meshd.process.interface import ChildFailed, ChildState
from meshd.role.worker.cycle import Worker, WorkerOptions, check_may_work
from meshd.store.interface import ProgressCallback
from meshd.wire.lease import (
    Acquire,
    Grant,
    Lost,
    Progress,
    Reserve,
    WorkerOffer,
)

from tests.sim.loop import run
from tests.unit.role.calls import ACQUIRE, MIB, scene
from tests.unit.role.fake_mesh import Net
from tests.unit.role.rig import COMPRESSED_VERSION, Bench
from tests.unit.role.stubs import FakeFile
from tests.unit.rpc import talk


def test_a_lease_is_agreed_used_and_released(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, memory=1000 * MIB) as it:
            call = it.call()
            offer = await call.offer()
            assert [(d.name, d.free_bytes, d.total_bytes) for d in offer.devices] == [
                ("CPU", 1000 * MIB, 1000 * MIB)
            ]
            assert (offer.has_model, offer.machine) == (False, "m")
            await call.says(Reserve((300 * MIB,)))
            grant = await call.hears()
            assert isinstance(grant, Grant)
            assert grant.compressed == COMPRESSED_VERSION
            (child,) = it.bench.children
            assert child.spec is not None
            argv = list(child.spec.argv)
            assert argv[argv.index("--memory") + 1] == str(300 * MIB)
            assert "--weights-fd" not in argv
            call.rpc(grant)
            await asyncio.sleep(1)
            ((place, secret),) = it.bench.connected
            assert isinstance(place, Path) and place.exists() and len(secret) == 32
            assert secret.hex() not in " ".join(argv)
            assert [status.state for status in it.worker.status.children] == [ChildState.READY]
            call.stream.write_eof()
            await call.is_over()
            assert child.ended
            assert not place.exists()
            assert it.worker.status.children == []
            with pytest.raises(Refused, match="no live lease"):
                await (
                    it.call()
                    .head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": grant.lease_id})
                    .read()
                )

    run(main())


def test_a_request_that_breaks_the_rules_is_told_and_the_lease_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            grant = await call.lease()
            for number in range(5):
                it.bench.head_says = bytes([99 + number]) + bytes(8)
                call.rpc(grant)
                await asyncio.sleep(1)
            refused = it.worker.status.refused
            assert [what.rpartition(": ")[2] for what, _ in refused] == [
                "command 101",
                "command 102",
                "command 103",
            ]
            what, hint = refused[0]
            assert f"`{call.head.key.peer.short}` was ended: the head's llama-server sent" in what
            assert "one version of meshd" in hint
            assert [status.state for status in it.worker.status.children] == [ChildState.READY]

    run(main())


class OpenFile(FakeFile):
    """One that is open in truth."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptors = (descriptor,)

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        stat = os.fstat(self.descriptors[0])
        entry = FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        return WeightsIndex((entry,), (), "f" * 64)


def test_a_stock_server_gets_no_descriptors_and_its_tunnel_the_weights(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, file=OpenFile(file.fileno())) as it:
            call = it.call()
            grant = await call.lease(300)
            (child,) = it.bench.children
            assert child.spec is not None
            assert child.spec.hand_over == ()
            argv = list(child.spec.argv)
            port = argv[argv.index("--port") + 1]
            assert argv == ["rpc-server", "--host", "127.0.0.1", "--port", port, "--device", "CPU"]
            it.bench.head_says = talk.hello() + talk.alloc(301 * MIB)
            call.rpc(grant)
            await asyncio.sleep(1)
            assert it.bench.connected == [(("127.0.0.1", int(port)), b"")]
            assert "of 314572800 lent" in it.worker.status.refused[0][0]
            weights = it.bench.weights
            assert weights is not None and weights.unchanged()
            call.stream.write_eof()
            await call.is_over()
            assert not weights.unchanged(), "its descriptors are closed with the lease"

    with (tmp_path / "m").open("wb") as file:
        run(main())


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "stock"])
@pytest.mark.parametrize(("threads", "said"), [(None, ()), (6, ("--threads", "6"))])
def test_its_threads_are_those_of_the_configuration(
    tmp_path: Path, patched: bool, threads: int | None, said: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with scene(tmp_path, threads=threads, patched=patched) as it:
            await it.call().lease(300)
            (child,) = it.bench.children
            assert child.spec is not None
            argv = tuple(child.spec.argv)
            assert argv[1 : 1 + len(said)] == said
            assert argv.count("--threads") == len(said) // 2

    run(main())


def test_the_lease_of_another_head_opens_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            grant = await it.call("one").lease()
            other = it.call("two")
            for lease_id in (grant.lease_id, b"", 7):
                stream = other.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": lease_id})
                with pytest.raises(Refused, match="no live lease"):
                    await stream.read()
            assert it.bench.connected == []

    run(main())


def test_a_member_without_use_gets_neither(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call("guest", roles=frozenset({Role.WORK}))
            with pytest.raises(Refused, match="lacks the role `use`"):
                await call.stream.read()
            rpc = call.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": bytes(16)})
            with pytest.raises(Refused, match="lacks the role `use`"):
                await rpc.read()

    run(main())


def test_another_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            await call.says(Acquire(bytes(16), "m", "f", "another pin", "patches"))
            answer = await call.hears()
            assert isinstance(answer, Lost)
            assert answer.code == "version"
            assert "another pin" in answer.text and answer.hint
            await call.is_over()

    run(main())


@pytest.mark.parametrize("wanted", [(1001 * MIB,), (0,), (), (1, 1)])
def test_what_the_offer_does_not_have_is_refused(tmp_path: Path, wanted: tuple[int, ...]) -> None:
    async def main() -> None:
        async with scene(tmp_path, memory=1000 * MIB) as it:
            call = it.call()
            await call.offer()
            await call.says(Reserve(wanted))
            answer = await call.hears()
            assert isinstance(answer, Lost) and answer.code == "memory"
            assert it.bench.children == []

    run(main())


def test_leases_together_stay_within_the_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, memory=1000 * MIB) as it:
            one, two = it.call("one"), it.call("two")
            assert (await one.offer()).devices[0].free_bytes == 1000 * MIB
            assert (await two.offer()).devices[0].free_bytes == 1000 * MIB  # nobody has taken any yet
            await one.says(Reserve((600 * MIB,)))
            assert isinstance(await one.hears(), Grant)
            await two.says(Reserve((600 * MIB,)))
            answer = await two.hears()
            assert isinstance(answer, Lost)
            assert "400 MiB left, 600 MiB were requested" in answer.text
            three = it.call("two")
            assert (await three.offer()).devices[0].free_bytes == 400 * MIB
            await three.says(Reserve((400 * MIB,)))
            assert isinstance(await three.hears(), Grant)
            assert len(it.worker.status.children) == 2
            one.stream.reset(Code.LOST, "the session was lost")
            await asyncio.sleep(1)
            assert (await it.call("one").offer()).devices[0].free_bytes == 600 * MIB

    run(main())


def test_the_head_hears_of_progress_while_the_file_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        file = FakeFile()
        file.hashed.clear()
        async with scene(tmp_path, file=file) as it:
            call = it.call()
            await call.says(ACQUIRE)
            progress = await call.hears()
            assert isinstance(progress, Progress)
            assert "25 %" in progress.text
            file.hashed.set()
            offer = await call.hears()
            assert isinstance(offer, WorkerOffer) and offer.has_model
            await call.says(Reserve((100 * MIB,)))
            assert isinstance(await call.hears(), Grant)
            assert it.bench.children[0].spec is not None
            assert "--weights-fd" in it.bench.children[0].spec.argv

    run(main())


def test_a_child_that_dies_ends_the_lease_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            await call.lease()
            it.bench.children[0].die("ended by signal 9")
            answer = await call.hears()
            assert answer == Lost("rpc_server_ended", "ended by signal 9")
            await call.is_over()
            assert it.worker.status.children == []

    run(main())


def test_a_child_that_stands_still_ends_the_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            await call.lease()
            pid = it.bench.children[0].status.pid
            assert pid is not None
            it.bench.stopped.add(pid)
            answer = await call.hears()
            assert answer == Lost("rpc_server_ended", "it is suspended (SIGSTOP), and does not answer")
            await call.is_over()

    run(main())


def test_a_child_that_cannot_start_is_told_and_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, memory=500 * MIB) as it:
            it.bench.child_refuses = ChildFailed("it crashed at once", hint="line one\nline two", tail=("x",))
            call = it.call()
            await call.offer()
            await call.says(Reserve((500 * MIB,)))
            answer = await call.hears()
            assert isinstance(answer, Lost)
            assert (answer.code, answer.text) == ("failed", "it crashed at once")
            it.bench.child_refuses = None
            await it.call().lease(500)

    run(main())


@pytest.mark.parametrize("what", ["report", 0, 1])
def test_a_want_of_descriptors_is_told_and_leaks_none(tmp_path: Path, what: str | int) -> None:
    """The leak is looked for after every test (tests/conftest.py)."""

    async def main() -> None:
        async with scene(tmp_path, file=FakeFile()) as it:
            it.bench.report_fails = what == "report"
            it.bench.hand_over_fails_at = what if isinstance(what, int) else None
            call = it.call()
            await call.offer()
            await call.says(Reserve((100 * MIB,)))
            answer = await call.hears()
            assert isinstance(answer, Lost) and answer.code == "failed"
            assert "open files" in answer.text.lower()

    run(main())


@pytest.mark.parametrize("stage", ["at once", "asked", "offered", "granted"])
@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_head_that_goes_leaves_nothing_behind(tmp_path: Path, stage: str, how: str) -> None:
    async def main() -> None:
        async with scene(tmp_path, memory=100 * MIB) as it:
            call = it.call()
            if stage == "asked":
                await call.says(ACQUIRE)
            elif stage == "offered":
                await call.offer()
            elif stage == "granted":
                await call.lease()
            if how == "end":
                call.stream.write_eof()
                await call.is_over()  # and the worker ends its half of the stream as well
            else:
                call.stream.reset(Code.LOST, "gone")
            await asyncio.sleep(1)
            assert all(child.ended for child in it.bench.children)
            await it.call().lease(100)  # all of the memory is back

    run(main())


def test_a_head_that_never_reserves_is_sent_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            await call.offer()
            answer = await call.hears()
            assert isinstance(answer, Lost) and answer.code == "timeout"

    run(main())


@pytest.mark.parametrize("said", [b"nonsense", Grant(bytes(16)).encode(), Reserve((1,)).encode()])
def test_a_head_that_breaks_the_rules_is_reset(tmp_path: Path, said: bytes) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            await call.messages.send(said)
            with pytest.raises(Broken):
                await call.messages.receive()
            await it.call().lease()

    run(main())


def test_reports_of_the_child_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, file=FakeFile()) as it:
            grant = await it.call().lease()
            (child,) = it.bench.children
            for line in (
                "loaded 3 1000",
                "miss hash blk.0.weight",
                "loaded 1 ²",
                "failed a peer has ended",
                "later words",
            ):
                child.report(line)
            await asyncio.sleep(1)
            running = it.worker._running[grant.lease_id]
            assert (running.loaded_bytes, running.missed) == (1000, 1)

    run(main())


def test_a_device_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with Owner() as owner:
            bench = Bench(Net(owner).mesh("worker"), tmp_path)
            worker = Worker(bench.runtime, [], WorkerOptions(devices=("CUDA0",)))
            with pytest.raises(UserError, match="no device `CUDA0`"):
                await worker.prepare()

    run(main())


def test_a_node_without_work_is_told_how_to_get_it() -> None:
    check_may_work(frozenset({Role.WORK}))
    with pytest.raises(UserError, match="`work`") as caught:
        check_may_work(frozenset(Role) - {Role.WORK})
    assert "meshd invite --role work" in caught.value.hint
