"""Machines with GPUs that are not used; `OF_GPUS` has them by the kind of finding.

The cards, device files and drivers are files where the kernel and the loader look for them; libcuda.so.1 is
compiled here and answers as the variables say.
"""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from meshd.doctor.gpu_kinds import GpuKind
from meshd.doctor.kinds import Kinds

from tests.process import doctor_breakages
from tests.process.doctor_breakages import Breakage
from tests.process.doctor_scene import Machine

_DRIVER = """
#include <stdlib.h>
static int told(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuDriverGetVersion(int *version) { *version = told("CUDA_TOLD_VERSION"); return 0; }
int cuInit(unsigned flags) { return flags + told("CUDA_TOLD_ERROR"); }
int cuDeviceGetCount(int *count) { *count = told("CUDA_TOLD_KIND") ? 1 : 0; return 0; }
int cuDeviceGetAttribute(int *value, int asked, int device) {
  int kind = told("CUDA_TOLD_KIND") + 0 * device;
  *value = asked == 75 ? kind / 10 : kind % 10;
  return 0;
}
"""
_NVIDIA, _AMD = "0x10de", "0x1002"
OF_GPUS: dict[Kinds, Breakage] = {}
breaks = partial(doctor_breakages.breaks, noted_in=OF_GPUS)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "shm", "pts")


def _card(machine: Machine, vendor: str) -> None:
    """Plug in a card."""
    machine.file("pci/0000:01:00.0/vendor", f"{vendor}\n")
    machine.file("pci/0000:01:00.0/class", "0x030000\n")
    machine.bind(machine.folder / "pci", "/sys/bus/pci/devices")


def _nodes(machine: Machine, *names: str, mode: int = 0o666) -> None:
    """Show these files in /dev, beside the usual ones."""
    folder = machine.folder / "dev"
    folder.mkdir()
    for name in _DEVICES:
        there = Path("/dev", name)
        if there.is_dir():
            (folder / name).mkdir(mode=0o1777)
            (folder / name).chmod(0o1777)
        elif there.exists():
            os.mknod(folder / name, there.stat().st_mode, there.stat().st_rdev)
            (folder / name).chmod(0o666)
    for name in names:
        machine.file(f"dev/{name}", mode=mode)
    machine.bind(folder, "/dev")


def _below_usr(machine: Machine, name: str) -> None:
    """Add a file below /usr, which is in it for this machine alone."""
    upper, work = machine.folder / "upper", machine.folder / "work"
    machine.file(f"upper/{name}")
    work.mkdir()
    machine.prepare.append(f"mount -t overlay none -o lowerdir=/usr,upperdir={upper},workdir={work} /usr")


def _driver(machine: Machine, version: int = 13_000, error: int = 0, kind: int = 90) -> None:
    """Install NVIDIA's driver: its module and its library."""
    machine.file("module/nvidia/version", "580.95.05\n")
    machine.bind(machine.folder / "module", "/sys/module")
    folder = machine.folder / "driver"
    folder.mkdir()
    code = machine.file("driver.c", _DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(code)], check=True)
    machine.variables |= {"CUDA_TOLD_VERSION": str(version), "CUDA_TOLD_ERROR": str(error)}
    machine.variables |= {"CUDA_TOLD_KIND": str(kind), "LD_LIBRARY_PATH": str(folder)}


def _with(machine: Machine, *backends: str) -> None:
    """Give the build modules for these devices."""
    for backend in backends:
        (machine.programs / f"libggml-{backend}.so").touch()


def _lists(machine: Machine, device: str) -> None:
    program = machine.programs / "mesh-server"
    cpu, gpu = "device CPU cpu -", f"device {device} gpu 01"
    program.write_text(program.read_text().replace(cpu, gpu))


def _nvidia(machine: Machine, *backends: str, version: int = 13_000, error: int = 0, kind: int = 90) -> None:
    """Give a machine an NVIDIA card with its driver."""
    _card(machine, _NVIDIA)
    _nodes(machine, "nvidia0", "nvidiactl")
    _driver(machine, version, error, kind)
    _with(machine, *backends)


def _amd(machine: Machine) -> None:
    """Give a machine a card of AMD, and a build for it."""
    _card(machine, _AMD)
    _with(machine, "vulkan")


@breaks(GpuKind.GPU_UNKNOWN)
def _python_gone(machine: Machine) -> None:
    """The Python that runs doctor was replaced, as by an upgrade, so that it cannot start again."""
    machine.front += ["bash", "-c", 'exec -a /gone/python "$@"', "bash"]
    machine.python = str(Path(sys.executable).resolve())


@breaks(GpuKind.GPU_NOT_IN_CONTAINER)
def _container_without_nvidia(machine: Machine) -> None:
    _card(machine, _NVIDIA)
    machine.variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"


@breaks(GpuKind.GPU_WITHOUT_DRIVER)
def _no_driver(machine: Machine) -> None:
    machine.out_of_container()
    _card(machine, _NVIDIA)


@breaks(GpuKind.GPU_CLOSED)
def _closed_card(machine: Machine) -> None:
    _card(machine, _NVIDIA)
    _nodes(machine, "nvidia0", mode=0o600)
    _driver(machine)
    machine.as_user()


@breaks(GpuKind.GPU_HIDDEN)
def _hidden_card(machine: Machine) -> None:
    _nvidia(machine, "cuda", kind=0)
    machine.variables["CUDA_VISIBLE_DEVICES"] = "-1"


@breaks(GpuKind.GPU_SILENT_IN_WSL)
def _old_driver_of_windows(machine: Machine) -> None:
    machine.out_of_container()
    _nodes(machine, "dxg")
    _below_usr(machine, "lib/wsl/lib/libcuda.so.1")


@breaks(GpuKind.GPU_DRIVER_INCOMPLETE)
def _no_library_of_the_driver(machine: Machine) -> None:
    machine.out_of_container()
    _nvidia(machine, "cuda")
    shutil.rmtree(machine.folder / "driver")


@breaks(GpuKind.GPU_DRIVER_CHANGED)
def _driver_upgraded(machine: Machine) -> None:
    _nvidia(machine, "cuda", error=803)


@breaks(GpuKind.GPU_DRIVER_FAILS)
def _driver_that_fails(machine: Machine) -> None:
    _nvidia(machine, "cuda", error=999)


@breaks(GpuKind.GPU_OLD)
def _pascal(machine: Machine) -> None:
    _nvidia(machine, "cuda", kind=61)


@breaks(GpuKind.GPU_OLD_ON_VULKAN)
def _pascal_on_vulkan(machine: Machine) -> None:
    _nvidia(machine, "cuda", "vulkan", kind=61)
    _lists(machine, "Vulkan0")


@breaks(GpuKind.GPU_DRIVER_OLD)
def _old_driver(machine: Machine) -> None:
    _nvidia(machine, "cuda", version=12_020)


@breaks(GpuKind.GPU_DRIVER_OLD_IN_WSL)
def _old_driver_in_wsl(machine: Machine) -> None:
    _nodes(machine, "dxg")
    _driver(machine, version=12_020)


@breaks(GpuKind.GPU_WITHOUT_CUDA)
def _build_without_cuda(machine: Machine) -> None:
    _nvidia(machine)


@breaks(GpuKind.GPU_THROUGH_VULKAN)
def _build_with_vulkan(machine: Machine) -> None:
    _nvidia(machine, "vulkan")
    _lists(machine, "Vulkan0")


@breaks(GpuKind.GPU_SILENT_ON_VULKAN)
def _server_without_x11(machine: Machine) -> None:
    _nvidia(machine, "vulkan")
    _below_usr(machine, "share/vulkan/icd.d/nvidia_icd.json")


@breaks(GpuKind.GPU_NOT_LISTED)
def _build_that_shows_none(machine: Machine) -> None:
    _nvidia(machine, "cuda")


@breaks(GpuKind.RENDER_NODE_MISSING)
def _amd_without_driver(machine: Machine) -> None:
    machine.out_of_container()
    _amd(machine)


@breaks(GpuKind.RENDER_NODE_NOT_IN_CONTAINER)
def _container_without_amd(machine: Machine) -> None:
    _amd(machine)
    machine.variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"


@breaks(GpuKind.RENDER_NODE_CLOSED)
def _not_in_the_group(machine: Machine) -> None:
    _amd(machine)
    _nodes(machine, "dri/renderD128", mode=0o660)
    machine.as_user()


@breaks(GpuKind.VULKAN_FILE_MISSING)
def _variable_of_an_old_driver(machine: Machine) -> None:
    _amd(machine)
    _nodes(machine, "dri/renderD128")
    machine.variables["VK_DRIVER_FILES"] = "/opt/gone/icd.json"


@breaks(GpuKind.VULKAN_HIDDEN)
def _hidden_from_vulkan(machine: Machine) -> None:
    _amd(machine)
    _nodes(machine, "dri/renderD128")
    machine.variables["GGML_VK_VISIBLE_DEVICES"] = "7"


@breaks(GpuKind.VULKAN_WITHOUT_DRIVER)
def _no_mesa(machine: Machine) -> None:
    machine.out_of_container()
    _amd(machine)
    _nodes(machine, "dri/renderD128")


@breaks(GpuKind.VULKAN_SILENT)
def _mesa_without_its_libraries(machine: Machine) -> None:
    _amd(machine)
    _nodes(machine, "dri/renderD128")
    _below_usr(machine, "share/vulkan/icd.d/radeon_icd.x86_64.json")


@breaks(GpuKind.VULKAN_NOT_IN_IMAGE)
def _image_without_mesa(machine: Machine) -> None:
    _amd(machine)
    _nodes(machine, "dri/renderD128")
    machine.variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
