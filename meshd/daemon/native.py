"""Find the programs of llama.cpp to use, check them, and choose among several builds.

Check: our module and a llama-server must be of the same release, as ggml's interface is compiled into both
and has no version. docs/decisions/0039 says what each program can report, and what follows.

Choose: of compiled builds for different devices and meshd-native, the one whose device is fastest and
computes right. Each is tried in children, which may crash or compute nonsense. What was chosen is kept until
a build, a card or the machine's start changes; for AGAIN_SECONDS only if a device failed, as its memory may
just have been taken.
"""

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.files import replace_file
from meshd.base.tasks import Owner, first_error
from meshd.build import native as native_build
from meshd.build.cache import locked
from meshd.build.interface import LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, BuildProgress, NativeInfo
from meshd.build.pin import Pin, read_pin
from meshd.config.tree import Paths
from meshd.devices.command_lines import mesh_trial_environment
from meshd.devices.device_list import hardware_names
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.device_trial import AGAIN_SECONDS, DeviceTrials, TrialCache, listing_key, trial_key
from meshd.devices.devices import (
    list_devices,
    missing_library,
    missing_symbols,
    pick,
    twin,
    usable_cores,
)
from meshd.devices.interface import NativeBuild, RolePaths
from meshd.model.device_speed import REFERENCE_LAYERS, DeviceSpeed, reference_rates
from meshd.model.layer_work import USUAL
from meshd.process.handover import ReportPipe
from meshd.process.interface import SHOWN_LINES, ChildSpec, RunToEnd, Sandbox
from meshd.process.run import run_to_end
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import UNKNOWN, NativeVersion, mesh_protocol

LOG = log.get("daemon")
T = TypeVar("T")
MESH_BUILD = "remove it, or omit --native-bin; then run `meshd native build`"
SAY_SECONDS = 60.0  # a GPU takes seconds for its first device
_SEALS_SECONDS = 10.0
_HOST = "host "  # a line of the module's report: the ggml of the program that loaded it
NOT_BUILT = "llama.cpp is not built yet"
_SAID = re.compile(r"version: (\S+) \((?:build \d+, commit )?(\S+)\)")
_LIBRARIES = re.compile(rb"lib(?:ggml|llama|mtmd)[\w.-]*?\.(?:so|dylib)(?:\.\d+)*")
_NAMES_WITHIN = 8 << 20  # bytes: linkers write the names of libraries first
_BINARIES = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # ELF, Mach-O, Mach-O of several machines
SEARCHED_FIRST = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "GGML_BACKEND_PATH")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_MOST_BYTES = 4096
_SOUND, _DOUBTFUL = "sound", "doubtful"  # of a kept choice: did all devices compute right?


class ProgramTrouble(StrEnum):
    """Why a program cannot be used."""

    VERSION = "version"  # it is another one than our module's, or does not tell
    LIBRARY = "library"  # one that it needs is not installed
    C_LIBRARY = "c_library"  # this system's is older than the one it was built for
    INSTRUCTIONS = "instructions"  # it uses some that this processor lacks
    FAILS = "fails"  # it crashes, hangs, or cannot be started


class ProgramFault(UserError):
    """A native program that cannot be used."""

    def __init__(self, what: str, *, trouble: ProgramTrouble, hint: str) -> None:
        super().__init__(what, hint=hint)
        self.trouble = trouble


def find_native(paths: Paths, *, head: bool = True) -> NativeBuild:
    """Return the binaries in use; a worker (not `head`) needs no llama-server.

    Raises UserError without them.
    """
    natives = natives_here(paths, head=head)
    return kept_choice(natives, paths.cache, machine=machine_id(b"")) or natives[0]


def natives_here(paths: Paths, *, head: bool = True) -> tuple[NativeBuild, ...]:
    """Return the builds that can be used: the one that the user names, else all. Raises UserError if none."""
    found: Sequence[NativeInfo | None]
    if paths.native_bin is not None:
        found = [native_build.read_bin_dir(paths.native_bin, paths.cache, head=head)]
    else:
        found = native_build.candidates(paths.cache)
    natives = tuple(_native(info) for info in found if info is not None)
    if not natives:
        raise native_build.not_built(NOT_BUILT)
    return natives


def _native(info: NativeInfo) -> NativeBuild:
    def program(name: str) -> Path:
        return info.binaries.get(name, info.bin_dir / name)  # a worker starts only mesh-server

    return NativeBuild(
        llama_server=program(LLAMA_SERVER),
        mesh_server=program(MESH_PROGRAM),
        module=program(MESH_MODULE),
        version=NativeVersion(mesh_protocol(VERSION), info.pin, info.sources_sha256, info.backend),
        plain_rpc=read_pin().rpc_protocol,
    )


def native_if_built(paths: Paths) -> NativeBuild:
    """Return the binaries for a role that starts none, or placeholders.

    `meshd plan` may start a binary, and reports a missing one then.
    """
    try:
        return find_native(paths, head=False)
    except UserError:
        pass
    nowhere = paths.cache / "native" / "none"
    return NativeBuild(
        llama_server=nowhere / LLAMA_SERVER,
        mesh_server=nowhere / MESH_PROGRAM,
        module=nowhere / MESH_MODULE,
        version=NativeVersion(mesh_protocol(VERSION), UNKNOWN, UNKNOWN, "none"),
        plain_rpc=read_pin().rpc_protocol,
    )


def machine_id(mesh: bytes) -> str:
    """Return an id shared by all nodes of one mesh on this machine; it is of no use to anybody else."""
    try:
        seed = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        seed = f"{uuid.getnode():x} {socket.gethostname()}".encode()
    return hashlib.sha256(b"meshd machine\0" + mesh + seed).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class LlamaVersion:
    """The version that `llama-server --version` prints; `commit` is UNKNOWN for a build without git."""

    release: str
    commit: str

    def __str__(self) -> str:
        return f"{self.release} (commit {self.commit})"

    def fits(self, pin: Pin) -> bool:
        """Compare the commit with the pin's, or the release if the commit is unknown."""
        if self.commit != UNKNOWN:
            return pin.commit.startswith(self.commit)
        return self.release.removesuffix("-dev") == pin.release


def parse_version(lines: Sequence[str]) -> LlamaVersion | None:
    """Find the line `version: 0.5.0 (build 1, commit 0c1e570)`, or `version: 8123 (0c1e570)` if older."""
    for line in lines:
        if found := _SAID.match(line):
            commit = found[2] if _COMMIT.fullmatch(found[2]) else UNKNOWN
            return LlamaVersion(found[1], commit)
    return None


async def check_native_once(
    native: NativeBuild, *, pin: Pin, logs: Path, head: bool, passed: TrialCache, machine: str
) -> NativeBuild:
    """Check as `check_native` does, but skip unchanged files that passed before.

    `machine` changes with a restart of the machine, after which all are checked again.
    """
    key = _checked_key(native, pin, head=head, machine=machine)
    good = replace(native, version=replace(native.version, pin=pin.commit))
    if key and passed.use(key):
        return good
    checked = await check_native(native, pin=pin, logs=logs, head=head)
    # A llama-server without a known commit causes a warning at each start.
    if key and checked == good and key == _checked_key(native, pin, head=head, machine=machine):
        passed.add(key)
    return checked


def _checked_key(native: NativeBuild, pin: Pin, *, head: bool, machine: str) -> str:
    """Return a key for everything that decides the result of a check; empty if that is unknown."""
    if any(os.environ.get(name) for name in SEARCHED_FIRST):
        return ""
    programs = (native.mesh_server, *((native.module, native.llama_server) if head else ()))
    parts = ["native check 1", pin.commit, pin.release, pin.version, str(VERSION), str(head), machine]
    try:
        for program in programs:
            files = _files_of(program)
            if files is None:
                return ""
            for file in files:
                stat = file.stat()
                parts += [str(file), f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"]
                parts.append(str(stat.st_ctime_ns))
    except OSError:
        return ""
    return trial_key(parts)


def _files_of(program: Path) -> list[Path] | None:
    """Return this program and the libraries of llama.cpp that it loads.

    None if a library is neither beside it nor in `../lib`, and for a script, which may start anything: then
    another program could run although none of the files has changed. Raises OSError.
    """
    folder = program.resolve().parent
    found: list[Path] = []
    left = [program]
    while left:
        file = left.pop()
        found.append(file)
        with file.open("rb") as opened:
            head = opened.read(_NAMES_WITHIN)
        if not head.startswith(_BINARIES):
            return None
        for name in sorted({match.decode() for match in _LIBRARIES.findall(head)} - {MESH_MODULE}):
            places = (folder / name, folder.parent / "lib" / name)
            library = next((place for place in places if place.exists()), None)
            if library is None:
                return None
            if library not in (*found, *left):
                left.append(library)
    return [*found, *sorted(file for file in folder.glob("libggml*") if file not in found)]  # loaded by name


async def check_native(native: NativeBuild, *, pin: Pin, logs: Path, head: bool) -> NativeBuild:
    """Return `native` with what its programs report. `head`: check llama-server and module too.

    All run at once. Raises UserError that names the faulty program and what to do.
    """
    try:
        # All checks run at once.
        async with Owner() as owner:
            ours = _check_ours(native.mesh_server, (), pin, logs / "native-check.log")
            server = owner.start(_answer(ours), name="mesh-server check")
            asked = []
            if head:
                more: tuple[Coroutine[object, object, object], ...] = (
                    _check_ours(native.mesh_server, (native.module,), pin, logs / "module-check.log"),
                    _version_of(native.llama_server, pin, logs / "llama-check.log"),
                    _load_module(native.llama_server, native.module, pin, logs / "llama-module-check.log"),
                )
                asked += [owner.start(_answer(check), name="native check") for check in more]
            # In this order: of several faults the first is the cause.
            _or_raise(await server)
            answers = [_or_raise(await check) for check in asked]
    except ExceptionGroup as group:
        raise first_error(group) from None
    version = next((answer for answer in answers if isinstance(answer, LlamaVersion)), None)
    if version is None:
        return replace(native, version=replace(native.version, pin=pin.commit))
    known = native.version.pin if version.commit == UNKNOWN else pin.commit
    if known == UNKNOWN:
        LOG.warning("llama_server_commit_unknown", path=str(native.llama_server), what=str(version))
    return replace(native, version=replace(native.version, pin=known))


async def _answer(check: Coroutine[object, object, T]) -> T | UserError:
    """Return the result of a check, or its error."""
    try:
        return await check
    except UserError as error:
        return error


def _or_raise(answer: T | UserError) -> T:
    if isinstance(answer, UserError):
        raise answer
    return answer


async def asked_to_seal(native: NativeBuild, run: RunToEnd, logs: Path) -> NativeBuild:
    """Ask mesh-server whether it can seal, as it will run, and return `native` with the answer.

    Asked at each start, as that depends on a library of the system. What it cannot tell it cannot do: a
    library that crashes or hangs it must not keep a node from starting.
    """
    lines: list[str] = []
    spec = ChildSpec(
        name="seals",
        argv=(str(native.mesh_server), "--seals"),
        log=logs / "native-check.log",
        on_line=lines.append,
        sandbox=Sandbox(),
    )
    seals = False
    with suppress(TimeoutError, UserError):
        async with asyncio.timeout(_SEALS_SECONDS):
            ended = await run(spec)
        seals = ended.code == 0 and _described(lines).get("seals") is True
    return replace(native, seals=seals)


async def _check_ours(server: Path, module: Sequence[Path], pin: Pin, log_file: Path) -> None:
    """Check what mesh-server reports about itself, or about the module. Raises ProgramFault."""
    what = module[0] if module else server
    lines = await _printed(server, ("--describe", *map(str, module)), log_file)
    described = _described(lines)
    if described.get("protocol") != VERSION:
        raise ProgramFault(
            f"`{what}` does not speak version {VERSION} of the mesh protocol: {_last(lines)}",
            trouble=ProgramTrouble.VERSION,
            hint=MESH_BUILD,
        )
    if described.get("ggml") != pin.version:
        raise ProgramFault(
            f"`{what}` was made for ggml {described.get('ggml')}, this meshd is for {pin.version}",
            trouble=ProgramTrouble.VERSION,
            hint=f"make {MESH_PROGRAM} and {MESH_MODULE} from llama.cpp {pin.commit[:9]}, or {MESH_BUILD}",
        )


async def _version_of(program: Path, pin: Pin, log_file: Path) -> LlamaVersion:
    lines = await _printed(program, ("--version",), log_file)
    version = parse_version(lines)
    if version is None or not version.fits(pin):
        what = f"is llama.cpp {version}" if version else f"does not say which llama.cpp it is: {_last(lines)}"
        raise ProgramFault(
            f"`{program}` {what}; meshd's module is for {pin.release} (commit {pin.commit[:9]})",
            trouble=ProgramTrouble.VERSION,
            hint=_other_release(pin),
        )
    return version


async def _load_module(program: Path, module: Path, pin: Pin, log_file: Path) -> None:
    """Check that a llama-server loads the module and, if that is known, has its ggml. Raises ProgramFault."""
    with ReportPipe() as report:
        environment = mesh_trial_environment(module=str(module), report=report.child_end)
        lines = await _printed(
            program, ("--list-devices",), log_file, env=environment, hand_over=(report.child_end,)
        )
        reported = [line async for line in report]
    hosts = [line.removeprefix(_HOST) for line in reported if line.startswith(_HOST)]
    if not hosts:
        raise ProgramFault(
            f"`{program}` does not load meshd's module `{module}`: {_last(lines)}",
            trouble=ProgramTrouble.FAILS,
            hint="build it for this system, with dynamic loading; or omit --native-bin",
        )
    if hosts[0] not in (UNKNOWN, pin.version):
        raise ProgramFault(
            f"`{program}` has ggml {hosts[0]}, meshd's module is for {pin.version}",
            trouble=ProgramTrouble.VERSION,
            hint=_other_release(pin),
        )


def _other_release(pin: Pin) -> str:
    ours = "omit --native-bin and run `meshd native build`"
    return f"build llama.cpp at commit {pin.commit[:9]}, or {ours}"


async def _printed(
    program: Path,
    words: Sequence[str],
    log_file: Path,
    *,
    env: Mapping[str, str] | None = None,
    hand_over: tuple[int, ...] = (),
) -> list[str]:
    """Run a program to its end; return the lines that it prints. Raises UserError if it fails."""
    lines: list[str] = []
    spec = ChildSpec(
        name=f"{program.name} check",
        argv=(str(program), *words),
        log=log_file,
        on_line=lines.append,
        env=env or {},
        hand_over=hand_over,
    )
    try:
        async with asyncio.timeout(SAY_SECONDS):
            ended = await run_to_end(spec)
    except TimeoutError:
        what = f"`{program} {' '.join(words)}` did not end within {SAY_SECONDS:.0f} s: {_last(lines)}"
        raise ProgramFault(what, trouble=ProgramTrouble.FAILS, hint=MESH_BUILD) from None
    if ended.code != 0:
        end = f"exit code {ended.code}" if ended.signal is None else f"signal {ended.signal}"
        trouble, hint = _trouble_of(lines, ended.signal)
        what = f"`{program} {' '.join(words)}` failed ({end}): {_last(lines)}"
        raise ProgramFault(what, trouble=trouble, hint=hint)
    return lines


def _trouble_of(lines: Sequence[str], number: int | None) -> tuple[ProgramTrouble, str]:
    """Return why a program has failed that printed these lines, and a hint; `number`: of its signal."""
    if hint := missing_library(lines):
        return ProgramTrouble.LIBRARY, hint
    if missing := missing_symbols(lines):
        hint = f"run `meshd native build` on this machine, or upgrade its system to one that has {missing}"
        return ProgramTrouble.C_LIBRARY, hint
    if number == signal.SIGILL:
        return ProgramTrouble.INSTRUCTIONS, "run `meshd native build`, which builds for this processor"
    return ProgramTrouble.FAILS, MESH_BUILD


def _described(lines: Sequence[str]) -> Mapping[str, object]:
    try:
        found = json.loads("".join(lines))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _last(lines: Sequence[str]) -> str:
    return " | ".join(line.strip()[:100] for line in lines[-SHOWN_LINES:]) or "it says nothing"


@dataclass(frozen=True, slots=True)
class TriedDevice:
    """A device: why it is unfit, or how fast it reads weights, in bytes per second (0: not measured)."""

    device: OfferedDevice
    why_unfit: str = ""
    weight_bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TriedBuild:
    """A build and what came of the devices that a worker uses; `others` are there, too.

    `why_not`: it lists none, and what helps.
    """

    native: NativeBuild
    devices: tuple[TriedDevice, ...] = ()
    others: tuple[OfferedDevice, ...] = ()
    why_not: str = ""
    hint: str = ""

    @property
    def best(self) -> TriedDevice | None:
        """The fastest fit device; None if all are unfit."""
        fit = [tried for tried in self.devices if not tried.why_unfit]
        return max(fit, key=lambda tried: tried.weight_bytes_s, default=None)

    @property
    def weight_bytes_s(self) -> float:
        """The speed of the fastest fit device; 0 if none was measured."""
        return self.best.weight_bytes_s if self.best is not None else 0.0

    @property
    def has_gpu(self) -> bool:
        """Say whether a fit device is a GPU."""
        return any(tried.device.kind == "gpu" and not tried.why_unfit for tried in self.devices)

    @property
    def is_measured(self) -> bool:
        """Say whether the speed of each fit device is known: one may have had no free memory."""
        return all(tried.why_unfit or tried.weight_bytes_s for tried in self.devices)

    @property
    def slower(self) -> tuple[str, ...]:
        """The names of devices that another one, which is the same card, beats."""
        return tuple(
            tried.device.name
            for tried in self.devices
            if any(
                twin(tried.device, [other.device]) and other.weight_bytes_s > tried.weight_bytes_s > 0
                for other in self.devices
                if other is not tried and not other.why_unfit
            )
        )


def choose(tried: Sequence[TriedBuild]) -> TriedBuild:
    """Return the build with the fastest fit device; of equals, the first.

    A device that was not measured may be faster than all others. Of the builds that may still win, one with a
    GPU beats one without; those left are compared if each has a measured device, or else the first one wins.
    """
    fit = [build for build in tried if build.best is not None]
    if not fit:
        return tried[0]
    fastest = max(fit, key=lambda build: build.weight_bytes_s)
    open_builds = [build for build in fit if build is fastest or not build.is_measured]
    preferred = [build for build in open_builds if build.has_gpu] or open_builds
    if all(build.weight_bytes_s for build in preferred):
        return max(preferred, key=lambda build: build.weight_bytes_s)
    return preferred[0]


def runner(sandbox: str) -> RunToEnd:
    """Return what runs a native program to its end; `sandbox`: the setting."""
    return lambda spec: run_to_end(sandboxed(spec, sandbox))


def sandboxed(spec: ChildSpec, sandbox: str) -> ChildSpec:
    """Return the way to run a program by the setting `sandbox`.

    With "on" even a program that would need the network, such as a llama-server that is told to download
    something, does not get it.
    """
    match sandbox:
        case "off":
            return replace(spec, sandbox=None)
        case "on":
            return replace(spec, sandbox=replace(spec.sandbox or Sandbox(), is_required=True))
        case _:
            return spec


async def try_build(native: NativeBuild, run_to_end: RunToEnd, logs: Path, *, machine: str) -> TriedBuild:
    """List, try and time the devices that a worker would use. Some seconds for each device."""
    paths = RolePaths(logs=logs, sockets=logs)
    try:
        listed = await list_devices(
            native.mesh_server, machine=machine, run_to_end=run_to_end, log=logs / "devices.log"
        )
        device_trials = DeviceTrials(native, run_to_end, paths, machine=machine)
        speeds = DeviceSpeeds(native, run_to_end, paths, machine=machine, threads=usable_cores())
        tried = []
        for device in pick(listed, ()):
            (why,) = await device_trials.unfit([device], USUAL, _silent)
            if not why:
                await speeds.measure([device], REFERENCE_LAYERS, _silent)
            rates = reference_rates(DeviceSpeed(speeds.known(device, REFERENCE_LAYERS)))
            tried.append(TriedDevice(device, why, rates.weight_bytes_s or 0.0))
    except MeshdError as error:
        return TriedBuild(native, why_not=error.what, hint=error.hint or "")
    used = [trial.device for trial in tried]
    return TriedBuild(native, tuple(tried), tuple(device for device in listed if device not in used))


async def choose_build(
    natives: Sequence[NativeBuild], run_to_end: RunToEnd, *, cache: Path, logs: Path, machine: str
) -> NativeBuild:
    """Return the kept choice, or try all builds and keep what comes of it, one node at a time."""
    if (kept := kept_choice(natives, cache, machine=machine)) is not None:
        return kept
    async with AsyncExitStack() as stack:
        with suppress(OSError):  # a cache that takes nothing is reported below
            lock = locked(_file(cache).with_suffix(".lock"), _say, "is trying the builds")
            await stack.enter_async_context(lock)
        kept = kept_choice(natives, cache, machine=machine)  # another node may have chosen
        return kept or await _find_out(natives, run_to_end, cache=cache, logs=logs, machine=machine)


async def _find_out(
    natives: Sequence[NativeBuild], run_to_end: RunToEnd, *, cache: Path, logs: Path, machine: str
) -> NativeBuild:
    tried = []
    for native in natives:
        LOG.info("build_tried", path=str(native.mesh_server.parent))
        tried.append(await try_build(native, run_to_end, logs, machine=machine))
    chosen = choose(tried)
    device = chosen.best.device.name if chosen.best is not None else ""
    LOG.info("build_chosen", path=str(chosen.native.mesh_server.parent), device=device)
    keep_choice(tried, chosen, cache, machine=machine)
    if not all(build.is_measured for build in tried):
        return chosen.native  # another start may find out
    return replace(chosen.native, slower=chosen.slower)


def keep_choice(tried: Sequence[TriedBuild], chosen: TriedBuild, cache: Path, *, machine: str) -> None:
    """Keep what was found out for the nodes of this machine, unless a device could not be timed."""
    if not all(build.is_measured for build in tried):
        return
    sound = all(
        not build.why_not and not any(device.why_unfit for device in build.devices) for build in tried
    )
    key = _key([build.native for build in tried], machine)
    lines = [key, _SOUND if sound else _DOUBTFUL, str(chosen.native.mesh_server), *chosen.slower]
    try:
        replace_file(_file(cache), ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as error:
        LOG.warning("choice_not_kept", why=error.strerror)


def kept_choice(natives: Sequence[NativeBuild], cache: Path, *, machine: str) -> NativeBuild | None:
    """Return what was chosen of these builds on this machine; None if that has to be found out.

    There is nothing to choose of one build, unless its modules may show one card twice.
    """
    if len(natives) == 1 and not _has_several_modules(natives[0]):
        return natives[0]
    try:
        with _file(cache).open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "surrogateescape")
            age = time.time() - os.fstat(file.fileno()).st_mtime
        key, state, program, *slower = text.splitlines()
    except (OSError, ValueError):
        return None
    if key != _key(natives, machine) or (state != _SOUND and not 0 <= age < AGAIN_SECONDS):
        return None
    named = (native for native in natives if str(native.mesh_server) == program)
    return next((replace(native, slower=tuple(slower)) for native in named), None)


def _file(cache: Path) -> Path:
    return cache / "native-choice"


def _has_several_modules(native: NativeBuild) -> bool:
    return len({"cuda", "vulkan", "hip"} & set(native.backends)) > 1


def _key(natives: Sequence[NativeBuild], machine: str) -> str:
    """Return a key for all that decides the choice: builds, machine since its start, cards, variables."""
    programs = [
        part for native in natives for part in (str(native.mesh_server), listing_key(native, machine))
    ]
    modules = sorted(
        path.name for native in natives for path in native.mesh_server.parent.glob("libggml-*.so")
    )
    return trial_key(["build choice 2", *programs, *modules, *hardware_names()])


def _say(progress: BuildProgress) -> None:
    LOG.info("build_choice_awaited", why=progress.text)


async def _silent(_text: str) -> None:
    """Ignore progress."""
