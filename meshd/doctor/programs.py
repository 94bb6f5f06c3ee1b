"""Check llama.cpp's programs and ours, and try the devices that they show. Takes seconds for each device."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from meshd.base.errors import MeshdError, UserError
from meshd.base.units import in_bytes, in_memory
from meshd.build.machine import need_compiler, need_tools
from meshd.build.page import page_release
from meshd.build.pin import read_pin
from meshd.build.wheel import has_wheels, installed_wheel
from meshd.config.tree import Config
from meshd.daemon.native import (
    ProgramFault,
    ProgramTrouble,
    TriedBuild,
    check_native,
    choose,
    keep_choice,
    machine_id,
    natives_here,
    runner,
    try_build,
)
from meshd.devices.interface import NativeBuild
from meshd.doctor.gpu_kinds import GpuKind
from meshd.doctor.gpus import GpuFacts, compile_notice, explain, gather_facts
from meshd.doctor.kinds import Finding, Kind
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import UNKNOWN

UNFIT_HINT = "try another driver; a model that needs fewer operations may still run on it"
_TROUBLES: Mapping[ProgramTrouble, Kind] = {
    ProgramTrouble.VERSION: Kind.PROGRAM_OTHER_VERSION,
    ProgramTrouble.LIBRARY: Kind.PROGRAM_LACKS_LIBRARY,
    ProgramTrouble.C_LIBRARY: Kind.C_LIBRARY_OLD,
    ProgramTrouble.INSTRUCTIONS: Kind.PROCESSOR_LACKS_INSTRUCTIONS,
    ProgramTrouble.FAILS: Kind.PROGRAM_FAILS,
}


async def check_programs(config: Config) -> list[Finding]:
    """Check and try all builds; nodes use the best one from their next start on."""
    try:
        natives = natives_here(config.paths)
    except UserError as error:
        return list(_not_built(error))
    try:
        with tempfile.TemporaryDirectory(prefix="meshd-doctor-") as logs:
            return await _try_builds(natives, config, Path(logs))
    except OSError:
        return []  # machine.py reports that there is no room for temporary files


def _not_built(error: UserError) -> Iterator[Finding]:
    yield Kind.NATIVE_MISSING.found(why=error.what, remedy=error.hint)
    if has_wheels():
        return  # a compiler is not what is missing
    for kind, need in ((Kind.COMPILER_MISSING, need_compiler), (Kind.TOOLS_MISSING, need_tools)):
        try:
            need()
        except UserError as missing:
            yield kind.found(why=missing.what, remedy=missing.hint)


async def _try_builds(natives: Sequence[NativeBuild], config: Config, logs: Path) -> list[Finding]:
    machine, run, cache = machine_id(b""), runner(config.node.sandbox), config.paths.cache
    tried = [await try_build(native, run, logs, machine=machine) for native in natives]
    used = choose(tried)
    if len(tried) > 1:
        keep_choice(tried, used, cache, machine=machine)
    programs = await look_at_programs(used.native, logs)
    found = [_version(used.native), programs]
    if programs.state != "error" or not used.why_not:  # else that follows from it
        found += _devices(used)
        found += await _gpus(used, logs)
    return [*found, *(_unused(build, used) for build in tried if build is not used)]


def _version(native: NativeBuild) -> Finding:
    # other people's builds are checked by `look_at_programs`
    build = "built by others" if native.version.pin == UNKNOWN else native.version.pin[:12]
    return Kind.NATIVE.found(build=build, protocol=native.version.protocol, folder=native.llama_server.parent)


async def look_at_programs(native: NativeBuild, logs: Path) -> Finding:
    """Check the versions of a head's programs."""
    pin = read_pin()
    try:
        native = await check_native(native, pin=pin, logs=logs, head=True)
    except ProgramFault as error:
        return _TROUBLES[error.trouble].found(why=error.what, remedy=error.hint)
    except MeshdError as error:
        return Kind.PROGRAM_FAILS.found(why=error.what, remedy=error.hint)
    if native.version.pin == UNKNOWN:
        return Kind.COMMIT_UNKNOWN.found(
            program=native.llama_server, release=pin.release, commit=pin.commit[:9]
        )
    return Kind.PROGRAMS.found(version=VERSION, program=native.llama_server, module=native.module)


def _devices(used: TriedBuild) -> Iterator[Finding]:
    """Yield what came of the devices of the build in use."""
    if used.why_not:
        yield Kind.DEVICES_MISSING.found(why=used.why_not, remedy=used.hint)
    for tried in used.devices:
        what = _memory(tried.device)
        if tried.why_unfit:
            yield Kind.DEVICE_UNFIT.found(device=what, why=tried.why_unfit)
        elif tried.device.name in used.slower:
            yield Kind.DEVICE.found(what=f"{what}: not used, as a faster device uses the same card")
        else:
            yield Kind.DEVICE.found(what=f"{what}{_speed(tried.weight_bytes_s)}")
    for device in used.others:
        yield Kind.DEVICE.found(what=_memory(device))


def _memory(device: OfferedDevice) -> str:
    return f"{device.name}, {in_memory(device.free_bytes)} of {in_memory(device.total_bytes)} free"


def _speed(weight_bytes_s: float) -> str:
    return f", reads weights at {in_bytes(weight_bytes_s)}/s" if weight_bytes_s else ""


def _unused(build: TriedBuild, used: TriedBuild) -> Finding:
    """Report a build that is not used."""
    folder = build.native.mesh_server.parent
    if build.why_not:
        return Kind.BUILD_UNUSED.found(folder=folder, why=build.why_not, remedy=build.hint)
    if build.best is None:
        unfit = "; ".join(f"{tried.device.name}: {tried.why_unfit}" for tried in build.devices)
        return Kind.BUILD_UNUSED.found(folder=folder, why=unfit, remedy=UNFIT_HINT)
    if not (build.is_measured and used.is_measured):
        return Kind.BUILD_UNTIMED.found(folder=folder)
    times = f"{used.weight_bytes_s / build.weight_bytes_s:.1f}"
    return Kind.BUILD_SLOWER.found(folder=folder, device=build.best.device.name, times=times)


async def _gpus(used: TriedBuild, logs: Path) -> list[Finding]:
    """Report GPUs that this build cannot use, or only after its driver has compiled for them."""
    listed = [tried.device.name for tried in used.devices]
    try:
        facts = await gather_facts(run_to_end, logs / "cuda.log")
    except MeshdError as error:
        return [GpuKind.GPU_UNKNOWN.found(why=error.what, remedy=error.hint)]
    notice = compile_notice(facts, used.native.mesh_server.parent)
    return [*explain(facts, listed, used.native.backends), *([notice] if notice else [])]


def check_wheel() -> Iterator[Finding]:
    """Report a meshd-native that cannot be used."""
    wheel = installed_wheel()
    if wheel is not None and (fault := wheel.fault(read_pin())):
        yield Kind.WHEEL_UNUSED.found(why=fault)


def check_page() -> Iterator[Finding]:
    """Report which chat page the API serves."""
    release, pinned = page_release(), read_pin().release
    if release is None:
        yield Kind.CHAT_PAGE_SMALL.found()
    elif release != pinned:
        yield Kind.CHAT_PAGE_OTHER.found(release=release, pinned=pinned)
    else:
        yield Kind.CHAT_PAGE.found(release=release)


async def look_for_gpus() -> GpuFacts:
    """Return the facts about GPUs and drivers alone. Raises MeshdError, OSError."""
    with tempfile.TemporaryDirectory(prefix="meshd-doctor-") as logs:
        return await gather_facts(run_to_end, Path(logs) / "cuda.log")
