"""Test the descriptors of a daemon and its children, and what is left of a daemon that crashes."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.relay_process import LOOPBACK

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, resource, sys
from pathlib import Path
from meshd.base.processes import forbid_core_dumps, raise_limit
from meshd.process.interface import ChildSpec
from meshd.process.run import Run

async def main():
    async with Run(ChildSpec(name="child", argv=("/bin/sleep", "60"), log=Path(sys.argv[1]))) as run:
        print(resource.prlimit(run.pid, resource.RLIMIT_NOFILE)[0])
        print(resource.prlimit(run.pid, resource.RLIMIT_CORE)[0])

forbid_core_dumps()
print(raise_limit())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child's limit cannot be set from outside")
def test_a_daemon_may_have_all_that_the_system_allows_and_a_child_what_the_user_gave(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run(
        ["/bin/sh", "-c", f'ulimit -Sn 200; exec {sys.executable} -c "$0" "$1"', PROGRAM, tmp_path / "log"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    raised, now, child, core = map(int, done.stdout.split())
    assert raised == now == (1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))
    assert child == 200
    assert core == (1 if resource.getrlimit(resource.RLIMIT_CORE)[1] else 0)


WITH_DUMPS = 'ulimit -Sc unlimited && exec "$0" "$@"'


@contextmanager
def relay_in(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a process with a key, started where core dumps are wanted; it has said that it is ready."""
    words = [sys.executable, "-m", "meshd", "relay", "--listen", f"{LOOPBACK}:0"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", WITH_DUMPS, *words],
        cwd=folder,
        env={**os.environ, "MESHD_HOME": str(folder.parent / "home"), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("relay://")
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(
    sys.platform != "linux" or resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY,
    reason="core dumps are forbidden to this process already",
)
def test_a_relay_that_crashes_leaves_no_core_dump(tmp_path: Path) -> None:
    """The same of a worker: test_daemon_limits.py."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with relay_in(folder) as process:
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        [line] = [line.split() for line in limits if line.startswith("Max core file size")]
        assert line[-3:] == ["1", "unlimited", "bytes"]
        process.send_signal(signal.SIGABRT)
        assert process.wait(20) == -signal.SIGABRT
    assert not list(folder.iterdir())
