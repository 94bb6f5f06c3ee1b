"""Help tests of real children: a spec for child.py, an owned child, and a look at what is left."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec, ChildState, ChildStatus
from meshd.process.ready import LineSeen

PROGRAM = Path(__file__).with_name("child.py")
PARENT = Path(__file__).with_name("parent.py")
DEADLINE = 30.0  # of a whole scene; only a hang comes near it


def argv(*flags: str) -> tuple[str, ...]:
    """The command line of the child for tests; -S: no site-packages, a quick start."""
    return (sys.executable, "-S", str(PROGRAM), *flags)


@pytest.fixture(autouse=True)
def waits_for_the_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need seconds to end what was killed, and tests look only once whether it is gone."""
    monkeypatch.setattr("meshd.process.run._GONE_SECONDS", 60.0)


class Maker:
    """A spec for each start: the child is ready when it says so. Keeps the lines and counts the starts."""

    def __init__(self, folder: Path, *flags: str, **changes: object) -> None:
        self._base = ChildSpec(name="child", argv=argv(*flags), log=folder / "child.log", stop_timeout=20.0)
        self._changes = changes
        self.lines: list[str] = []
        self.starts = 0

    def __call__(self) -> ChildSpec:
        self.starts += 1
        seen = LineSeen("^ready$")

        def see(line: str) -> None:
            self.lines.append(line)
            seen.see(line)

        return replace(self._base, probe=seen, on_line=see, **self._changes)  # type: ignore[arg-type]

    def pid_of(self, word: str) -> int:
        """The number behind `word` in the lines (`grandchild 123`)."""
        for line in reversed(self.lines):
            found = re.fullmatch(rf"{word} (\d+)", line)
            if found is not None:
                return int(found[1])
        raise AssertionError(f"no line `{word} N` in {self.lines}")


class ChildOfTest(OwnedChild):
    """A child whose owner is a task of the test; `stop` ends it."""

    owner: asyncio.Task[None]

    async def stop(self) -> None:
        await cancel_and_wait(self.owner)


@contextlib.asynccontextmanager
async def owned(spec: ChildSpec | Callable[[], ChildSpec]) -> AsyncIterator[ChildOfTest]:
    """A child whose owner runs until the block is left."""
    child = ChildOfTest(spec)
    async with Owner() as owner:
        child.owner = owner.start(child.serve(), name="serve")
        try:
            yield child
        finally:
            await child.stop()


def open_fds() -> set[int]:
    """Numbers of this process's open descriptors."""
    found = set()
    for number in range(512):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def living(pids: Iterable[int]) -> set[int]:
    """Return those of `pids` that still run; zombies do not count."""
    wanted = set(pids)
    return {pid for pid, _ in processes() if pid in wanted}


def processes() -> list[tuple[int, str]]:
    """(pid, command line) of all processes but zombies."""
    answer = subprocess.run(["ps", "-axwwo", "pid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in answer.stdout.splitlines())
    return [(int(row[0]), row[2]) for row in rows if len(row) == 3 and not row[1].startswith("Z")]


def nothing_with(marker: str) -> bool:
    """Return True if no process has `marker` in its command line."""
    return not any(marker in command for _, command in processes())


async def look_until(seen: Callable[[], bool]) -> None:
    """Look again and again, for what sends no event; the scene's deadline ends it."""
    while True:
        if seen():
            return
        await asyncio.sleep(0.01)


async def until_dead(pids: Iterable[int]) -> None:
    """Wait until none of `pids` runs."""
    wanted = set(pids)
    await look_until(lambda: not living(wanted))


def held_by(pid: int) -> dict[int, str]:
    """Descriptors of a process and what they lead to (Linux)."""
    held = {}
    for entry in Path("/proc", str(pid), "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists the folder
            held[int(entry.name)] = str(entry.readlink())
    return held


async def until(child: OwnedChild, *states: ChildState) -> ChildStatus:
    """Wait until the child is in one of `states`."""
    status = child.status
    while status.state not in states:
        status = await child.wait_changed(status)
    return status


async def failure_of(child: OwnedChild) -> MeshdError:
    """Return the error with which its start ends."""
    with pytest.raises(MeshdError) as caught:
        await child.ensure_ready()
    return caught.value


def state_of(child: OwnedChild) -> ChildState:
    """Its state now."""
    return child.status.state


def pid_of(child: OwnedChild) -> int:
    """The pid of a child that runs."""
    pid = child.status.pid
    assert pid is not None
    return pid


def read_pids(line: bytes) -> dict[str, int]:
    """Return the pids that parent.py prints."""
    pids = json.loads(line)
    assert isinstance(pids, dict)
    return pids
