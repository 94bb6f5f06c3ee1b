"""The checks of `meshd doctor` on this machine: folders, native part, devices. They take some seconds."""

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshd.base.errors import MeshdError, UserError
from meshd.base.resource_limits import memory_limit
from meshd.base.units import in_bytes, in_memory
from meshd.build.machine import need_compiler, need_tools
from meshd.build.pin import read_pin
from meshd.build.wheel import has_wheels, installed_wheel
from meshd.config.tree import Config
from meshd.daemon.build_choice import TriedBuild, choose, keep_choice, try_build
from meshd.daemon.native_check import check_native
from meshd.daemon.role_runtime import machine_id, natives_here
from meshd.daemon.unused_gpus import compile_notice, explain, gather_facts
from meshd.devices.interface import NativeBuild
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import UNKNOWN

UNFIT_HINT = "try another driver; a model that needs fewer operations may still run on it"
HOME_HINT = "free space on that disk, check its owner and that it is mounted read-write, or set MESHD_HOME"
WHEEL_HINT = "install the wheel of meshd-native that belongs to this meshd, by its file, or uninstall it"
CACHE_HINT = "free space there, check its owner and how it is mounted, or set MESHD_CACHE to another folder"
INSTALLS_HINT = "remove one of them: `pipx uninstall meshd`, `uv tool uninstall meshd`, or the folder `.venv`"
TRIED_BYTES = 64 << 10  # what a node writes at once is less, mostly
UNKNOWN_HINT = "it works if it was built of commit {}; build it in a clone of llama.cpp to be sure"
State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the thing checked, its state, and what to do if it is not `ok`."""

    name: str
    state: State
    what: str
    hint: str = ""


def look(config: Config) -> list[Finding]:
    """Check everything, for a command. Raises UserError if the pin cannot be read."""
    folders = [*_installs(), _home(config.paths.home), *_cache(config.paths.cache)]
    try:
        natives = natives_here(config.paths)
    except UserError as error:
        return [*folders, *_not_built(error), *_wheel(), *_limits()]
    with tempfile.TemporaryDirectory(prefix="meshd-doctor-") as logs:
        used, found = asyncio.run(_native(natives, config.paths.cache, Path(logs)))
    return [*folders, _build(used), *_wheel(), *_limits(), *found]


def _installs() -> Iterator[Finding]:
    """Report that `meshd` in PATH is another installation than this one."""
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    ours = [path for folder in folders if (path := Path(folder) / "meshd").is_file()]
    there = shutil.which("meshd")
    if ours and there and Path(there).resolve() not in [path.resolve() for path in ours]:
        what = f"two installations: this one is `{ours[0]}`, and PATH has `{there}`"
        yield Finding("installation", "warning", what, INSTALLS_HINT)


def _cache(cache: Path) -> Iterator[Finding]:
    """Report a cache that cannot be written, or whose programs cannot be started."""
    try:
        place = next(folder for folder in (cache, *cache.parents) if folder.exists())
        _write_some(place)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        yield Finding("cache", "error", f"`{cache}` cannot be written: {why}", CACHE_HINT)
    else:
        if os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
            what = f"`{cache}` is mounted noexec: programs that are built there cannot be started"
            yield Finding("cache", "warning", what, CACHE_HINT)


def _home(home: Path) -> Finding:
    """Check that the home can be written, or else the folder in which it would be made."""
    try:
        place = next(folder for folder in (home, *home.parents) if folder.exists())
        _write_some(place)
        free = in_bytes(shutil.disk_usage(place).free)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        return Finding("home", "error", f"`{home}` cannot be written: {why}", HOME_HINT)
    return Finding("home", "ok", f"`{home}` is writable, {free} free")


def _write_some(folder: Path) -> None:
    """Write a file and remove it. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".meshd-doctor-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        Path(name).unlink()


def _not_built(error: UserError) -> Iterator[Finding]:
    yield _fault("llama.cpp", error)
    if has_wheels():
        return  # a compiler is not what is missing
    for name, look in (("compiler", need_compiler), ("build tools", need_tools)):
        try:
            look()
        except UserError as missing:
            yield _fault(name, missing)


def _build(native: NativeBuild) -> Finding:
    # others' builds are checked below
    build = "built by others" if native.version.pin == UNKNOWN else native.version.pin[:12]
    what = f"{build}, with meshd's backend ({native.version.protocol})"
    where = native.llama_server.parent
    if native.version.pin in (read_pin().commit, UNKNOWN):
        return Finding("llama.cpp", "ok", f"{what}, in {where}")
    what = f"{what}, in {where}: not the version that this meshd was made for"
    return Finding("llama.cpp", "warning", what, "run `meshd native build`, and omit --native-bin")


def _wheel() -> Iterator[Finding]:
    """Report a meshd-native that cannot be used."""
    wheel = installed_wheel()
    if wheel is None:
        return
    if fault := wheel.fault(read_pin()):
        yield Finding("meshd-native", "warning", f"not used: {fault}", WHEEL_HINT)


async def _native(
    natives: Sequence[NativeBuild], cache: Path, logs: Path
) -> tuple[NativeBuild, list[Finding]]:
    """Try the devices of all builds; return the one to use with its findings, and why others are not used.

    Nodes use it from their next start on.
    """
    machine = machine_id(b"")
    tried = [await try_build(native, run_to_end, logs, machine=machine) for native in natives]
    used = choose(tried)
    if len(tried) > 1:
        keep_choice(tried, used, cache, machine=machine)
    found = await look_at_programs(used.native, logs)
    if used.why_not:
        found.append(Finding("device", "error", used.why_not, used.hint))
    for one in used.devices:
        what = _memory(one.device)
        if one.why_unfit:
            found.append(Finding("device", "error", f"{what}: {one.why_unfit}", UNFIT_HINT))
        elif one.device.name in used.slower:
            found.append(Finding("device", "ok", f"{what}: not used, as it is a faster one's card"))
        else:
            found.append(Finding("device", "ok", f"{what}{_speed(one.weight_bytes_s)}"))
    found += [Finding("device", "ok", _memory(device)) for device in used.others]
    found += [_lost(one, used) for one in tried if one is not used]
    return used.native, [*found, *await _gpus(used, logs)]


def _memory(device: OfferedDevice) -> str:
    return f"{device.name}, {in_memory(device.free_bytes)} of {in_memory(device.total_bytes)} free"


def _speed(weight_bytes_s: float) -> str:
    return f", reads weights at {in_bytes(weight_bytes_s)}/s" if weight_bytes_s else ""


def _lost(build: TriedBuild, used: TriedBuild) -> Finding:
    """Report a build that is not used."""
    what = f"`{build.native.mesh_server.parent}` is not used"
    if build.why_not:
        return Finding("build", "warning", f"{what}: {build.why_not}", build.hint)
    if build.best is None:
        unfit = "; ".join(f"{one.device.name}: {one.why_unfit}" for one in build.devices)
        return Finding("build", "warning", f"{what}: {unfit}", UNFIT_HINT)
    if not (build.is_measured and used.is_measured):
        return Finding("build", "ok", f"{what}: not all devices could be timed now")
    times = used.weight_bytes_s / build.weight_bytes_s
    return Finding("build", "ok", f"{what}: {build.best.device.name} there takes {times:.1f} times as long")


async def _gpus(used: TriedBuild, logs: Path) -> list[Finding]:
    """Report GPUs that this build cannot use, or only after its driver has compiled for them."""
    listed = [one.device.name for one in used.devices]
    try:
        facts = await gather_facts(run_to_end, logs / "cuda.log")
    except MeshdError as error:
        return [_fault("gpu", error)]
    found = [
        Finding("gpu", "warning", fault.what, fault.hint)
        for fault in explain(facts, listed, used.native.backends)
    ]
    if notice := compile_notice(facts, used.native.mesh_server.parent):
        found.append(Finding("gpu", "ok", notice))
    return found


def _limits() -> Iterator[Finding]:
    """Report a memory limit, such as a container's."""
    if (limit := memory_limit()) is not None:
        what = f"{in_memory(limit.limit)}, {in_memory(limit.free)} free (`{limit.group}`)"
        yield Finding("memory limit", "ok", what)


async def look_at_programs(native: NativeBuild, logs: Path) -> list[Finding]:
    """Check the versions of a head's programs."""
    pin = read_pin()
    try:
        native = await check_native(native, pin=pin, logs=logs, head=True)
    except MeshdError as error:
        return [_fault("backend", error)]
    if native.version.pin == UNKNOWN:
        what = f"`{native.llama_server}` is llama.cpp {pin.release}; it does not say of which commit"
        return [Finding("backend", "warning", what, UNKNOWN_HINT.format(pin.commit[:9]))]
    what = f"version {VERSION}; `{native.llama_server}` loads `{native.module}`"
    return [Finding("backend", "ok", what)]


def _fault(name: str, error: MeshdError) -> Finding:
    return Finding(name, "error", error.what, error.hint or "")
