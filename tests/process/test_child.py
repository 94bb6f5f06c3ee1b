"""A real child and its owner: start, readiness, stop, and what the child is given."""

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.base import log
from meshd.process.interface import ChildSpec, ChildState

from tests.process.scenes import (
    Maker,
    argv,
    living,
    owned,
    pid_of,
    state_of,
    until,
    until_dead,
    waits_for_the_killed,
)

__all__ = ["waits_for_the_killed"]  # a fixture


async def test_ready_then_stopped(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:
        assert state_of(child) is ChildState.STOPPED
        await child.ensure_ready()
        assert state_of(child) is ChildState.READY
        pid = pid_of(child)
        await child.stop()
        assert state_of(child) is ChildState.STOPPED
        assert child.status.pid is None
        assert not living({pid})


async def test_five_callers_one_start(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    async with owned(maker) as child:
        await asyncio.gather(*(child.ensure_ready() for _ in range(5)))
        await child.ensure_ready()
        assert maker.starts == 1


async def test_a_child_without_a_probe_is_ready_when_it_runs(tmp_path: Path) -> None:
    spec = ChildSpec(name="plain", argv=argv(), log=tmp_path / "plain.log")
    async with owned(spec) as child:
        await child.ensure_ready()
        assert living({pid_of(child)})


async def test_stop_waits_for_a_graceful_end(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    async with owned(maker) as child:
        await child.ensure_ready()
        await child.stop()
        assert child.status.reason == "no longer owned"
        assert maker.lines[-1] == "told to end"


async def test_a_child_that_was_suspended_heeds_stop(tmp_path: Path) -> None:
    maker = Maker(tmp_path, stop_timeout=600.0)
    async with owned(maker) as child:
        await child.ensure_ready()
        os.kill(pid_of(child), signal.SIGSTOP)
        await child.stop()
    assert maker.lines[-1] == "told to end"


async def test_stop_kills_a_child_that_ignores_term(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--ignore-term", stop_timeout=0.1)) as child:
        await child.ensure_ready()
        pid = pid_of(child)
        await child.stop()
        assert not living({pid})


async def test_kill_ends_it_at_once_as_any_signal_does(tmp_path: Path) -> None:
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


async def test_stop_of_a_forking_wrapper_reaps_the_grandchild(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "--wrapper")
    async with owned(maker) as child:
        await child.ensure_ready()
        grandchild = maker.pid_of("grandchild")
        assert living({grandchild})
        await child.stop()
        assert not living({grandchild})


async def test_an_end_is_noticed_at_once_though_a_grandchild_holds_the_pipes(tmp_path: Path) -> None:
    # the grandchild sleeps 600 s with stdout inherited: waiting for the pipe's end would pass the deadline
    maker = Maker(tmp_path, "--fork", "--die-after", "2", "--exit-code", "7")
    async with owned(maker) as child:
        await child.ensure_ready()
        status = await until(child, ChildState.FAILED)
        assert "exit code 7" in status.reason
        assert (status.exit_code, status.exit_signal) == (7, None)
        assert status.tail[-1] == "last words"
        assert not living({maker.pid_of("grandchild")})


async def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    maker = Maker(tmp_path, "--show-env", env={"ADDED": "yes"})
    async with owned(maker) as child:
        await child.ensure_ready()
        names = {line.split("=")[0] for line in maker.lines if line.startswith("env ")}
        assert {"env ADDED", "env PATH", "env CUDA_VISIBLE_DEVICES"} <= names
        assert "env MESHD_TOKEN" not in names
        assert "in /" in maker.lines, "llama.cpp loads libraries from its working directory"


async def test_the_child_gets_only_the_descriptors_named(tmp_path: Path) -> None:
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


async def test_the_pid_file_is_there_while_it_runs(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:
        await child.ensure_ready()
        text = (tmp_path / "child.pid").read_text()
        pid = child.status.pid or 0
        assert text == f"{pid} {os.getpgid(pid)} {os.getpid()} child\n"
        assert (tmp_path / "child.pid").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "child.pid").exists()


async def test_until_dead_sees_the_living(tmp_path: Path) -> None:
    # the measure of all the others must be able to fail
    async with owned(Maker(tmp_path)) as child:
        await child.ensure_ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await until_dead({pid_of(child)})


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return the log of the test."""
    stream = io.StringIO()
    log.set_up(level="info", stream=stream)
    yield stream
    log.set_up(level="warning")


@pytest.mark.parametrize(("code", "event"), [(0, "child_ended"), (3, "child_failed")])
async def test_the_log_tells_an_end_without_an_error_from_a_failure(
    tmp_path: Path, logged: io.StringIO, code: int, event: str
) -> None:
    brief = ("sh", "-c", f"sleep 0.2; exit {code}")
    spec = ChildSpec(name="brief", argv=brief, log=tmp_path / "brief.log")
    async with owned(spec) as child:
        await child.ensure_ready()
        await until(child, ChildState.FAILED)
    told = logged.getvalue()
    assert [one for one in ("child_ended", "child_failed") if one in told] == [event]
