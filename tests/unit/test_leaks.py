"""The look at leaks finds each kind, and nothing where there is nothing."""

import asyncio
import os
import subprocess
import sys

import pytest

from tests import leaks

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_SECONDS", 0.0)


def test_nothing() -> None:
    assert leaks.leaks_since(leaks.look()) == []


@linux_only
def test_a_descriptor() -> None:
    before = leaks.look()
    read, write = os.pipe()
    try:
        found = leaks.leaks_since(before)
        assert [line.partition(" pipe")[0] for line in found] == [
            f"descriptor {read}:",
            f"descriptor {write}:",
        ]
    finally:
        os.close(read)
        os.close(write)


@linux_only
def test_a_child() -> None:
    before = leaks.look()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        assert f"child process {child.pid}" in leaks.leaks_since(before)
    assert leaks.leaks_since(before) == []


def test_a_task() -> None:
    async def forget() -> None:
        tasks.append(asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="stray"))

    tasks: list[asyncio.Task[bool]] = []
    before = leaks.look()
    asyncio.run(forget())
    assert [line.partition(":")[0] for line in leaks.leaks_since(before)] == ["task stray"]
