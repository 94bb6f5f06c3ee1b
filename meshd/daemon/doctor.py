"""The checks of `meshd doctor` on this machine: folders, native part, devices. They take some seconds.

Why a GPU is not used, and what helps (drivers, device files, variables, age), is found without starting a
driver, but for one child that asks CUDA's. `explain` is a function of these facts alone.
"""

import asyncio
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from meshd.base.errors import MeshdError, UserError
from meshd.base.resource_limits import memory_limit
from meshd.base.units import in_bytes, in_memory
from meshd.build.machine import (
    CUDA_EXTRA,
    CUDA_IN_PACKAGE,
    GPU_PAGE,
    WSL_NODE,
    need_compiler,
    need_tools,
    nvidia_nodes,
    packaged_as,
)
from meshd.build.pin import read_pin
from meshd.build.wheel import has_wheels, installed_wheel, read_wheel
from meshd.config.tree import Config
from meshd.daemon.native import (
    TriedBuild,
    check_native,
    choose,
    keep_choice,
    machine_id,
    natives_here,
    runner,
    try_build,
)
from meshd.devices.devices import LIST_SECONDS
from meshd.devices.interface import NativeBuild
from meshd.process.interface import ChildSpec, RunToEnd
from meshd.process.run import run_to_end
from meshd.process.sandbox_rules import confines_with
from meshd.rpc.mesh_protocol import VERSION
from meshd.wire.lease import OfferedDevice
from meshd.wire.versions import UNKNOWN

OLDEST_SM = 75  # of CUDA 13
OLDEST_CUDA = 13_000  # of a driver, as it says it
NO_CUDA = (
    f"run `meshd native add cuda13 --from DIR`; or {CUDA_EXTRA}, and run `meshd native build --backend cuda`"
)
_DRIVER_CHANGED, _NO_DEVICE = 803, 100  # errors of cuInit
_NVIDIA, _OTHERS = "0x10de", ("0x1002", "0x8086")
_DISPLAY = "0x03"  # classes of PCI devices
_HIDING = ("CUDA_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_ICD_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_ICD_FOLDERS = ("etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_CONTAINER_KIND = "run/systemd/container"  # systemd writes it, in LXC and nspawn, for example
_MODULE_VERSION = "sys/module/nvidia/version"
_ASK_CUDA = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit(0)
value = ctypes.c_int()
cuda.cuDriverGetVersion(ctypes.byref(value))
print("version", value.value, flush=True)
fault = cuda.cuInit(0)
print("init", fault, flush=True)
if not fault and not cuda.cuDeviceGetCount(ctypes.byref(value)):
    for device in range(value.value):
        parts = [ctypes.c_int(), ctypes.c_int()]
        for part, attribute in zip(parts, (75, 76)):
            cuda.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
        print("sm", 10 * parts[0].value + parts[1].value, flush=True)
"""
UNFIT_HINT = "try another driver; a model that needs fewer operations may still run on it"
HOME_HINT = "free space on that disk, check its owner and that it is mounted read-write, or set MESHD_HOME"
WHEEL_HINT = "install the wheel of meshd-native that belongs to this meshd, by its file, or uninstall it"
CACHE_HINT = "free space there, check its owner and how it is mounted, or set MESHD_CACHE to another folder"
INSTALLS_HINT = "remove one of them: `pipx uninstall meshd`, `uv tool uninstall meshd`, or the folder `.venv`"
TRIED_BYTES = 64 << 10  # what a node writes at once is less, mostly
SANDBOX_HINT = "set it to `auto` again if your GPU's driver works that way"
IS_MACOS = sys.platform == "darwin"
MACOS_HINT = "set `node.sandbox` to `on` to try macOS's own; tell us whether your GPU works with it"
KERNEL_HINT = "Linux 5.13 or later with Landlock (`lsm=` of its boot options) and seccomp has both"
UNKNOWN_HINT = "it works if it was built of commit {}; build it in a clone of llama.cpp to be sure"
State = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class CudaDriver:
    """The answer of CUDA's driver: its version (13020: 13.2), its error, and the capabilities of its GPUs."""

    version: int = 0
    error: int = 0
    kinds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The signs of GPUs that this machine shows. `cards` and `nodes` by vendor: True for NVIDIA."""

    cards: Mapping[bool, int]
    nodes: Mapping[bool, Sequence[Path]]
    closed: Sequence[Path] = ()
    """Device files that this user may not open."""
    module: str = ""
    """The version of NVIDIA's driver in the kernel; empty if it is not loaded."""
    cuda: CudaDriver | None = None
    """None: there is no libcuda.so.1."""
    icds: Sequence[Path] = ()
    """Files that name drivers for Vulkan."""
    variables: Mapping[str, str] | None = None
    """Those that hide GPUs or drivers."""
    in_container: bool = False
    package: str | None = None
    """What this meshd is from, if it cannot be added to (build/machine.py)."""

    @property
    def in_wsl(self) -> bool:
        """Say whether WSL2 shows an NVIDIA GPU, whose driver is the one of Windows."""
        return any(node.name == WSL_NODE.name for node in self.nodes[True])


@dataclass(frozen=True, slots=True)
class GpuFault:
    """Why a GPU is not used, and what to do."""

    what: str
    hint: str


async def gather_facts(run_to_end: RunToEnd, log: Path) -> GpuFacts:
    """Gather the facts. Raises MeshdError if the child that asks CUDA cannot be started, or hangs."""
    return look_around(cuda=await _ask_cuda(run_to_end, log))


def look_around(root: Path = Path("/"), cuda: CudaDriver | None = None) -> GpuFacts:
    """Gather the facts that files and variables tell, beside the answer of CUDA's driver."""
    cards = {True: 0, False: 0}
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor = _read(device / "vendor")
        if _read(device / "class").startswith(_DISPLAY) and vendor in (_NVIDIA, *_OTHERS):
            cards[vendor == _NVIDIA] += 1
    nodes = {True: nvidia_nodes(root), False: sorted(root.glob("dev/dri/renderD*"))}
    if not nodes[True] and cuda is not None and cuda.kinds:  # a container in WSL2 has libcuda elsewhere
        nodes[True] = list(root.glob(str(WSL_NODE)))
    named = {name: os.environ[name] for name in (*_HIDING, *_ICD_VARIABLES) if name in os.environ}
    icds = [file for folder in _ICD_FOLDERS for file in sorted((root / folder).glob("*.json"))]
    return GpuFacts(
        cards=cards,
        nodes=nodes,
        closed=[node for both in nodes.values() for node in both if not os.access(node, os.R_OK | os.W_OK)],
        module=_read(root / _MODULE_VERSION),
        cuda=cuda,
        icds=icds,
        variables=named,
        in_container=_is_container(root),
        package=packaged_as(),
    )


def _is_container(root: Path) -> bool:
    if "KUBERNETES_SERVICE_HOST" in os.environ or any((root / mark).exists() for mark in _CONTAINER_MARKS):
        return True
    return _read(root / _CONTAINER_KIND) not in ("", "wsl")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


async def _ask_cuda(run_to_end: RunToEnd, log: Path) -> CudaDriver | None:
    """Ask the driver in a child: one that does not fit its kernel may crash."""
    lines: list[str] = []
    argv = (sys.executable, "-I", "-c", _ASK_CUDA)
    try:
        async with asyncio.timeout(LIST_SECONDS):
            await run_to_end(ChildSpec(name="CUDA's driver", argv=argv, log=log, on_line=lines.append))
    except TimeoutError:
        raise MeshdError(
            f"CUDA's driver does not answer within {LIST_SECONDS:.0f} s",
            hint="look at the kernel's log (`dmesg`), or restart the machine",
        ) from None
    return parse_cuda(lines)


def parse_cuda(lines: Sequence[str]) -> CudaDriver | None:
    """Return what the child has said before it ended; None: there is no driver."""
    said: dict[str, list[int]] = {"version": [], "init": [], "sm": []}
    for line in lines:
        word, _, number = line.partition(" ")
        if word in said and number.isascii() and number.isdigit() and len(number) < 9:
            said[word].append(int(number))
    if not said["version"]:
        return None
    return CudaDriver(said["version"][0], said["init"][0] if said["init"] else -1, tuple(said["sm"]))


def explain(facts: GpuFacts, listed: Sequence[str], backends: Sequence[str]) -> list[GpuFault]:
    """Return why GPUs are not used.

    `listed`: the names of the devices that the build in use shows; `backends`: what it can compute on.
    """
    found = []
    if not any(name.startswith("CUDA") for name in listed):
        causes = _nvidia(facts, backends, on_vulkan=any(name.startswith("Vulkan") for name in listed))
        found += list(causes)[:1]  # what follows are its consequences
    others = facts.cards[False] or facts.nodes[False]
    if not found and "vulkan" in backends and others and not any(_is_gpu(name) for name in listed):
        found += list(_vulkan(facts))[:1]
    return found


def compile_notice(facts: GpuFacts, programs: Path) -> str:
    """Return what to expect where programs of a wheel have no machine code for a GPU; empty if they have."""
    kinds = sorted({kind for kind in facts.cuda.kinds if kind >= OLDEST_SM}) if facts.cuda is not None else []
    if not (lacking := read_wheel(programs.parent).compiles_for(kinds)):
        return ""
    gpu = f"a GPU of compute capability {', '.join(map(_dotted, lacking))}"
    return f"CUDA has no machine code for {gpu}: the first start compiles for some minutes"


def _is_gpu(name: str) -> bool:
    return not name.startswith(("CPU", "BLAS", "ACCEL", "AMX"))


def _nvidia(facts: GpuFacts, backends: Sequence[str], *, on_vulkan: bool) -> Iterator[GpuFault]:
    """Yield why CUDA does not show an NVIDIA GPU, the first cause first."""
    cuda, hidden = facts.cuda, (facts.variables or {}).get("CUDA_VISIBLE_DEVICES")
    if not facts.cards[True] and not facts.nodes[True]:
        return
    if facts.in_container and (not facts.nodes[True] or cuda is None):
        yield GpuFault(
            "this container cannot use the machine's NVIDIA GPU: it has no "
            + ("libcuda.so.1" if facts.nodes[True] else "/dev/nvidia0"),
            "install nvidia-container-toolkit on the machine and start the container with `--gpus all` "
            "(Kubernetes: with `nvidia.com/gpu` in its limits)",
        )
    if not facts.nodes[True] and not facts.module:
        yield GpuFault("the NVIDIA GPU has no driver", f"install NVIDIA's driver 580 or later; {GPU_PAGE}")
    for node in facts.closed:
        if node in facts.nodes[True]:
            yield GpuFault(f"this user may not open `{node}`", f"check its owner and group: `ls -l {node}`")
    if cuda is not None and hidden is not None and not cuda.kinds and cuda.error in (0, _NO_DEVICE):
        yield GpuFault(
            f"the NVIDIA GPU is hidden: CUDA_VISIBLE_DEVICES is `{hidden}`", "unset CUDA_VISIBLE_DEVICES"
        )
    if facts.in_wsl and (cuda is None or not cuda.kinds):
        yield GpuFault(
            "NVIDIA's driver on Windows does not answer in WSL2",
            "install NVIDIA's driver 580 or later on Windows, and none in WSL2; then run `wsl --shutdown`",
        )
    if cuda is None:
        yield GpuFault(
            "NVIDIA's driver is incomplete: there is no libcuda.so.1",
            "install the package of the driver's libraries (Debian: libcuda1; Ubuntu: libnvidia-compute-580)",
        )
        return
    if cuda.error == _DRIVER_CHANGED:
        yield GpuFault(
            "NVIDIA's driver was updated and does not fit the running kernel's", "restart the machine"
        )
    if cuda.error or not cuda.kinds:
        yield GpuFault(
            f"NVIDIA's driver does not start (CUDA error {cuda.error})",
            "`nvidia-smi` must list the GPU; restart the machine, or install the driver again",
        )
        return
    yield from _unfit(facts, cuda, backends, on_vulkan=on_vulkan)


def _unfit(
    facts: GpuFacts, cuda: CudaDriver, backends: Sequence[str], *, on_vulkan: bool
) -> Iterator[GpuFault]:
    """Yield why CUDA does not show a GPU whose driver works."""
    newest = max(cuda.kinds)
    if newest < OLDEST_SM:
        instead = (
            "Vulkan computes on it" if on_vulkan else "use Vulkan: `meshd native build --backend vulkan`"
        )
        yield GpuFault(
            f"the NVIDIA GPU is too old for CUDA 13: its compute capability is {_dotted(newest)}, "
            f"and {_dotted(OLDEST_SM)} is the oldest",
            f"{instead}; or install toolkit 12.8 and run `meshd native build --backend cuda`",
        )
    if cuda.version < OLDEST_CUDA:
        version = f"{cuda.version // 1000}.{cuda.version % 1000 // 10}"
        yield GpuFault(
            f"NVIDIA's driver {facts.module} is for CUDA {version}, and 13.0 is needed".replace("  ", " "),
            f"install driver 580 or later{' on Windows' if facts.in_wsl else ''}; or install the toolkit of "
            "that version and run `meshd native build --backend cuda`",
        )
    if "cuda" not in backends:
        slower = "the NVIDIA GPU computes through Vulkan" if on_vulkan else "the NVIDIA GPU is not used"
        lacks_icd = "vulkan" in backends and not facts.icds and facts.in_container
        yield GpuFault(
            f"the programs in use have no CUDA: {slower}",
            CUDA_IN_PACKAGE.get(facts.package or "", NO_CUDA)
            + ("; or, for Vulkan, add `-e NVIDIA_DRIVER_CAPABILITIES=all`" if lacks_icd else ""),
        )
    else:
        yield GpuFault(
            "CUDA shows no GPU, although its driver works",
            "`meshd native info` names the programs: run `llama-server --list-devices` there for the reason",
        )


def _vulkan(facts: GpuFacts) -> Iterator[GpuFault]:
    """Yield why Vulkan does not show a GPU."""
    variables = facts.variables or {}
    if not facts.nodes[False]:
        start = "start the container with `--device /dev/dri`" if facts.in_container else "install its driver"
        yield GpuFault("the GPU has no device file: there is no /dev/dri/renderD128", start)
    for node in facts.closed:
        yield GpuFault(
            f"this user may not open `{node}`", "add the user to the group `render`, and log in again"
        )
    for name in _ICD_VARIABLES:
        named = [Path(part) for part in variables.get(name, "").split(os.pathsep) if part]
        if named and not any(path.is_file() for path in named):
            yield GpuFault(f"{name} names `{named[0]}`, which does not exist", f"unset {name}")
    if (hidden := variables.get("GGML_VK_VISIBLE_DEVICES")) is not None:
        what = f"the GPU may be hidden: GGML_VK_VISIBLE_DEVICES is `{hidden}`"
        yield GpuFault(what, "unset GGML_VK_VISIBLE_DEVICES")
    if not facts.icds:
        where = "in the image, " if facts.in_container else ""
        yield GpuFault(
            "there is no driver for Vulkan: no file in /usr/share/vulkan/icd.d",
            f"{where}install it (Debian, Ubuntu: mesa-vulkan-drivers)",
        )


def _dotted(kind: int) -> str:
    return f"{kind // 10}.{kind % 10}"


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
        used, found = asyncio.run(_native(natives, config, Path(logs)))
    return [*folders, _build(used), *_wheel(), _sandbox(config), *_limits(), *found]


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
    place = _place_of(cache)
    if isinstance(place, str):
        yield Finding("cache", "error", f"`{cache}` cannot be written: {place}", CACHE_HINT)
    elif os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
        what = f"`{cache}` is mounted noexec: programs that are built there cannot be started"
        yield Finding("cache", "warning", what, CACHE_HINT)


def _home(home: Path) -> Finding:
    """Check that the home can be written."""
    place = _place_of(home)
    if isinstance(place, str):
        return Finding("home", "error", f"`{home}` cannot be written: {place}", HOME_HINT)
    return Finding("home", "ok", f"`{home}` is writable, {in_bytes(shutil.disk_usage(place).free)} free")


def _place_of(folder: Path) -> Path | str:
    """Write to a folder, or else to the one in which it would be made; return that, or why it failed."""
    try:
        place = next(one for one in (folder, *folder.parents) if one.exists())
        _write_some(place)
    except OSError as error:
        return (error.strerror or type(error).__name__).lower()
    return place


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
    natives: Sequence[NativeBuild], config: Config, logs: Path
) -> tuple[NativeBuild, list[Finding]]:
    """Try the devices of all builds; return the one to use with its findings, and why others are not used.

    Nodes use it from their next start on.
    """
    machine, run, cache = machine_id(b""), runner(config.node.sandbox), config.paths.cache
    tried = [await try_build(native, run, logs, machine=machine) for native in natives]
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


def _sandbox(config: Config) -> Finding:
    """Report what confines native programs on this machine."""
    if config.node.sandbox == "off":
        what = "native programs are not confined: `node.sandbox` is off"
        return Finding("sandbox", "warning", what, SANDBOX_HINT)
    parts = confines_with()
    if IS_MACOS:
        if config.node.sandbox == "on":
            return Finding("sandbox", "ok", "native programs are confined by sandbox-exec")
        return Finding("sandbox", "warning", "native programs are not confined", MACOS_HINT)
    if len(parts) < 2:
        what = (
            f"native programs are confined by {parts[0]} only"
            if parts
            else "native programs are not confined"
        )
        return Finding("sandbox", "warning", f"{what} on this system", KERNEL_HINT)
    return Finding("sandbox", "ok", f"native programs are confined by {' and '.join(parts)}")


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
