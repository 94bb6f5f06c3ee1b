"""A real child that the kernel ends because memory runs out: it says so, and with which limit."""

import subprocess
from pathlib import Path

from tests.control_group import small_group

LIMIT = 128 << 20
SCENE = """
import asyncio, sys
from pathlib import Path
from meshd.process.interface import ChildFailed, ChildSpec
from meshd.process.child import OwnedChild
from meshd.process.run import run_to_end
from tests.process.scenes import owned

def spec(words):
    return ChildSpec(name="child", argv=(sys.executable, "-c", words), log=Path("LOG"), probe=never)

async def never():
    return False

async def scene():
    async with owned(lambda: spec("bytearray(1 << 30)")) as child:
        try:
            await child.ensure_ready()
        except ChildFailed as error:
            print(error.what)
            print(error.hint.splitlines()[0])
        print(child.status.exit_signal, child.status.no_memory)
    print(await run_to_end(spec("import os; os.kill(os.getpid(), 9)")))

asyncio.run(scene())
"""


def test_a_child_that_the_kernel_ends_for_memory_names_the_limit(tmp_path: Path) -> None:
    with small_group(LIMIT) as group:
        script = SCENE.replace("LOG", str(tmp_path / "child.log"))
        said = subprocess.run(group.command(script), capture_output=True, text=True, timeout=120, check=False)
        lines = said.stdout.splitlines()
        assert len(lines) == 4, said.stderr
        where = group.folder.parent
        reached = f"this node reached its memory limit of 128 MiB (`{where}`)"
        assert lines[0] == f"`child` was ended by the kernel while it was starting: {reached}"
        assert "--memory" in lines[1]
        assert lines[2] == f"9 {reached}"
        # another SIGKILL than the kernel's is not taken for one
        assert lines[3] == "Ended(code=None, signal=9, tail=(), no_memory='')"


def test_our_own_kill_is_not_taken_for_the_kernels(tmp_path: Path) -> None:
    """The kernel may end another process of the group meanwhile."""
    script = KILLED.replace("LOG", str(tmp_path / "child.log"))
    with small_group(LIMIT) as group:
        said = subprocess.run(group.command(script), capture_output=True, text=True, timeout=120, check=False)
    assert said.stdout.splitlines() == ["1", "''"], said.stderr


KILLED = """
import asyncio, signal, subprocess, sys
from pathlib import Path
from meshd.base.resource_limits import out_of_memory_kills
from meshd.process.interface import ChildSpec
from meshd.process.run import Run

async def scene():
    async with Run(ChildSpec(name="child", argv=("/bin/cat",), log=Path("LOG"))) as run:
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "bytearray(1 << 30)"])
        print(out_of_memory_kills())
        run.signal(signal.SIGKILL)
        print(repr(run.no_memory(await run.exited())))

asyncio.run(scene())
"""
