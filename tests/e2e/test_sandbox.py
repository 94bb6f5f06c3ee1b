"""Real programs run confined, and are attacked from inside."""

import re
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.process.interface import Network, Sandbox
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import smollm2, stock
from tests.e2e.nodes import Fleet, api_of, child_pid, play
from tests.process.attacked import CAN_ATTACK, NEEDED, attacked, build_attacker

pytestmark = [*MARKS, *CAN_ATTACK]


def confinement(pid: int) -> tuple[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return facts["NoNewPrivs"], facts["Seccomp"]


def mapped(pid: int) -> int:
    """Return the private writable memory of a process, in bytes."""
    [kilobytes] = re.findall(r"^VmData:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kilobytes) << 10


def most_mapped(pid: int) -> int:
    """Return the limit of it, in bytes; fails if there is none."""
    [limit] = re.findall(r"^Max data size +(\d+) ", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    return int(limit)


def test_both_programs_of_a_mesh_are_confined(tmp_path: Path) -> None:
    async def check() -> list[tuple[str, str]]:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), "--device", "none", token=token)
            serving, lent = await fleet.ready(head), await worker.status()
            return [confinement(child_pid(lent, CHILD_NAME)), confinement(child_pid(serving, "llama-server"))]

    assert play(check()) == [("1", "2"), ("1", "2")]


def test_a_mesh_server_maps_no_more_than_it_may(tmp_path: Path) -> None:
    """It has a limit, and works with much less than that."""

    async def check() -> tuple[int, int]:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), "--device", "none", token=token)
            await api_of(await fleet.ready(head)).complete("word " * 500, 32)
            pid = child_pid(await worker.status(), CHILD_NAME)
            return most_mapped(pid), mapped(pid)

    limit, used = play(check())
    assert used < 0.75 * limit


@pytest.mark.parametrize("which", ["mesh-server", LLAMA_SERVER])
def test_an_attacker_in_a_real_program_gets_nothing(tmp_path: Path, which: str) -> None:
    program = found_build().server if which == "mesh-server" else stock().binaries[LLAMA_SERVER]
    is_worker = which == "mesh-server"
    limited, listening = Sandbox(memory=1 << 30), Sandbox(listen=tmp_path, network=Network.UNIX)
    sandbox = limited if is_worker else listening
    tried = attacked(tmp_path, build_attacker(tmp_path), sandbox, str(program))
    got = {what for what, code in tried.items() if code == 0}
    assert got == NEEDED | (set() if is_worker else {"much-memory"})
