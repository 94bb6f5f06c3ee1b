"""The checks of `meshd doctor` on this machine: home, native part, devices. They take some seconds."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshd.base.errors import MeshdError, UserError
from meshd.base.resource_limits import memory_limit
from meshd.base.units import in_bytes, in_memory
from meshd.build.machine import GPU_PAGE, has_nvidia_gpu, need_compiler, need_tools
from meshd.build.pin import read_pin
from meshd.build.wheel import installed_wheel
from meshd.config.tree import Config
from meshd.daemon.native_check import check_native
from meshd.daemon.role_runtime import find_native
from meshd.devices.device_trial import DeviceTrials
from meshd.devices.devices import list_devices
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.model.operations import USUAL
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.native import UNKNOWN

UNFIT_HINT = "try another driver; a model that needs fewer operations may still run on it"
HOME_HINT = "free space on that disk, check its owner and that it is mounted read-write, or set MESHD_HOME"
WHEEL_HINT = "install the wheel of meshd-native that belongs to this meshd, by its file, or uninstall it"
GPU_HINT = f"run `meshd native build --backend cuda`; {GPU_PAGE}"
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
    found = [_home(config.paths.home), *_build(config), *_limits()]
    try:
        native = find_native(config.paths)
    except UserError:
        return found  # reported already
    with tempfile.TemporaryDirectory(prefix="meshd-doctor-") as logs:
        return [*found, *asyncio.run(_native(native, Path(logs)))]


def _home(home: Path) -> Finding:
    """Check that the home can be written, or else the folder in which it would be made."""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
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


def _build(config: Config) -> Iterator[Finding]:
    try:
        native = find_native(config.paths)
    except UserError as error:
        yield _fault("llama.cpp", error)
        for name, look in (("compiler", need_compiler), ("build tools", need_tools)):
            try:
                look()
            except UserError as missing:
                yield _fault(name, missing)
        yield from _wheel(None)
        return
    # others' builds are checked below
    build = "built by others" if native.version.pin == UNKNOWN else native.version.pin[:12]
    what = f"{build}, with meshd's backend ({native.version.protocol})"
    where = native.llama_server.parent
    if native.version.pin not in (read_pin().commit, UNKNOWN):
        yield Finding(
            "llama.cpp",
            "warning",
            f"{what}, in {where}: not the version that this meshd was made for",
            "run `meshd native build`, and omit --native-bin",
        )
    else:
        yield Finding("llama.cpp", "ok", f"{what}, in {where}")
    yield from _wheel(where)


def _wheel(in_use: Path | None) -> Iterator[Finding]:
    """Report a meshd-native that is not used, or used where a build for CUDA would be faster."""
    wheel = installed_wheel()
    if wheel is None:
        return
    if fault := wheel.fault(read_pin()):
        yield Finding("meshd-native", "warning", f"not used: {fault}", WHEEL_HINT)
    elif in_use == wheel.bin_dir and has_nvidia_gpu():
        what = "has no CUDA, and this machine has an NVIDIA GPU"
        yield Finding("meshd-native", "warning", what, GPU_HINT)


async def _native(native: NativeBuild, logs: Path) -> list[Finding]:
    found = await look_at_programs(native, logs)
    try:
        log = logs / "devices.log"
        devices = await list_devices(native.mesh_server, machine="", run_to_end=run_to_end, log=log)
        device_trials = DeviceTrials(native, run_to_end, RolePaths(logs=logs, sockets=logs), machine="")
        for device, why in zip(devices, await device_trials.unfit(devices, USUAL, _silent), strict=True):
            free, total = in_memory(device.free_bytes), in_memory(device.total_bytes)
            what = f"{device.name}, {free} of {total} free"
            if why:
                found.append(Finding("device", "error", f"{what}: {why}", UNFIT_HINT))
            else:
                found.append(Finding("device", "ok", what))
    except MeshdError as error:
        found.append(_fault("device", error))
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


async def _silent(_text: str) -> None:
    """Ignore progress."""


def _fault(name: str, error: MeshdError) -> Finding:
    return Finding(name, "error", error.what, error.hint or "")
