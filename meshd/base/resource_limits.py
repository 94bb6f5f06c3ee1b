"""Read what this process may use of its machine: memory and processors, by its control groups.

A container, a service manager or a batch system gives a process less than the machine has. Linux tells this
in the files of control groups (cgroups(7)): version 2, version 1, or both at once. Each group up the tree
limits those below it, so the least of all counts. Other systems have no such limits, and nothing is found.

All functions take the root of the file tree, which a test makes.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as the largest number of pages
_ESCAPED = re.compile(r"\\([0-7]{3})")  # a blank in /proc/self/mountinfo
_MOST_READ = 1 << 20  # of a file that the kernel writes here
_MOST_LEVELS = 64


@dataclass(frozen=True, slots=True)
class MemoryAllowance:
    """Bytes that this process may use together with the others of its groups.

    `free`: of that, what is not in use; what the kernel can drop at any time (cached files) is not in use.
    `group`: the one with the least limit.
    """

    limit: int
    free: int
    group: str


def memory_limit(root: Path = ROOT) -> MemoryAllowance | None:
    """Return the least limit and the least free memory of all groups up the tree; None without any limit."""
    least: MemoryAllowance | None = None
    for folder in _groups(root, "memory"):
        limit, used = _memory_of(folder)
        if limit is None:
            continue
        free = max(0, limit - used)
        if least is None:
            least = MemoryAllowance(limit, free, _name_of(folder, root))
        elif limit < least.limit:
            least = MemoryAllowance(limit, min(free, least.free), _name_of(folder, root))
        else:
            least = MemoryAllowance(least.limit, min(free, least.free), least.group)
    return least


def out_of_memory_kills(root: Path = ROOT) -> int:
    """Return how many processes of this one's group the kernel has killed because memory ran out.

    Without a control group for memory, it counts those of the whole machine.
    """
    for folder in _groups(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _values(folder / name).get("oom_kill")) is not None:
                return count
    return _values(root / "proc/vmstat").get("oom_kill", 0)


def usable_processors(root: Path = ROOT) -> int:
    """Return how many processors this process may use at once: by its affinity, and by quotas of time."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        quota, period = _quota_of(folder)
        if quota > 0 and period > 0:
            count = min(count, quota // period)
    return max(1, count)


def _memory_of(folder: Path) -> tuple[int | None, int]:
    """Return one group's memory limit, and its use without what can be reclaimed. Files: cgroup-v2.rst,
    memcg-v1.
    """
    stat = _values(folder / "memory.stat")
    # above memory.high the kernel slows a group down until it hardly runs, so that is a limit as well
    limits = [_number(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
    limit = min((bound for bound in limits if bound is not None and bound < _UNLIMITED), default=None)
    if (used := _number(folder / "memory.current")) is not None:
        names = ["inactive_file", "active_file", "slab_reclaimable"]
    else:
        used = _number(folder / "memory.usage_in_bytes")
        names = ["total_inactive_file", "total_active_file"]
    return limit, max(0, (used or 0) - sum(stat.get(name, 0) for name in names))


def _quota_of(folder: Path) -> tuple[int, int]:
    """Return the CPU quota and its period in microseconds; (0, 0) without a quota."""
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        return 0, 0  # "max", -1, or no such file
    return int(words[0]), int(words[1])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups for a controller, from its own up to the highest visible
    one.
    """
    paths = _own_paths(root)
    for kind, mount_root, mount_point in _mounts(root, controller):
        path = paths.get(kind)
        if path is None:
            continue
        # In a container the path may be as the host sees it, and outside of what is mounted: then what is
        # mounted is the container's own group.
        inside = path[len(mount_root.rstrip("/")) :] if _is_within(path, mount_root) else ""
        names = [name for name in inside.split("/") if name not in ("", ".", "..")][:_MOST_LEVELS]
        top = root / mount_point.lstrip("/")
        for count in range(len(names), -1, -1):
            yield top.joinpath(*names[:count])


def _own_paths(root: Path) -> dict[str, str]:
    """Return the group's path by controller; "" is version 2. Lines are `number:controllers:path`."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(","):
                paths.setdefault(name, parts[2])
    return paths


def _mounts(root: Path, controller: str) -> list[tuple[str, str, str]]:
    """Return (key of `_own_paths`, root within the hierarchy, mount point) per version:
    proc_pid_mountinfo(5).

    Of several mounts of one version, the one that shows most is used.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2":
            key = ""
        elif kinds[0] == "cgroup" and controller in kinds[2].split(","):
            key = controller
        else:
            continue
        mount = (key, _unescaped(fields[3]), _unescaped(fields[4]))
        if key not in found or len(mount[1]) < len(found[key][1]):
            found[key] = mount
    return list(found.values())


def _is_within(path: str, mount_root: str) -> bool:
    return path == mount_root or path.startswith(mount_root.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _name_of(folder: Path, root: Path) -> str:
    return f"/{folder.relative_to(root)}"


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _values(path: Path) -> dict[str, int]:
    """Return the lines `name number` of a file as a mapping."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {
        pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()
    }


def _text(path: Path) -> str:
    """Return the file's text; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_READ).decode(errors="replace")
    except OSError:
        return ""
