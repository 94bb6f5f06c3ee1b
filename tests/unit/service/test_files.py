"""Units and property lists: what they say, how words are quoted, and that systemd accepts and rates them."""

import os
import plistlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.base.service_manager import FINAL_EXIT_CODE
from meshd.service.files import (
    ROLES,
    Service,
    launchd_environment,
    launchd_plist,
    launchd_service_of,
    service_of,
    systemd_unit,
)

from tests.rules.source import ROOT

MOST_EXPOSURE = 2.0
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NAMES = st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True)
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def lines(unit: str) -> list[str]:
    return [line for line in unit.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_every_unit_reports_when_it_is_ready_and_gives_up_on_what_cannot_heal(
    role: str, *, system: bool
) -> None:
    unit = lines(systemd_unit(Service(role, ["/usr/bin/meshd", role, "--name", "a b"]), system=system))
    assert f'ExecStart=:/usr/bin/meshd {role} --name "a b"' in unit
    assert {"Type=notify", "Restart=on-failure", "NoNewPrivileges=yes", "KillMode=mixed"} <= {*unit}
    assert f"RestartPreventExitStatus=2 {FINAL_EXIT_CODE}" in unit
    assert ("StandardOutput=null" in unit) is (role != "relay"), "stdout has the invite"
    assert ("User=meshd" in unit) is system
    assert f"WantedBy={'multi-user' if system else 'default'}.target" in unit


@pytest.mark.parametrize("role", ["worker", "serve"])
@pytest.mark.parametrize("system", [True, False])
def test_gpus_and_the_sandbox_of_their_programs_stay_usable(role: str, *, system: bool) -> None:
    unit = systemd_unit(Service(role, ["/usr/bin/meshd", role]), system=system)
    closes = (
        "PrivateDevices",
        "DevicePolicy",
        "DeviceAllow",
        "ProtectClock",
        "MemoryDenyWriteExecute",
        "ProcSubset",
    )
    assert not [word for word in closes if f"\n{word}=" in unit]
    assert "landlock_restrict_self" in unit
    assert "OOMPolicy=continue" in unit, "a mesh-server without memory would end the daemon"


@given(st.lists(WORDS, min_size=1), st.dictionaries(NAMES, WORDS))
def test_the_service_of_a_unit_is_read_back(words: list[str], environment: dict[str, str]) -> None:
    """Read back in Python; tests/boot starts units, so that systemd itself reads them."""
    service = Service("worker", ["/usr/bin/meshd", *words], environment)
    unit = systemd_unit(service, system=False)
    assert service_of(unit, "worker") == Service("worker", ("/usr/bin/meshd", *words), environment)
    assert len(unit.split("\n")) == len(
        systemd_unit(Service("worker", ["/x"]), system=False).split("\n")
    ) + len(environment), "a word made a line of its own"


@given(
    st.lists(WORDS.filter(lambda text: text.isprintable())),
    st.dictionaries(NAMES, st.text(st.characters(categories=["L", "P"]))),
)
def test_a_property_list_has_every_word_as_it_is(words: list[str], environment: dict[str, str]) -> None:
    plist = launchd_plist(Service("serve", ["/usr/local/bin/meshd", *words], environment))
    found = plistlib.loads(plist)
    assert found["ProgramArguments"] == ["/usr/local/bin/meshd", *words]
    assert launchd_environment(plist) == environment
    assert launchd_service_of(plist, "serve") == Service("serve", found["ProgramArguments"], environment)
    assert found["Label"] == "org.meshd.serve" and found["RunAtLoad"] is True
    assert found["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.parametrize(
    "data", [b"", b"<plist>", b"bplist00", plistlib.dumps([1]), plistlib.dumps({"Label": "x"})]
)
def test_the_property_list_of_somebody_else_has_no_variables(data: bytes) -> None:
    assert launchd_environment(data) == {}


def test_a_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        systemd_unit(Service("worker", ["/home/\udcff/meshd"]), system=False)


def test_a_program_whose_path_systemd_refuses_is_started_by_a_shell() -> None:
    unit = systemd_unit(Service("worker", ["/home/o'brien/meshd", "worker"]), system=False)
    assert """ExecStart=:/bin/sh -c "exec \\"$@\\"" sh "/home/o'brien/meshd" worker""" in unit.splitlines()
    assert service_of(unit, "worker") == Service("worker", ("/home/o'brien/meshd", "worker"))


@pytest.mark.parametrize("text", ["", "[Service]\nExecStart=/usr/bin/meshd worker\n", "ExecStart=:\n"])
def test_a_unit_of_somebody_else_is_no_service(text: str) -> None:
    assert service_of(text, "worker") is None


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_each_unit_of_a_user(role: str, tmp_path: Path) -> None:
    """Without a bound for exposure: a user cannot restrict file systems or capabilities."""
    unit = tmp_path / f"meshd-{role}.service"
    unit.write_text(systemd_unit(Service(role, ["/bin/true", role]), system=False), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", "--man=no", str(unit)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_each_unit_and_finds_little_exposed(role: str, tmp_path: Path) -> None:
    """Units in configs/ are the same (tests/reference), but for the program, which has to exist."""
    committed = ROOT / "configs" / f"meshd-{role}.service"
    unit = tmp_path / committed.name
    unit.write_text(
        committed.read_text(encoding="utf-8").replace("/usr/bin/meshd", "/bin/true"), encoding="utf-8"
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(unit)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", rated)
    assert exposure is not None and float(exposure[1]) <= MOST_EXPOSURE, rated
