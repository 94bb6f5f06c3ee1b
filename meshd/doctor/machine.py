"""Check what this machine gives a node: memory, limits of the user, the clock, power, the sandbox.

Also this installation: that it is the only one, that its libraries fit, and where it can write.
"""

import os
import re
import resource
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from meshd.base.resource_limits import ROOT, memory_limit, out_of_memory_kills
from meshd.base.units import in_memory, in_time
from meshd.config.tree import Config
from meshd.doctor.kinds import Finding, Kind
from meshd.process.sandbox_rules import confines_with

LEAST_FILES, LEAST_PROCESSES = 1024, 64
LEAST_MEMORY = 1 << 30
MOST_STALLED = 10.0  # percent of a minute in which no program could run, for want of memory
CLOCK_SECONDS = 120.0
IS_MACOS = sys.platform == "darwin"
_POWER, _GOVERNORS = Path("/sys/class/power_supply"), Path("/sys/devices/system/cpu")
_SAVING = "powersave"
_SCALED = ("intel_pstate", "amd-pstate-epp", "amd-pstate")  # drivers that choose a speed under that name, too


def check_sandbox(config: Config) -> Iterator[Finding]:
    """Report what confines native programs on this machine."""
    if config.node.sandbox == "off":
        yield Kind.SANDBOX_OFF.found()
    elif IS_MACOS:
        is_on = config.node.sandbox == "on"
        yield Kind.SANDBOX.found(parts="sandbox-exec") if is_on else Kind.SANDBOX_UNTRIED.found()
    elif len(parts := confines_with()) < 2:
        confined = f"confined by {parts[0]} only" if parts else "not confined"
        yield Kind.SANDBOX_PARTIAL.found(confined=confined)
    else:
        yield Kind.SANDBOX.found(parts=" and ".join(parts))


def check_memory() -> Iterator[Finding]:
    """Report a memory limit, such as a container's, little free memory, and processes that it has cost."""
    limit = memory_limit()
    if limit is not None:
        yield Kind.MEMORY_LIMIT.found(
            limit=in_memory(limit.limit), free=in_memory(limit.free), group=limit.group
        )
    free = _free_memory()
    if limit is not None:
        free = limit.free if free is None else min(free, limit.free)
    if free is not None and free < LEAST_MEMORY:
        yield Kind.MEMORY_SHORT.found(free=in_memory(free))
    if (stalled := _stalled_for_memory()) >= MOST_STALLED:
        yield Kind.MEMORY_PRESSURE.found(percent=f"{stalled:.0f}")
    if limit is not None and (count := out_of_memory_kills()):
        yield Kind.MEMORY_RAN_OUT.found(count=count, group=limit.group)


def _stalled_for_memory() -> float:
    """Return the percentage of the last minute in which all programs waited for memory (the kernel's PSI)."""
    found = re.search(r"^full .*\bavg60=(\d+\.\d+)", _text(ROOT / "proc/pressure/memory"), re.MULTILINE)
    return float(found[1]) if found is not None else 0.0


def _free_memory() -> int | None:
    """Return the bytes that programs can still get on this machine (proc_meminfo(5)); None if unknown."""
    for line in _text(ROOT / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable" and (words := value.split()) and words[0].isdigit():
            return int(words[0]) << 10
    return None


def check_limits() -> Iterator[Finding]:
    """Report limits of this user that a node would reach."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a node raises the lower one to it
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        yield Kind.FILES_LIMIT.found(limit=most)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed != resource.RLIM_INFINITY and os.geteuid() != 0:  # root has no such limit
        running = _threads_of(os.geteuid())
        if allowed - running < LEAST_PROCESSES:
            yield Kind.PROCESSES_LIMIT.found(limit=allowed, running=running)


def _threads_of(uid: int) -> int:
    """Count the threads of a user, as far as /proc shows them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == uid:
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:
            continue  # it has ended
    return count


def check_clock(home: Path, now: float) -> Iterator[Finding]:
    """Report a clock that is behind a file of the home, which meshd wrote when the clock was right."""
    latest, at = Path(), now
    try:
        for path in home.iterdir():
            if path.is_file() and (written := path.lstat().st_mtime) > at:
                latest, at = path, written
    except OSError:
        return
    if at - now > CLOCK_SECONDS:
        yield Kind.CLOCK_BEHIND.found(seconds=in_time(at - now), path=latest)


def check_power() -> Iterator[Finding]:
    """Report a machine that runs on its battery, or whose processor saves power."""
    for supply in sorted(_POWER.glob("*")) if _POWER.is_dir() else ():
        if (_text(supply / "type"), _text(supply / "status")) != ("Battery", "Discharging"):
            continue
        if _text(supply / "scope") != "Device":  # that is a mouse or a headset
            yield Kind.ON_BATTERY.found(percent=_text(supply / "capacity") or "?")
            break
    governor = _text(_GOVERNORS / "cpu0/cpufreq/scaling_governor")
    driver = _text(_GOVERNORS / "cpu0/cpufreq/scaling_driver")
    if governor == _SAVING and driver not in _SCALED:
        yield Kind.POWER_SAVING.found(governor=governor)


def check_processor() -> Iterator[Finding]:
    """Report a processor of x86 without AVX2."""
    flags = next((line for line in _text(ROOT / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    if flags and "avx2" not in flags.split():
        yield Kind.PROCESSOR_OLD.found()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([0-9]+(?:\.[0-9]+)*)")


def check_installation() -> Iterator[Finding]:
    """Report another installation in PATH, libraries that are missing or of an unfit version."""
    yield from _other_installation()
    for line in _requirements():
        if (found := _check_requirement(line)) is not None:
            yield found
    try:
        tempfile.gettempdir()
    except OSError:
        yield Kind.TEMPORARY_UNWRITABLE.found()


def _other_installation() -> Iterator[Finding]:
    """Report that `meshd` in PATH is another installation than this one."""
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    ours = [path for folder in folders if (path := Path(folder) / "meshd").is_file()]
    there = shutil.which("meshd")
    if ours and there and Path(there).resolve() not in [path.resolve() for path in ours]:
        yield Kind.TWO_INSTALLATIONS.found(ours=ours[0], other=there)


def _requirements() -> list[str]:
    """Return what this meshd needs, without its extras; nothing for a checkout that was never installed."""
    try:
        return [line for line in metadata.requires("meshd") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        return []


def _check_requirement(line: str) -> Finding | None:
    named = _REQUIREMENT.match(line)
    if named is None:
        return None
    library, needed = named[1], named[2].strip()
    try:
        installed = metadata.version(library)
    except metadata.PackageNotFoundError:
        return Kind.LIBRARY_MISSING.found(library=library)
    if all(_keeps(installed, relation, bound) for relation, bound in _BOUND.findall(needed)):
        return None
    return Kind.LIBRARY_UNFIT.found(library=library, installed=installed, needed=needed)


def _keeps(installed: str, relation: str, bound: str) -> bool:
    """Compare the numbers of two versions; other relations than bounds count as kept."""
    here, there = _numbers(installed), _numbers(bound)
    length = max(len(here), len(there))
    here, there = (numbers + (0,) * (length - len(numbers)) for numbers in (here, there))
    return {">=": here >= there, "<": here < there, "<=": here <= there, ">": here > there}.get(
        relation, True
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found is not None else ()
