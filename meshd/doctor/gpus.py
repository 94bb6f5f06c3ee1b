"""Find out why a GPU of this machine is not used, and what helps: drivers, device files, variables, age.

No driver is started but by one child, which asks CUDA's. `explain` is a function of the facts alone.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.files import is_container
from meshd.build.machine import CUDA_EXTRA, CUDA_IN_PACKAGE, GPU_PAGE, WSL_NODE, nvidia_nodes, packaged_as
from meshd.build.wheel import read_wheel
from meshd.devices.devices import LIST_SECONDS
from meshd.doctor.gpu_kinds import GpuKind
from meshd.doctor.kinds import Finding
from meshd.process.interface import ChildSpec, RunToEnd

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
    """Variables that hide GPUs or drivers."""
    in_container: bool = False
    package: str | None = None
    """Origin of this meshd, if nothing can be added to it (build/machine.py)."""

    @property
    def in_wsl(self) -> bool:
        """Say whether WSL2 shows an NVIDIA GPU, whose driver is the one of Windows."""
        return any(node.name == WSL_NODE.name for node in self.nodes[True])


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
        in_container=is_container(root),
        package=packaged_as(),
    )


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
            hint="check the kernel's log (`dmesg`), or restart the machine",
        ) from None
    return parse_cuda(lines)


def parse_cuda(lines: Sequence[str]) -> CudaDriver | None:
    """Return what the child has said before it ended; None: there is no driver."""
    answers: dict[str, list[int]] = {"version": [], "init": [], "sm": []}
    for line in lines:
        word, _, number = line.partition(" ")
        if word in answers and number.isascii() and number.isdigit() and len(number) < 9:
            answers[word].append(int(number))
    if not answers["version"]:
        return None
    return CudaDriver(
        answers["version"][0], answers["init"][0] if answers["init"] else -1, tuple(answers["sm"])
    )


def explain(facts: GpuFacts, listed: Sequence[str], backends: Sequence[str]) -> list[Finding]:
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


def compile_notice(facts: GpuFacts, programs: Path) -> Finding | None:
    """Return what to expect where programs of a wheel have no machine code for a GPU; None if they have."""
    kinds = sorted({kind for kind in facts.cuda.kinds if kind >= OLDEST_SM}) if facts.cuda is not None else []
    if not (lacking := read_wheel(programs.parent).compiles_for(kinds)):
        return None
    return GpuKind.GPU_COMPILES.found(capability=", ".join(map(_dotted, lacking)))


def _is_gpu(name: str) -> bool:
    return not name.startswith(("CPU", "BLAS", "ACCEL", "AMX"))


def _nvidia(facts: GpuFacts, backends: Sequence[str], *, on_vulkan: bool) -> Iterator[Finding]:
    """Yield why CUDA does not show an NVIDIA GPU, the first cause first."""
    cuda, hidden = facts.cuda, (facts.variables or {}).get("CUDA_VISIBLE_DEVICES")
    if not facts.cards[True] and not facts.nodes[True]:
        return
    if facts.in_container and (not facts.nodes[True] or cuda is None):
        missing = "libcuda.so.1" if facts.nodes[True] else "/dev/nvidia0"
        yield GpuKind.GPU_NOT_IN_CONTAINER.found(missing=missing)
    if not facts.nodes[True] and not facts.module:
        yield GpuKind.GPU_WITHOUT_DRIVER.found(page=GPU_PAGE)
    for node in facts.closed:
        if node in facts.nodes[True]:
            yield GpuKind.GPU_CLOSED.found(node=node)
    if cuda is not None and hidden is not None and not cuda.kinds and cuda.error in (0, _NO_DEVICE):
        yield GpuKind.GPU_HIDDEN.found(value=hidden)
    if facts.in_wsl and (cuda is None or not cuda.kinds):
        yield GpuKind.GPU_SILENT_IN_WSL.found()
    if cuda is None:
        yield GpuKind.GPU_DRIVER_INCOMPLETE.found()
        return
    if cuda.error == _DRIVER_CHANGED:
        yield GpuKind.GPU_DRIVER_CHANGED.found()
    if cuda.error or not cuda.kinds:
        yield GpuKind.GPU_DRIVER_FAILS.found(error=cuda.error)
        return
    yield from _unfit(facts, cuda, backends, on_vulkan=on_vulkan)


def _unfit(
    facts: GpuFacts, cuda: CudaDriver, backends: Sequence[str], *, on_vulkan: bool
) -> Iterator[Finding]:
    """Yield why CUDA does not show a GPU whose driver works."""
    newest = max(cuda.kinds)
    if newest < OLDEST_SM:
        found, needed = _dotted(newest), _dotted(OLDEST_SM)
        if on_vulkan:
            yield GpuKind.GPU_OLD_ON_VULKAN.found(found=found, needed=needed)
        else:
            yield GpuKind.GPU_OLD.found(found=found, needed=needed)
    if cuda.version < OLDEST_CUDA:
        version = f"{cuda.version // 1000}.{cuda.version % 1000 // 10}"
        if facts.in_wsl:
            yield GpuKind.GPU_DRIVER_OLD_IN_WSL.found(cuda=version)
        else:
            yield GpuKind.GPU_DRIVER_OLD.found(driver=facts.module or "in use", cuda=version)
    if "cuda" not in backends:
        remedy = CUDA_IN_PACKAGE.get(facts.package or "", NO_CUDA)
        if "vulkan" in backends and not on_vulkan and facts.icds:
            named = [file for file in facts.icds if "nvidia" in file.name]
            yield GpuKind.GPU_SILENT_ON_VULKAN.found(file=(named or facts.icds)[0], remedy=remedy)
            return
        if "vulkan" in backends and not facts.icds and facts.in_container:
            remedy += "; or, for Vulkan, add `-e NVIDIA_DRIVER_CAPABILITIES=all`"
        kind = GpuKind.GPU_THROUGH_VULKAN if on_vulkan else GpuKind.GPU_WITHOUT_CUDA
        yield kind.found(remedy=remedy)
    else:
        yield GpuKind.GPU_NOT_LISTED.found()


def _vulkan(facts: GpuFacts) -> Iterator[Finding]:
    """Yield why Vulkan does not show a GPU."""
    variables = facts.variables or {}
    if not facts.nodes[False]:
        yield (
            GpuKind.RENDER_NODE_NOT_IN_CONTAINER if facts.in_container else GpuKind.RENDER_NODE_MISSING
        ).found()
    for node in facts.closed:
        yield GpuKind.RENDER_NODE_CLOSED.found(node=node)
    for name in _ICD_VARIABLES:
        named = [Path(part) for part in variables.get(name, "").split(os.pathsep) if part]
        if named and not any(path.is_file() for path in named):
            yield GpuKind.VULKAN_FILE_MISSING.found(variable=name, file=named[0])
    if (hidden := variables.get("GGML_VK_VISIBLE_DEVICES")) is not None:
        yield GpuKind.VULKAN_HIDDEN.found(value=hidden)
    if not facts.icds:
        in_image = facts.in_container
        yield (GpuKind.VULKAN_NOT_IN_IMAGE if in_image else GpuKind.VULKAN_WITHOUT_DRIVER).found()
        return
    yield GpuKind.VULKAN_SILENT.found(file=facts.icds[0])


def _dotted(kind: int) -> str:
    return f"{kind // 10}.{kind % 10}"
