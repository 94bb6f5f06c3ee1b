"""Test what this process may use, read from made trees of control groups, and from this machine's kernel."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.resource_limits import (
    MemoryAllowance,
    memory_limit,
    out_of_memory_kills,
    usable_processors,
)

from tests.control_group import small_group

MIB = 1 << 20
NO_LIMIT = "9223372036854771712"
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct"


def make(root: Path, group: str, mounts: str, files: Mapping[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": group, "proc/self/mountinfo": mounts, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v2(
    folder: str, limit: str, used: int, *, cached: int = 0, kills: int = 0, high: str = "max"
) -> dict[str, str]:
    at = f"sys/fs/cgroup/{folder}".rstrip("/")
    return {
        f"{at}/memory.max": limit,
        f"{at}/memory.high": high,
        f"{at}/memory.current": str(used),
        f"{at}/memory.stat": f"anon {used - cached}\nfile {cached}\nactive_file 0\ninactive_file {cached}",
        f"{at}/memory.events": f"low 0\nhigh 0\nmax 3\noom 1\noom_kill {kills}\noom_group_kill 0",
    }


def v1(folder: str, limit: str, used: int, *, cached: int = 0, kills: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/memory/{folder}".rstrip("/")
    return {
        f"{at}/memory.limit_in_bytes": limit,
        f"{at}/memory.usage_in_bytes": str(used),
        # without total_ it is this group alone, not those below it
        f"{at}/memory.stat": f"cache 0\nactive_file 1\ntotal_inactive_file 0\ntotal_active_file {cached}",
        f"{at}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}",
    }


def test_a_machine_without_groups_has_no_limits(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    assert out_of_memory_kills(tmp_path) == 0
    assert usable_processors(tmp_path) >= 1


def test_a_group_of_version_2(tmp_path: Path) -> None:
    files = v2("a/b", str(700 * MIB), 300 * MIB, cached=100 * MIB, kills=4) | v2("a", "max", 0)
    root = make(tmp_path, "0::/a/b", V2, files)
    assert memory_limit(root) == MemoryAllowance(700 * MIB, 500 * MIB, "/sys/fs/cgroup/a/b")
    assert out_of_memory_kills(root) == 4


def test_a_group_of_version_1(tmp_path: Path) -> None:
    files = v1("docker/x", str(700 * MIB), 300 * MIB, cached=100 * MIB, kills=2) | v1("", NO_LIMIT, 0)
    root = make(tmp_path, "4:memory:/docker/x\n0::/", V1, files)
    assert memory_limit(root) == MemoryAllowance(700 * MIB, 500 * MIB, "/sys/fs/cgroup/memory/docker/x")
    assert out_of_memory_kills(root) == 2


def test_both_versions_at_once(tmp_path: Path) -> None:
    mounts = f"{V2.replace('/sys/fs/cgroup ', '/sys/fs/cgroup/unified ')}\n{V1}"
    files = v1("x", str(64 * MIB), 0) | {"sys/fs/cgroup/unified/x/cgroup.procs": "1"}
    root = make(tmp_path, "4:memory:/x\n0::/x", mounts, files)
    assert memory_limit(root) == MemoryAllowance(64 * MIB, 64 * MIB, "/sys/fs/cgroup/memory/x")


@pytest.mark.parametrize("make_group", [v1, v2])
def test_the_least_of_all_groups_up_the_tree_counts(tmp_path: Path, make_group: object) -> None:
    """The limit of one may be lower, and another have less left of a higher limit."""
    assert callable(make_group)
    files = {
        **make_group("a/b/c", str(900 * MIB), 10 * MIB),
        **make_group("a/b", str(500 * MIB), 100 * MIB),
        **make_group("a", str(800 * MIB), 780 * MIB),
    }
    mounts, group = (V2, "0::/a/b/c") if make_group is v2 else (V1, "4:memory:/a/b/c")
    found = memory_limit(make(tmp_path, group, mounts, files))
    assert found is not None
    assert (found.limit, found.free) == (500 * MIB, 20 * MIB)
    assert found.group.endswith("/a/b")


def test_where_a_group_is_slowed_down_is_a_limit_as_well(tmp_path: Path) -> None:
    root = make(tmp_path, "0::/", V2, v2("", str(900 * MIB), 0, high=str(600 * MIB)))
    assert memory_limit(root) == MemoryAllowance(600 * MIB, 600 * MIB, "/sys/fs/cgroup")


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = make(tmp_path, "0::/", V2, v2("", str(256 * MIB), 56 * MIB))
    assert memory_limit(root) == MemoryAllowance(256 * MIB, 200 * MIB, "/sys/fs/cgroup")


@pytest.mark.parametrize(
    "group", ["4:memory:/docker/1f", "4:memory:/docker/1f/inner", "4:memory:/elsewhere", "4:memory:/../other"]
)
def test_a_container_with_the_paths_of_its_host(tmp_path: Path, group: str) -> None:
    """Without a namespace of its own, it reads the host's path and has only its own part mounted."""
    mounts = "35 31 0:32 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
    root = make(tmp_path, group, mounts, v1("", str(256 * MIB), 56 * MIB))
    assert memory_limit(root) == MemoryAllowance(256 * MIB, 200 * MIB, "/sys/fs/cgroup/memory")


def test_of_two_mounts_that_with_more_groups_is_read(tmp_path: Path) -> None:
    part = V2.replace(" / /sys/fs/cgroup ", " /a /mnt/part\\040of\\040it ")
    files = v2("a", str(100 * MIB), 0) | {"mnt/part of it/memory.max": str(5 * MIB)}
    root = make(tmp_path, "0::/a", f"{part}\n{V2}\n{part}", files)
    assert memory_limit(root) == MemoryAllowance(100 * MIB, 100 * MIB, "/sys/fs/cgroup/a")
    alone = make(tmp_path / "alone", "0::/a", part, {"mnt/part of it/memory.max": str(5 * MIB)})
    assert memory_limit(alone) == MemoryAllowance(5 * MIB, 5 * MIB, "/mnt/part of it")


def test_use_above_the_limit_leaves_nothing(tmp_path: Path) -> None:
    root = make(tmp_path, "0::/", V2, v2("", str(10 * MIB), 11 * MIB))
    assert memory_limit(root) == MemoryAllowance(10 * MIB, 0, "/sys/fs/cgroup")


def test_without_a_group_the_machine_counts_kills(tmp_path: Path) -> None:
    assert out_of_memory_kills(make(tmp_path, "0::/", V2, {"proc/vmstat": "nr_free 5\noom_kill 7"})) == 7


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        ({"sys/fs/cgroup/a/cpu.max": "max 100000"}, 8),
        ({"sys/fs/cgroup/a/cpu.max": "max 100000", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"sys/fs/cgroup/a/cpu.max": "50000 100000"}, 1),  # half a processor is one thread
        ({"sys/fs/cgroup/a/cpu.max": "nonsense"}, 8),
        ({}, 8),
    ],
)
def test_a_share_of_the_processors_counts(
    files: Mapping[str, str], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert usable_processors(make(tmp_path, "0::/a", V2, files)) == most


@pytest.mark.parametrize(("quota", "most"), [("150000", 1), ("400000", 4), ("-1", 8)])
def test_a_share_of_the_processors_in_version_1(
    quota: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    at = "sys/fs/cgroup/cpu,cpuacct/a"
    files = {f"{at}/cpu.cfs_quota_us": quota, f"{at}/cpu.cfs_period_us": "100000"}
    assert usable_processors(make(tmp_path, "3:cpu,cpuacct:/a", V1_CPU, files)) == most


@given(texts=st.lists(st.text(alphabet="0:/. amemorycpu-\n\\1", max_size=60), min_size=5, max_size=5))
def test_any_text_in_these_files_is_read(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    names = ("memory.max", "memory.stat", "memory.events", "cpu.max")
    files = {f"sys/fs/cgroup/{name}": text for name, text in zip(names, texts[1:], strict=True)}
    root = make(tmp_path_factory.mktemp("tree"), texts[0], f"{texts[0]}\n{V2}\n{V1}", files)
    found = memory_limit(root)
    assert found is None or 0 <= found.free <= found.limit
    assert out_of_memory_kills(root) >= 0
    assert usable_processors(root) >= 1


# --- this machine's kernel ----------------------------------------------------------------------------------

SAY = "from meshd.base.resource_limits import *; print(memory_limit().limit, memory_limit().free)"


def test_a_real_group_limits_what_is_found() -> None:
    with small_group(96 * MIB) as group:
        said = subprocess.run(group.command(SAY), capture_output=True, text=True, timeout=60, check=True)
    limit, free = map(int, said.stdout.split())
    assert limit == 96 * MIB
    assert 0 < free < limit
