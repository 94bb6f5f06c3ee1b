"""How many descriptors a daemon may have, and what its children get."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, resource, sys
from pathlib import Path
from meshd.base.open_files import raise_limit
from meshd.process.interface import ChildSpec
from meshd.process.run import Run

async def main():
    async with Run(ChildSpec(name="child", argv=("/bin/sleep", "60"), log=Path(sys.argv[1]))) as run:
        print(resource.prlimit(run.pid, resource.RLIMIT_NOFILE)[0])

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
    raised, now, child = map(int, done.stdout.split())
    assert raised == now == (1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20))
    assert child == 200
