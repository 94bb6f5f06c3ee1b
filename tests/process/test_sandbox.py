"""A confined program under attack from inside: code that was loaded into it tries what an attacker would."""

import asyncio
import errno
from pathlib import Path

import pytest
from meshd.process.interface import ChildSpec, Network, Sandbox
from meshd.process.run import run_to_end

from tests.process.attacked import CAN_ATTACK, NEEDED, attacked, build_attacker

pytestmark = CAN_ATTACK
PROGRAM = "/bin/true"
MEMORY = {"much-memory"}  # got where the sandbox names no limit


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_attacker(tmp_path_factory.mktemp("attacker"))


def test_an_attacker_gets_nothing_but_what_the_program_needs(tmp_path: Path, attacker: Path) -> None:
    tried = attacked(tmp_path, attacker, Sandbox(memory=256 << 20), PROGRAM)
    assert {what for what, code in tried.items() if code == 0} == NEEDED
    assert tried.pop("much-memory") == errno.ENOMEM
    assert "exec-ran" not in tried
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "new").exists()
    # Refused, not broken in some other way.
    assert set(tried.values()) - {0} <= {errno.EPERM, errno.EACCES, errno.ENOSYS}


def test_without_a_sandbox_the_same_attempts_succeed(tmp_path: Path, attacker: Path) -> None:
    tried = attacked(tmp_path, attacker, None, PROGRAM)
    got = {what for what, code in tried.items() if code == 0}
    assert {
        "read-secret",
        "unlink-secret",
        "connect-tcp",
        "connect-unix",
        "fork",
        "daemon-signal",
        "send-unix",
    } <= got
    assert {"watch-folder", "daemon-signal-by-socket", "daemon-priority", "daemon-idle"} <= got
    assert tried["exec-ran"] == 0


def test_a_program_that_listens_can_make_a_socket_and_reach_nobody(tmp_path: Path, attacker: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    tried = attacked(tmp_path, attacker, Sandbox(listen=folder, network=Network.UNIX), PROGRAM)
    assert {what for what, code in tried.items() if code == 0} == NEEDED | MEMORY


def test_what_is_allowed_can_be_used(tmp_path: Path, attacker: Path) -> None:
    """The secret may be read and the folder kept: exactly that opens."""
    tried = attacked(tmp_path, attacker, Sandbox(read=(tmp_path / "secret",)), PROGRAM)
    assert {what for what, code in tried.items() if code == 0} == NEEDED | MEMORY | {"read-secret"}
    kept = attacked(tmp_path, attacker, Sandbox(keep=(tmp_path,)), PROGRAM)
    opened = {"read-secret", "write-secret", "unlink-secret", "create-file", "list-folder"}
    assert {what for what, code in kept.items() if code == 0} == NEEDED | MEMORY | opened


def test_a_program_that_is_missing_or_no_program_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    content = bytearray(Path(PROGRAM).read_bytes())
    content[18:20] = b"\xff\x7f"  # e_machine of no machine
    broken.write_bytes(content)
    broken.chmod(0o755)
    spec = ChildSpec(name="broken", argv=(str(broken),), log=tmp_path / "log", sandbox=Sandbox())
    ended = asyncio.run(run_to_end(spec))
    assert ended.code == 126
    assert any("cannot run" in line for line in ended.tail)


def test_signals_that_python_ignores_work_again_in_the_program(tmp_path: Path) -> None:
    shown = tmp_path / "log"
    lines: list[str] = []
    spec = ChildSpec(
        name="status",
        argv=("/bin/grep", "-E", "SigIgn|NoNewPrivs|Seccomp:", "/proc/self/status"),
        log=shown,
        on_line=lines.append,
        sandbox=Sandbox(),
    )
    asyncio.run(run_to_end(spec))
    facts = dict(line.split(":\t") for line in lines)
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert int(facts["SigIgn"], 16) & (1 << 12 | 1 << 24) == 0


def test_root_keeps_few_of_its_rights(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = ChildSpec(
        name="status",
        argv=("/bin/grep", "Cap", "/proc/self/status"),
        log=tmp_path / "log",
        on_line=lines.append,
        sandbox=Sandbox(),
    )
    asyncio.run(run_to_end(spec))
    facts = {name: int(value, 16) for name, value in (line.split(":\t") for line in lines)}
    reads_and_locks = 1 << 1 | 1 << 2 | 1 << 14
    assert facts["CapEff"] & ~reads_and_locks == 0
    assert facts["CapPrm"] & ~reads_and_locks == 0
