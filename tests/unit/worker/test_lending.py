"""The worker against a head that a test plays: agreed, refused, released, lost; nothing leaks."""

import asyncio
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, Refused, UserError
from meshd.base.tasks import Owner
from meshd.identity.membership import Role
from meshd.mux.events import Code
from meshd.process.interface import ChildFailed, ChildState
from meshd.rpc import mesh_protocol as wire
from meshd.wire.lease import Acquire, Grant, Loaded, Lost, Progress, Reserve, WorkerOffer
from meshd.worker import worker_options
from meshd.worker.leases import MAX_LEASES
from meshd.worker.lending import Worker
from meshd.worker.worker_options import WorkerOptions, check_may_work

from tests.unit.head.calls import ACQUIRE, MIB, scene
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import COMPRESSED_VERSION, Bench
from tests.unit.head.stubs import FakeFile
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Server, head_stream, heard, lent, says

pytestmark = pytest.mark.virtual

QUIET_SECONDS = 10.0


async def test_a_lease_is_agreed_used_and_released(tmp_path: Path) -> None:
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
        with closing(Server(child)) as server:
            await head_stream(it, call, grant).write(talk.hello())
            await asyncio.sleep(1)
            assert server.hears() == talk.hello()
        assert [status.state for status in it.worker.status.children] == [ChildState.READY]
        [lent] = it.worker.status.lent
        assert (lent.head, lent.state) == (str(it.heads["head"].key.peer), "loading")
        [listed] = it.worker.status.listed.devices
        assert (listed.name, listed.free_bytes, listed.total_bytes) == ("CPU", 700 * MIB, 1000 * MIB)
        call.stream.write_eof()
        await call.is_over()
        assert child.ended
        assert it.worker.status.children == [] and it.worker.status.lent == ()
        with pytest.raises(Refused, match="no live lease"):
            await head_stream(it, it.call(), grant).read()


async def test_of_requests_that_break_the_rules_the_last_are_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for number in range(5):
            call = it.call(f"head-{number}")
            stream = head_stream(it, call, await call.lease())
            await stream.write(wire.HEADER.pack(0, 200 + number, 0, 7))
            with pytest.raises(Broken):
                await heard(stream)
            assert len(it.worker.status.children) == number + 1, "the others' leases go on"
        refused = it.worker.status.refused
        assert [what.partition("`")[2].partition("`")[0] for what, _ in refused] == [
            it.heads[f"head-{number}"].key.peer.short for number in (2, 3, 4)
        ]
        what, hint = refused[0]
        assert what.endswith("was ended: the head's llama-server broke the protocol: message 202")
        assert "one version of meshd" in hint


@pytest.mark.parametrize(("threads", "said"), [(None, "4"), (6, "6")])
async def test_its_threads_are_those_of_the_configuration_or_half_of_the_processors(
    tmp_path: Path, threads: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.setattr(worker_options, "usable_processors", lambda: 9)

    async with scene(tmp_path, threads=threads) as it:
        await it.call().lease(300)
        (child,) = it.bench.children
        assert child.spec is not None
        argv = list(child.spec.argv)
        assert argv.count("--threads") == 1
        assert argv[argv.index("--threads") + 1] == said


async def test_the_lease_of_another_head_opens_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        grant = await it.call("one").lease()
        other = it.call("two")
        for lease_id in (grant.lease_id, b"", 7):
            stream = other.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": lease_id})
            with pytest.raises(Refused, match="no live lease"):
                await stream.read()
        with closing(Server(it.bench.children[0])) as server:
            await head_stream(it, it.call("one"), grant).write(talk.hello())
            await asyncio.sleep(1)
            assert server.hears() == talk.hello(), "the only connection is free still"


async def test_a_member_without_use_gets_neither(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        call = it.call("guest", roles=frozenset({Role.WORK}))
        with pytest.raises(Refused, match="lacks the role `use`"):
            await call.stream.read()
        rpc = call.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata={"lease": bytes(16)})
        with pytest.raises(Refused, match="lacks the role `use`"):
            await rpc.read()


@pytest.mark.parametrize("wanted", [(1001 * MIB,), (0,), (), (1, 1)])
async def test_what_the_offer_does_not_have_is_refused(tmp_path: Path, wanted: tuple[int, ...]) -> None:
    async with scene(tmp_path, memory=1000 * MIB) as it:
        call = it.call()
        await call.offer()
        await call.says(Reserve(wanted))
        answer = await call.hears()
        assert isinstance(answer, Lost) and answer.code == "memory"
        assert it.bench.children == []


async def test_the_head_hears_of_progress_while_the_file_is_read(tmp_path: Path) -> None:
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


async def test_a_child_that_cannot_start_is_told_and_costs_nothing(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (replace(ACQUIRE, native_pin="another pin"), "version", ("another pin",)),
        (replace(ACQUIRE, protocol="rpc"), "native_protocol", ("`rpc`", "`mesh 4`")),
        (replace(ACQUIRE, protocol="mesh 3"), "native_protocol", ("`mesh 3`", "`mesh 4`")),
    ],
)
async def test_another_version_is_refused_with_the_remedy(
    tmp_path: Path, asked: Acquire, code: str, words: tuple[str, ...]
) -> None:
    async with scene(tmp_path) as it:
        call = it.call()
        await call.says(asked)
        answer = await call.hears()
        assert isinstance(answer, Lost) and answer.code == code
        assert all(word in answer.text for word in words)
        assert "version of meshd on this worker and the head head" in answer.hint, "the head is named"
        assert it.bench.children == []
        await call.is_over()


@pytest.mark.parametrize("what", ["report", "pair", 0])
async def test_a_want_of_descriptors_is_told_and_leaks_none(tmp_path: Path, what: str | int) -> None:
    """The leak is looked for after every test (tests/conftest.py)."""
    async with scene(tmp_path, file=FakeFile()) as it:
        it.bench.pairs_left *= what != "pair"
        it.bench.report_fails = what == "report"
        it.bench.hand_over_fails_at = what if isinstance(what, int) else None
        call = it.call()
        await call.offer()
        await call.says(Reserve((100 * MIB,)))
        answer = await call.hears()
        assert isinstance(answer, Lost) and answer.code == "failed"
        assert "open files" in answer.text.lower()
        await call.is_over()
        assert it.worker.status.children == []


@pytest.mark.parametrize("stage", ["at once", "asked", "offered", "granted"])
@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_head_that_goes_leaves_nothing_behind(tmp_path: Path, stage: str, how: str) -> None:
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


async def test_a_head_that_never_reserves_is_sent_away(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        call = it.call()
        await call.offer()
        answer = await call.hears()
        assert isinstance(answer, Lost) and answer.code == "timeout"


@pytest.mark.parametrize("said", [b"nonsense", Grant(bytes(16)).encode(), Reserve((1,)).encode()])
async def test_a_head_that_breaks_the_rules_is_reset(tmp_path: Path, said: bytes) -> None:
    async with scene(tmp_path) as it:
        call = it.call()
        await call.messages.send(said)
        with pytest.raises(Broken):
            await call.messages.receive()
        await it.call().lease()


async def test_reports_of_the_child_are_read_and_its_last_word_is_why_it_ends(tmp_path: Path) -> None:
    async with scene(tmp_path, file=FakeFile()) as it:
        call = it.call()
        await call.lease()
        (child,) = it.bench.children
        for line in ("loaded 3 1000", "loaded 1 ²", "failed a peer has ended", "later words"):
            child.report(line)
        await asyncio.sleep(1)
        child.die("it ended", code=1)
        assert await call.hears() == Lost("rpc_server_ended", "it ended: a peer has ended")


async def test_a_device_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    async with Owner() as owner:
        bench = Bench(Net(owner).mesh("worker"), tmp_path)
        worker = Worker(bench.runtime, [], WorkerOptions(devices=("CUDA0",)))
        with pytest.raises(UserError, match="no device `CUDA0`"):
            await worker.prepare()


def test_a_node_without_work_is_told_how_to_get_it() -> None:
    check_may_work(frozenset({Role.WORK}))
    with pytest.raises(UserError, match="`work`") as caught:
        check_may_work(frozenset(Role) - {Role.WORK})
    assert "meshd invite --role work" in caught.value.hint


async def test_a_paused_worker_takes_back_what_it_lends_and_lends_nothing_until_it_resumes(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as it:
        call = it.call()
        await call.offer()
        await call.says(Reserve((MIB,)))
        assert isinstance(await call.hears(), Grant)
        it.worker.pause.begin(end_leases=False)
        await asyncio.sleep(100)
        assert it.worker.is_lending, "its head gives it back"
        with pytest.raises(Refused, match="its user has paused it"):
            await it.call().offer()
        it.worker.pause.begin(end_leases=True)
        lost = await call.hears()
        assert lost == Lost("paused", "its user has paused it")
        await call.is_over()
        assert it.worker.status.children == [] and it.bench.children[0].ended
        it.worker.pause.end()
        await it.call().offer()


async def test_it_computes_from_a_lease_on_until_nothing_is_computed_for_a_while(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _, _):

        def state() -> tuple[bool, bool, int]:
            return it.worker.is_lending, it.worker.is_computing, len(it.worker.servers)

        assert state() == (True, True, 1), "it is not loaded yet"
        await asyncio.sleep(60)
        assert state() == (True, True, 1)
        await says(call, Loaded())
        await asyncio.sleep(QUIET_SECONDS)
        assert state() == (True, False, 1)
        await call.release()
        assert state() == (False, False, 0)


async def test_each_live_lease_has_a_log_of_its_own(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as it:

        def logs() -> list[str]:
            return [child.spec.log.name for child in it.bench.children if child.spec is not None]

        calls = []
        for number in range(3):
            calls.append(it.call(f"head-{number}"))
            await calls[-1].lease()
        assert [name.rpartition("-")[2] for name in logs()] == ["1.log", "2.log", "3.log"]
        await calls[0].release()
        for number in range(MAX_LEASES - 3):
            await it.call(f"later-{number}").lease()
        await calls[1].release()
        await it.call("last").lease()
        names = logs()
        live = {*names[2:]}
        assert len(live) == len(names) - 2 == MAX_LEASES - 1 and names[-1] == names[0]
