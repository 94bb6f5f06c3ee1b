"""A real child that fails: crashes, is not ready in time, cannot be run at all."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.process.interface import ChildFailed, ChildSpec, ChildState

from tests.process.scenes import Maker, failure_of, owned, pid_of, state_of, until


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
async def test_no_descriptors_left_is_no_reason_for_the_owner_to_die(
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

    async with owned(Maker(tmp_path)) as child:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pipe", pipe)
            error = await failure_of(child)
            assert isinstance(error, ChildFailed)
            assert error.what == "`child` could not be started: Too many open files"


async def test_a_crash_while_starting_names_the_code_and_shows_the_last_lines(tmp_path: Path) -> None:
    maker = Maker(tmp_path, "--die-after", "0", "--exit-code", "3", ready_timeout=None)
    async with owned(lambda: _never_ready(maker())) as child:
        error = await failure_of(child)
        assert isinstance(error, ChildFailed)
        assert error.what == "`child` ended with exit code 3 while it was starting"
        assert error.tail == ("ready", "last words")
        assert "last words" in error.hint
        assert "child.log" in error.hint
        assert state_of(child) is ChildState.FAILED


def _never_ready(spec: ChildSpec) -> ChildSpec:
    async def never() -> bool:
        await asyncio.Event().wait()
        return False

    return ChildSpec(name=spec.name, argv=spec.argv, log=spec.log, probe=never, ready_timeout=None)


async def test_a_crash_by_a_signal_names_it(tmp_path: Path) -> None:
    number = signal.SIGSEGV

    async with owned(Maker(tmp_path, "--die-after", "2", "--die-by", str(int(number)))) as child:
        await child.ensure_ready()
        status = await until(child, ChildState.FAILED)
        assert f"was ended by {number.name}" in status.reason
        assert (status.exit_code, status.exit_signal) == (None, number)


async def test_not_ready_in_time_ends_it_and_says_so(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--slow-start", "600", ready_timeout=0.2)) as child:
        error = await failure_of(child)
        assert error.what == "`child` was not ready 0.2 s after its start"
        assert child.status.pid is None


@pytest.mark.parametrize("kind", ["missing", "name", "folder", "mode", "format", "interpreter", "empty"])
async def test_a_program_that_cannot_run_is_the_users_matter(tmp_path: Path, kind: str) -> None:
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

    spec = ChildSpec(name="child", argv=command, log=tmp_path / "child.log")
    async with owned(spec) as child:
        error = await failure_of(child)
        assert isinstance(error, UserError)
        assert expected in error.what
        assert state_of(child) is ChildState.FAILED
        assert expected in child.status.reason


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, cwd=tmp_path / "gone")) as child:
        error = await failure_of(child)
        assert isinstance(error, UserError)
        assert "working directory" in error.what


async def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with owned(Maker(tmp_path / "file" / "below")) as child:
        error = await failure_of(child)
        assert isinstance(error, UserError)
        assert "cannot write log" in error.what


async def test_a_spec_that_cannot_be_made_is_the_reason(tmp_path: Path) -> None:
    def make() -> ChildSpec:
        raise UserError("port `1` is taken", hint="choose another")

    async with owned(make) as child:
        error = await failure_of(child)
        assert (error.what, error.hint) == ("port `1` is taken", "choose another")


async def test_a_killed_child_stays_away(tmp_path: Path) -> None:
    maker = Maker(tmp_path)
    async with owned(maker) as child:
        await child.ensure_ready()
        first = pid_of(child)
        os.kill(first, signal.SIGKILL)
        status = await until(child, ChildState.FAILED)
        assert "was ended by SIGKILL" in status.reason
        assert maker.starts == 1
        assert str((await failure_of(child)).what) == status.reason
        assert maker.starts == 1
