"""Each kind of finding of `meshd doctor`: on a machine broken in just that way, and not on a healthy one."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from meshd.doctor.gpu_kinds import GpuKind
from meshd.doctor.kinds import Kind, Kinds
from meshd.doctor.services import ServiceKind

from tests.process.doctor_breakages import BREAKAGES
from tests.process.doctor_gpus import OF_GPUS
from tests.process.doctor_scene import Machine

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="makes namespaces for mounts and networks: root on Linux",
)
ALL = BREAKAGES | OF_GPUS
# kinds that no machine here can have
ELSEWHERE: dict[Kinds, str] = {
    **dict.fromkeys((kind for kind in ServiceKind if kind.value.state != "ok"), "tests/boot/test_doctor.py"),
    Kind.SANDBOX_UNTRIED: "macOS only: tests/unit/cli/test_doctor.py",
    Kind.CHAT_PAGE_SMALL: "no problem, a remark: tests/unit/build/test_page.py",
    Kind.CHECK_FAILED: "takes a fault in meshd: tests/unit/doctor/test_examine.py",
}


def test_a_healthy_machine_has_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.problems() == {}
    machine.member()
    assert machine.problems() == {}


def test_a_healthy_machine_of_a_user_has_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.as_user()
    assert machine.problems() == {}


def test_a_home_behind_a_closed_directory_is_one_finding(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.as_user()
    machine.prepare.append(f"mkdir -m 700 {tmp_path}/closed")
    machine.variables["MESHD_HOME"] = f"{tmp_path}/closed/home"
    assert machine.problems().keys() == {Kind.HOME_UNWRITABLE.code}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.code)
def test_it_is_found_and_nothing_else(kind: Kinds, tmp_path: Path) -> None:
    machine, breakage = Machine(tmp_path), ALL[kind]
    with breakage.apply(machine) or nullcontext():
        problems = machine.problems()
    assert problems.keys() == {kind.code, *(other.code for other in breakage.also)}, problems


def test_every_kind_is_broken_here() -> None:
    bad = {kind for kind in (*Kind, *GpuKind, *ServiceKind) if kind.value.state != "ok"}
    assert bad - ALL.keys() == ELSEWHERE.keys()
    assert len(ALL) >= 40
