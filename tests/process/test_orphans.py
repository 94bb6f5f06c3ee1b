"""kill -9 of the owner leaves nothing, whenever it comes; the guard outlives what is meant for the child."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.process.scenes import (
    PARENT,
    Maker,
    held_by,
    living,
    look_until,
    nothing_with,
    owned,
    pid_of,
    processes,
    read_pids,
    until_dead,
)

TIMES = 20  # moments of a start
SOON = 10.0  # seconds


@contextlib.contextmanager
def parent(folder: Path, *flags: str, marker: str = "x") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(PARENT), str(folder), marker, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[bytes], count: int) -> bytes:
    assert process.stdout is not None
    while line := process.stdout.readline():
        count -= line.startswith(b"{")
        if count == 0:
            return line
    raise AssertionError("the parent ended early")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
async def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with parent(tmp_path, "--fork", "--ignore-term") as process:
        pids = read_pids(lines_of(process, 2))
        assert living(pids.values()) == set(pids.values()), "all three must run before"
        process.send_signal(number)
        async with asyncio.timeout(SOON):
            await until_dead(pids.values())


async def test_nothing_is_left_when_the_owner_is_killed_in_the_middle_of_a_start(tmp_path: Path) -> None:
    for turn in range(TIMES):
        marker = uuid.uuid4().hex
        with parent(tmp_path, "--fork", "--ignore-term", marker=marker) as process:
            lines_of(process, 1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=turn * 0.0015)  # a start takes about 25 ms
            process.kill()
            process.wait()
        await look_until(partial(nothing_with, marker))


async def test_the_guard_ignores_what_is_meant_for_the_child(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path, "--ignore-term")) as child:
        await child.ensure_ready()
        pid = pid_of(child)
        guard = os.getpgid(pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(guard, number)
        os.kill(guard, signal.SIGSTOP)
        os.kill(guard, signal.SIGCONT)
        # it was told all that before it is told to end: had one of them ended it, it would be gone first
        assert living((pid, guard)) == {pid, guard}
        os.kill(pid, signal.SIGKILL)
        await child.wait_changed(child.status)
        assert not living((pid, guard))


async def test_a_killed_guard_is_replaced_in_the_same_group(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:
        await child.ensure_ready()
        pid = pid_of(child)
        group = os.getpgid(pid)
        os.kill(group, signal.SIGKILL)
        await look_until(lambda: bool(guards_in(group) - {group}))
        others = guards_in(group) - {group}
        assert child.status.pid == pid, "the child itself must not notice"
        await child.stop()
        assert not living({pid, *others})


def guards_in(group: int) -> set[int]:
    found = set()
    for pid, command in processes():
        with contextlib.suppress(ProcessLookupError):
            if "meshd-guard" in command and os.getpgid(pid) == group:
                found.add(pid)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_guard_holds_no_descriptor_but_its_own(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        async with owned(Maker(tmp_path, pass_fds=(write_end,))) as child:
            await child.ensure_ready()
            guard = os.getpgid(pid_of(child))
            held = held_by(guard)
            assert set(held) == {0, 1, 2}
            assert held_by(os.getpid())[write_end] not in held.values()
    finally:
        os.close(read_end)
        os.close(write_end)


async def test_the_group_is_never_the_owners(tmp_path: Path) -> None:
    async with owned(Maker(tmp_path)) as child:
        await child.ensure_ready()
        assert os.getpgid(pid_of(child)) != os.getpgrp()
