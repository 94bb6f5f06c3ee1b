"""`meshd doctor --fix` mends what is safe to mend, says so, and touches nothing else."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from meshd.doctor.kinds import Kind

from tests.process.doctor_breakages import BREAKAGES
from tests.process.doctor_scene import USER, Machine

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0,
    reason="makes namespaces for mounts and networks: root on Linux",
)
MENDED = (
    *(Kind.HOME_READABLE, Kind.HOME_CHANGEABLE, Kind.STATE_READABLE, Kind.SOCKET_STALE, Kind.FILES_LEFT),
    *(Kind.CACHE_CHANGEABLE, Kind.DOWNLOADS_LEFT, Kind.KEYS_READABLE, Kind.SETTINGS_READABLE),
)
LEFT_ALONE = (
    *(Kind.HOME_FOREIGN, Kind.STATE_FOREIGN, Kind.STATE_DAMAGED, Kind.STATE_NEWER, Kind.KEYS_DIFFER),
    *(Kind.MODEL_INCOMPLETE, Kind.CONFIG_UNUSABLE, Kind.NODE_SILENT, Kind.DISK_LOW),
)
Tree = dict[str, tuple[int, int, bytes]]


def tree(folder: Path) -> Tree:
    """Return all files and folders: owner, mode and content."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
        found[str(path.relative_to(folder))] = (about.st_uid, about.st_mode, content)
    return found


def contents(found: Tree) -> list[bytes]:
    """Return what is in files that hold something for a user."""
    return [content for name, (_, _, content) in found.items() if "part-" not in name and ".tmp" not in name]


def not_ok(findings: list[dict[str, str]]) -> list[str]:
    """Return the codes of what is not ok, but for the page of a checkout in which `make chat` has not run."""
    codes = [one["code"] for one in findings if one["state"] != "ok"]
    return [code for code in codes if code != Kind.CHAT_PAGE_SMALL.code]


@pytest.mark.parametrize("kind", MENDED, ids=lambda kind: kind.code)
def test_it_is_mended_once(kind: Kind, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    BREAKAGES[kind].apply(machine)
    before = tree(tmp_path)
    done = machine.run("--fix", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    [fixed] = answer["fixed"]
    assert (fixed["code"], fixed["failed"]) == (kind.code, "") and fixed["did"]
    assert not_ok(answer["findings"]) == []
    assert machine.problems() == {}
    kept = [content for content in contents(before) if content]
    assert [content for content in kept if content not in contents(tree(tmp_path))] == []
    assert json.loads(machine.run("--fix", "--json").stdout)["fixed"] == [], "there is nothing left to mend"


@pytest.mark.parametrize("kind", LEFT_ALONE, ids=lambda kind: kind.code)
def test_what_is_not_safe_is_left_as_it_is(kind: Kind, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    BREAKAGES[kind].apply(machine)
    before = tree(tmp_path)
    answer = json.loads(machine.run("--fix", "--json").stdout)
    after = tree(tmp_path)
    for written in (before, after):
        written.pop("home/control.sock", None)  # of the front, which takes it at each start
    assert answer["fixed"] == [] and after == before
    assert not_ok(answer["findings"]) == [kind.code]


@pytest.mark.parametrize("name", ["home", "cache"])
def test_what_others_may_have_changed_stays_open(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.member()
    foreign = machine.file(f"{name}/identity.new")
    os.chown(foreign, USER, USER)
    (tmp_path / name).chmod(0o777)
    done = machine.run("--fix")
    assert done.returncode == 1
    line = f"failed   {name:<12} other users can write to `{tmp_path}/{name}` (mode 0777), and could not be"
    assert f"{line} fixed: `{foreign}` belongs to another user, who put it there" in done.stdout
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o777 and foreign.exists()


def test_a_folder_that_holds_no_node_is_left_as_it_is(tmp_path: Path) -> None:
    """As when MESHD_HOME names a folder of something else by mistake."""
    machine = Machine(tmp_path)
    left = machine.file("home/.draft.tmp", "somebody's", 0o600)
    os.utime(left, (0, 0))
    (tmp_path / "home").chmod(0o755)
    done = machine.run("--fix")
    assert "holds no node of meshd" in done.stdout
    assert left.exists() and stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o755


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    target = machine.file("elsewhere", "a key that is long enough\n", 0o644)
    (tmp_path / "keys").symlink_to(target)
    machine.variables["MESHD_API_KEY_FILE"] = str(tmp_path / "keys")
    assert "could not be fixed" in machine.run("--fix").stdout
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_results_of_trials_are_forgotten_with_a_device_that_fails(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    BREAKAGES[Kind.DEVICE_UNFIT].apply(machine)
    kept = machine.file("cache/device-trials", "passed before the driver was changed")
    done = machine.run("--fix")
    assert "fixed    device       removed saved checks of devices and programs" in done.stdout
    assert done.returncode == 1 and not kept.exists()
