"""A real child and its owner: start, readiness, crash, stop, and all of these at once."""

import asyncio
import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest
from meshd.base.errors import Busy, Closed, MeshdError, UserError
from meshd.process import supervisor
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildFailed, ChildSpec, ChildState

from tests.process.scenes import Maker, argv, living, owned, pid_of, play, state_of, until, until_dead


async def failure_of(child: OwnedChild) -> MeshdError:
    with pytest.raises(MeshdError) as caught:
        await child.ensure_ready()
    return caught.value


def test_ready_then_stopped(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path)) as child:
            assert state_of(child) is ChildState.STOPPED
            await child.ensure_ready()
            assert state_of(child) is ChildState.READY
            pid = pid_of(child)
            await child.stop()
            assert state_of(child) is ChildState.STOPPED
            assert child.status.pid is None
            assert not living({pid})
            await child.stop()

    play(scene)


def test_five_callers_one_start(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path)
        async with owned(maker) as child:
            await asyncio.gather(*(child.ensure_ready() for _ in range(5)))
            await child.ensure_ready()
            assert maker.starts == 1

    play(scene)


def test_a_child_without_a_probe_is_ready_when_it_runs(tmp_path: Path) -> None:
    async def scene() -> None:
        spec = ChildSpec(name="plain", argv=argv(), log=tmp_path / "plain.log")
        async with owned(spec) as child:
            await child.ensure_ready()
            assert living({pid_of(child)})

    play(scene)


def test_stop_waits_for_a_graceful_end(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path)
        async with owned(maker) as child:
            await child.ensure_ready()
            await child.stop()
            assert child.status.reason == "stopped"
            assert maker.lines[-1] == "told to end"

    play(scene)


def test_an_owner_that_is_cancelled_ends_its_child_gracefully(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path)
        async with owned(maker) as child:
            await child.ensure_ready()
        assert maker.lines[-1] == "told to end"

    play(scene)


def test_a_child_that_was_suspended_heeds_stop(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path, stop_timeout=600.0)
        async with owned(maker) as child:
            await child.ensure_ready()
            os.kill(pid_of(child), signal.SIGSTOP)
            await child.stop()
        assert maker.lines[-1] == "told to end"

    play(scene)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_no_descriptors_left_is_no_reason_for_the_owner_to_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    real = os.pipe
    calls = 0

    def pipe() -> tuple[int, int]:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EMFILE, "Too many open files")
        return real()

    async def scene() -> None:
        async with owned(Maker(tmp_path)) as child:
            with monkeypatch.context() as patched:
                patched.setattr(os, "pipe", pipe)
                error = await failure_of(child)
                assert isinstance(error, ChildFailed)
                assert error.what == "`child` could not be started: Too many open files"
            await child.ensure_ready()

    play(scene)


def test_stop_kills_a_child_that_ignores_term(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.1)) as child:
            await child.ensure_ready()
            pid = pid_of(child)
            await child.stop()
            assert not living({pid})

    play(scene)


def test_kill_ends_it_at_once_as_any_signal_does(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=60.0)) as child:
            child.kill()  # nothing is there
            await child.ensure_ready()
            pid = pid_of(child)
            os.kill(pid, signal.SIGSTOP)
            status = child.status
            child.kill()
            status = await child.wait_changed(status)
            assert "was ended by SIGKILL" in status.reason
            assert not living({pid})

    play(scene)


def test_stop_of_a_forking_wrapper_reaps_the_grandchild(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path, "--wrapper")
        async with owned(maker) as child:
            await child.ensure_ready()
            grandchild = maker.pid_of("grandchild")
            assert living({grandchild})
            await child.stop()
            assert not living({grandchild})

    play(scene)


def test_an_end_is_noticed_at_once_though_a_grandchild_holds_the_pipes(tmp_path: Path) -> None:
    # the grandchild sleeps 600 s with stdout inherited: waiting for the pipe's end would pass the deadline
    async def scene() -> None:
        maker = Maker(tmp_path, "--fork", "--die-after", "0.5", "--exit-code", "7")
        async with owned(maker) as child:
            await child.ensure_ready()
            status = await until(child, ChildState.FAILED)
            assert "exit code 7" in status.reason
            assert status.tail[-1] == "last words"
            assert not living({maker.pid_of("grandchild")})

    play(scene)


def test_a_crash_while_starting_names_the_code_and_shows_the_last_lines(tmp_path: Path) -> None:
    async def scene() -> None:
        maker = Maker(tmp_path, "--die-after", "0", "--exit-code", "3", ready_timeout=None)
        async with owned(lambda: _never_ready(maker())) as child:
            error = await failure_of(child)
            assert isinstance(error, ChildFailed)
            assert error.what == "`child` ended with exit code 3 while it was starting"
            assert error.tail == ("ready", "last words")
            assert "last words" in error.hint
            assert "child.log" in error.hint
            assert state_of(child) is ChildState.FAILED

    play(scene)


def _never_ready(spec: ChildSpec) -> ChildSpec:
    async def never() -> bool:
        await asyncio.Event().wait()
        return False

    return ChildSpec(name=spec.name, argv=spec.argv, log=spec.log, probe=never, ready_timeout=None)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL])
def test_a_crash_by_a_signal_names_it(tmp_path: Path, number: signal.Signals) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--die-after", "0.5", "--die-by", str(int(number)))) as child:
            await child.ensure_ready()
            status = await until(child, ChildState.FAILED)
            assert f"was ended by {number.name}" in status.reason

    play(scene)


def test_not_ready_in_time_ends_it_and_says_so(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--slow-start", "600", ready_timeout=0.2)) as child:
            error = await failure_of(child)
            assert error.what == "`child` was not ready 0.2 s after its start"
            assert child.status.pid is None

    play(scene)


@pytest.mark.parametrize("kind", ["missing", "name", "folder", "mode", "format", "interpreter", "empty"])
def test_a_program_that_cannot_run_is_the_users_matter(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "program"
    expected = {
        "missing": "cannot find program",
        "name": "cannot find program `meshd-no-such-program` for `child` in PATH",
        "folder": "is a directory",
        "mode": "is not executable",
        "format": "is not a program for this machine",
        "interpreter": "needs a loader or interpreter",
        "empty": "command line is empty",
    }[kind]
    match kind:
        case "folder":
            program.mkdir()
        case "mode":
            program.write_text("#!/bin/sh\n")
        case "format":
            program.write_bytes(b"\x7fNOT an ELF")
            program.chmod(0o755)
        case "interpreter":
            program.write_text("#!/no/such/interpreter\n")
            program.chmod(0o755)
        case _:
            pass
    command = {"name": ("meshd-no-such-program",), "empty": ()}.get(kind, (str(program),))

    async def scene() -> None:
        # restart does not help here: it must not try for ever
        spec = ChildSpec(name="child", argv=command, log=tmp_path / "child.log", restart=True)
        async with owned(spec) as child:
            error = await failure_of(child)
            assert isinstance(error, UserError)
            assert expected in error.what
            assert state_of(child) is ChildState.FAILED
            assert expected in child.status.reason

    play(scene)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, cwd=tmp_path / "gone")) as child:
            error = await failure_of(child)
            assert isinstance(error, UserError)
            assert "working directory" in error.what

    play(scene)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async def scene() -> None:
        (tmp_path / "file").write_text("")
        async with owned(Maker(tmp_path / "file" / "below")) as child:
            error = await failure_of(child)
            assert isinstance(error, UserError)
            assert "cannot write log" in error.what

    play(scene)


def test_a_spec_that_cannot_be_made_is_the_reason(tmp_path: Path) -> None:
    def make() -> ChildSpec:
        raise UserError("port `1` is taken", hint="choose another")

    async def scene() -> None:
        async with owned(make) as child:
            error = await failure_of(child)
            assert (error.what, error.hint) == ("port `1` is taken", "choose another")

    play(scene)


def test_stop_during_start_answers_both(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_stop_before_the_spawn_is_done_answers_both(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_ensure_ready_during_stop_starts_anew(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.2)) as child:
            await child.ensure_ready()
            first = pid_of(child)
            stopping = asyncio.ensure_future(child.stop())
            await until(child, ChildState.STOPPING)
            await child.ensure_ready()
            assert pid_of(child) != first
            assert not living({first})
            await stopping

    play(scene)


def test_many_at_once_end_in_one_of_the_two(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_a_cancelled_caller_changes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.2)) as child:
            for call, state in ((child.ensure_ready, ChildState.READY), (child.stop, ChildState.STOPPED)):
                caller = asyncio.ensure_future(call())
                await asyncio.sleep(0)
                caller.cancel()
                await until(child, state)
                assert caller.cancelled()

    play(scene)


def test_a_killed_child_comes_back_when_it_is_to(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path, restart=True)) as child:
            await child.ensure_ready()
            first = pid_of(child)
            os.kill(first, signal.SIGKILL)
            status = await until(child, ChildState.BACKOFF)
            assert "was ended by SIGKILL" in status.reason
            assert "next try in 0.25 s" in status.reason
            await child.ensure_ready()
            assert pid_of(child) != first
            assert child.status.restarts == 1

    play(scene)


def test_a_crash_loop_is_named_and_slowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "QUICK_FIRST", 0.001)

    async def scene() -> None:
        async with owned(Maker(tmp_path, "--die-after", "0", "--exit-code", "1", restart=True)) as child:
            status = child.status
            with contextlib.suppress(ChildFailed):  # its end may be seen before what it said
                await child.ensure_ready()
            while not status.crash_loop:
                status = await child.wait_changed(status)
            assert status.state is ChildState.BACKOFF
            assert status.reason.startswith("crash loop, 5 starts in a row without success: `child` ended")
            assert status.reason.endswith("next try in 15 s")
            assert status.restarts == 4
            await child.stop()
            assert not child.status.crash_loop

    play(scene)


def test_a_cancelled_owner_leaves_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_an_owner_cancelled_twice_kills_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_who_waits_when_the_owner_ends_is_told(tmp_path: Path) -> None:
    async def scene() -> None:
        child = OwnedChild(Maker(tmp_path, "--slow-start", "600"))
        task = asyncio.ensure_future(child.serve())
        starting = asyncio.ensure_future(failure_of(child))
        await until(child, ChildState.STARTING)
        task.cancel()
        assert isinstance(await starting, Closed)
        await asyncio.wait([task])

    play(scene)


def test_one_owner_only(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path)) as child:
            await child.ensure_ready()
            with pytest.raises(Busy):
                await child.serve()

    play(scene)


def test_asked_before_it_is_owned(tmp_path: Path) -> None:
    async def scene() -> None:
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

    play(scene)


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    async def scene() -> None:
        maker = Maker(tmp_path, "--show-env", env={"ADDED": "yes"})
        async with owned(maker) as child:
            await child.ensure_ready()
            names = {line.split("=")[0] for line in maker.lines if line.startswith("env ")}
            assert {"env ADDED", "env PATH", "env CUDA_VISIBLE_DEVICES"} <= names
            assert "env MESHD_TOKEN" not in names

    play(scene)


def test_the_child_gets_only_the_descriptors_named(tmp_path: Path) -> None:
    async def scene() -> None:
        read_end, write_end = os.pipe()
        os.set_inheritable(read_end, True)
        try:
            maker = Maker(tmp_path, "--show-fds", pass_fds=(write_end,))
            async with owned(maker) as child:
                await child.ensure_ready()
                assert f"fds 0 1 2 {write_end}" in maker.lines
        finally:
            os.close(read_end)
            os.close(write_end)

    play(scene)


def test_the_pid_file_is_there_while_it_runs(tmp_path: Path) -> None:
    async def scene() -> None:
        async with owned(Maker(tmp_path)) as child:
            await child.ensure_ready()
            text = (tmp_path / "child.pid").read_text()
            assert text.split()[0] == str(child.status.pid)
        assert not (tmp_path / "child.pid").exists()

    play(scene)


def test_until_dead_sees_the_living(tmp_path: Path) -> None:
    # the measure of all the others must be able to fail
    async def scene() -> None:
        async with owned(Maker(tmp_path)) as child:
            await child.ensure_ready()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await until_dead({pid_of(child)})

    play(scene)
