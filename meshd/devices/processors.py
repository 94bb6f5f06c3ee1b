"""Count the threads that llama.cpp computes with by default, and list their processors."""

import hashlib
import os
from pathlib import Path

from meshd.base.resource_limits import usable_processors
from meshd.wire.capacity import CORE_SET_LETTERS

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings"
_FEW = 4


def usable_cores() -> int:
    """Return how many cores this process may compute on; two threads of one core count once."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, min(llama_threads(), len(os.sched_getaffinity(0))))
    return llama_threads()


def head_threads() -> int:
    """Return how many threads llama-server should compute with: no more than this process may use.

    By default llama.cpp takes as many as the machine has cores, even in a container that may use two.
    """
    return min(llama_threads(), usable_processors())


def core_set() -> str:
    """Return a digest of the processors that this process may use, 16 letters; empty: the whole machine."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) >= (os.cpu_count() or 1):
        return ""
    return hashlib.sha256(",".join(map(str, usable)).encode()).hexdigest()[:CORE_SET_LETTERS]


def cores_of_machine() -> list[tuple[int, ...]]:
    """Return the usable processors grouped by core, ordered by the first processor of each core."""
    found: dict[str, list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []:
        try:
            core = Path(_SIBLINGS.format(number)).read_text()
        except OSError:
            core = str(number)
        found.setdefault(core, []).append(number)
    return [tuple(numbers) for numbers in found.values()]


def llama_threads() -> int:
    """Count as cpu_get_num_physical_cores of common/common.cpp: cores, each of which may count as two."""
    cores: set[str] = set()
    for number in range(os.cpu_count() or 1):
        try:
            cores.add(Path(_SIBLINGS.format(number)).read_text())
        except OSError:
            break
    if cores:
        return len(cores)
    count = os.cpu_count() or _FEW
    return count if count <= _FEW else count // 2
