"""A real child: start, stop, crash and the end of its owner, all at once."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.errors import Busy, Closed
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildState

from tests.process.scenes import Maker, failure_of, living, owned, pid_of, state_of, until


async def test_stop_during_start_answers_both(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--slow-start", "600")) as child:
        starting = asyncio.ensure_future(failure_of(child))
        await until(child, ChildState.STARTING)
        while child.status.pid is None:
            await child.wait_changed(child.status)
        pid = pid_of(child)
        await child.stop()
        assert isinstance(await starting, Closed)
        assert state_of(child) is ChildState.STOPPED
        assert not living({pid})


async def test_stop_before_the_spawn_is_done_answers_both(tmp_path: Path) -> None:
    for turns in range(12):  # loop turns given to the start before the stop
        async with owned(Maker(tmp_path)) as child:
            starting = asyncio.ensure_future(child.ensure_ready())
            for _ in range(turns):
                await asyncio.sleep(0)
            await child.stop()
            assert child.status.state in (ChildState.STOPPED, ChildState.STARTING)
            if turns:
                with pytest.raises(Closed):
                    await starting
            else:
                await starting  # it asked after the stop


async def test_a_stop_at_any_moment_of_a_stop_waits_for_the_same_end(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.2)) as child:
        await child.ensure_ready()
        pid = pid_of(child)
        stopping = []
        for _ in range(12):
            stopping.append(asyncio.ensure_future(child.stop()))
            await asyncio.sleep(0)
        await asyncio.gather(*stopping)
        assert state_of(child) is ChildState.STOPPED
        assert not living({pid})


async def test_ensure_ready_during_stop_starts_anew(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.2)) as child:
        await child.ensure_ready()
        first = pid_of(child)
        stopping = asyncio.ensure_future(child.stop())
        await until(child, ChildState.STOPPING)
        await child.ensure_ready()
        assert pid_of(child) != first
        assert not living({first})
        await stopping


async def test_many_at_once_end_in_one_of_the_two(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:

        async def start() -> None:
            try:
                await child.ensure_ready()
            except Closed:
                pass

        for _ in range(5):
            await asyncio.gather(*(call() for call in (start, child.stop, start, start, child.stop)))
        await child.stop()
        assert state_of(child) is ChildState.STOPPED


async def test_a_cancelled_caller_changes_nothing(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.2)) as child:
        for call, state in ((child.ensure_ready, ChildState.READY), (child.stop, ChildState.STOPPED)):
            caller = asyncio.ensure_future(call())
            await asyncio.sleep(0)
            caller.cancel()
            await until(child, state)
            assert caller.cancelled()


async def test_a_cancelled_owner_leaves_nothing(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "--fork", "--ignore-term", stop_timeout=0.1)
    async with owned(maker) as child:
        await child.ensure_ready()
        pids = {pid_of(child), maker.pid_of("grandchild")}
    assert not living(pids)
    assert child.status.reason == "no longer owned"
    await child.stop()
    with pytest.raises(Closed):
        await child.ensure_ready()
    with pytest.raises(Closed):
        await child.serve()


async def test_an_owner_cancelled_twice_kills_at_once(tmp_path: Path) -> None:
    child = OwnedChild(Maker(tmp_path, "--ignore-term", stop_timeout=600.0))
    task = asyncio.ensure_future(child.serve())
    await child.ensure_ready()
    pid = pid_of(child)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not living({pid})


async def test_who_waits_when_the_owner_ends_is_told(tmp_path: Path) -> None:
    child = OwnedChild(Maker(tmp_path, "--slow-start", "600"))
    task = asyncio.ensure_future(child.serve())
    starting = asyncio.ensure_future(failure_of(child))
    await until(child, ChildState.STARTING)
    task.cancel()
    assert isinstance(await starting, Closed)
    await asyncio.wait([task])


async def test_one_owner_only(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:
        await child.ensure_ready()
        with pytest.raises(Busy):
            await child.serve()


async def test_asked_before_it_is_owned(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    child = OwnedChild(maker)
    starting = asyncio.ensure_future(failure_of(child))
    await until(child, ChildState.STARTING)
    await child.stop()
    assert isinstance(await starting, Closed)
    assert maker.starts == 0
    starting_again = asyncio.ensure_future(child.ensure_ready())
    task = asyncio.ensure_future(child.serve())
    await starting_again
    task.cancel()
    await asyncio.wait([task])
