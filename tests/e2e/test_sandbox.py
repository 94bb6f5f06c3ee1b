"""Real programs run confined, and are attacked from inside."""

from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.process.interface import Network, Sandbox
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import smollm2, stock
from tests.e2e.nodes import Fleet, child_pid, play
from tests.process.attacked import CAN_ATTACK, NEEDED, attacked, build_attacker

pytestmark = [*MARKS, *CAN_ATTACK]


def confinement(pid: int) -> tuple[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return facts["NoNewPrivs"], facts["Seccomp"]


def test_both_programs_of_a_mesh_are_confined(tmp_path: Path) -> None:
    async def check() -> list[tuple[str, str]]:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), "--device", "none", token=token)
            serving, lent = await fleet.ready(head), await worker.status()
            return [confinement(child_pid(lent, CHILD_NAME)), confinement(child_pid(serving, "llama-server"))]

    assert play(check()) == [("1", "2"), ("1", "2")]


@pytest.mark.parametrize("which", ["mesh-server", LLAMA_SERVER])
def test_an_attacker_in_a_real_program_gets_nothing(tmp_path: Path, which: str) -> None:
    program = found_build().server if which == "mesh-server" else stock().binaries[LLAMA_SERVER]
    sandbox = Sandbox() if which == "mesh-server" else Sandbox(listen=tmp_path, network=Network.UNIX)
    tried = attacked(tmp_path, build_attacker(tmp_path), sandbox, str(program))
    assert {what for what, code in tried.items() if code == 0} == NEEDED
