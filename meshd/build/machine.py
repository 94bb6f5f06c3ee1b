"""The properties of this machine that affect a build: kind of CPU, backends, compilers. Starts no program."""

import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.interface import BACKENDS

_PACKAGE_FILE = "packaged-as"  # Dockerfile and packaging/debian/inside write it
_CPUINFO = Path("/proc/cpuinfo")
_NVIDIA_CARDS = Path("/proc/driver/nvidia/gpus")
WSL_NODE = Path("dev/dxg")
_WSL_CUDA = Path("usr/lib/wsl/lib/libcuda.so.1")
_TOOLS = ("cmake", "ninja")
_INSTALL = (
    "in the clone run `make build`, or `pip install '.[build]'` in meshd's environment; or install your "
    "system's cmake and ninja"
)
CUDA_EXTRA = "in the clone, run `pip install '.[cuda-build]'` in meshd's environment"
# how to get CUDA into an environment without pip, by the package that it comes from
CUDA_IN_PACKAGE = {
    "deb": "make a .deb with `meshd_native_cuda13-….whl`, as packaging/README.md says; or install meshd with "
    "pipx in place of the .deb, and run `meshd native add cuda13 --from DIR`",
    "image": "build the image again, with `meshd_native_cuda13-….whl` among the wheels (docs/docker.md)",
}
GPU_PAGE = "docs/install.md#gpus lists what each kind of GPU needs"
_NAMES = {"metal": "Metal", "cuda": "CUDA", "hip": "ROCm (HIP)", "vulkan": "Vulkan"}
_ELSEWHERE = {"macOS": (("cuda", "hip"), "Metal"), "Linux": (("metal",), "CUDA, ROCm or Vulkan")}
_PACKAGES = {
    "cuda": f"NVIDIA's compiler (580 MB; {CUDA_EXTRA}) or its CUDA toolkit",
    "hip": "AMD's ROCm",
    "vulkan": "the Vulkan headers, the SPIR-V headers and `glslc`",
}
_CUDA_PLACES = (Path("/usr/local/cuda/bin/nvcc"), Path("/opt/cuda/bin/nvcc"))
# a program that each needs, variables by which CMake finds it elsewhere, and places outside of PATH
COMPILERS = {
    "cuda": ("nvcc", ("CUDACXX", "CUDA_PATH", "CUDAToolkit_ROOT"), _CUDA_PLACES),
    "hip": ("hipcc", ("ROCM_PATH", "HIP_PATH"), (Path("/opt/rocm/bin/hipcc"),)),
    "vulkan": ("glslc", ("VULKAN_SDK",), ()),
}


def packaged_as(prefix: Path = Path(sys.prefix)) -> str | None:
    """Return the kind of package that this meshd is from, a key of CUDA_IN_PACKAGE; None: from wheels."""
    try:
        name = (prefix / _PACKAGE_FILE).read_text("utf-8", "replace").strip()
    except OSError:
        return None
    return name if name in CUDA_IN_PACKAGE else None


def cpu_kind(cpuinfo: Path = _CPUINFO) -> str:
    """Return a short name for the CPU's abilities: binaries built for one kind may crash on another."""
    if sys.platform == "darwin":
        what = _sysctl("machdep.cpu.brand_string")
    else:
        what = _cpu_flags(cpuinfo)
    return hashlib.sha256(f"{platform.machine()} {what}".encode()).hexdigest()[:8]


def _cpu_flags(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    # "flags" on x86, "Features" on ARM, "isa" on RISC-V; every core has a line, and cores may differ
    found = {line for line in lines if line.split(":")[0].strip() in ("flags", "Features", "isa")}
    return "\n".join(sorted(" ".join(sorted(line.split())) for line in found))


def _sysctl(name: str) -> str:
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    size = ctypes.c_size_t(256)
    value = ctypes.create_string_buffer(size.value)
    if library.sysctlbyname(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return value.value.decode("utf-8", "replace")


def resolve_backend(backend: str) -> str:
    """Return the backend; `auto` becomes the best one that can be built here. Raises UserError for an unknown
    one.
    """
    if backend == "auto":
        if sys.platform == "darwin":
            return "metal"
        else:
            return "cuda" if (find_nvcc() or find_packages()) and has_nvidia_gpu() else "cpu"
    if backend not in BACKENDS:
        raise UserError(
            f"there is no backend `{backend}`", hint=f"choose one of: auto, {', '.join(BACKENDS)}"
        )
    return backend


def has_nvidia_gpu() -> bool:
    """Return True if the driver shows a card: the toolkit alone, as images carry it, is no reason
    for CUDA.
    """
    return any(_NVIDIA_CARDS.glob("*")) or bool(nvidia_nodes())


def nvidia_nodes(root: Path = Path("/")) -> list[Path]:
    """Return the device files of NVIDIA GPUs.

    The one of WSL2 serves GPUs of all vendors. It counts if NVIDIA's driver on Windows has put its libcuda
    into WSL2.
    """
    in_wsl = (root / WSL_NODE).exists() and (root / _WSL_CUDA).exists()
    return [*sorted(root.glob("dev/nvidia[0-9]*")), *([root / WSL_NODE] if in_wsl else [])]


def find_nvcc() -> Path | None:
    """Return the compiler of a CUDA toolkit, which is often not in PATH; None if there is none."""
    found = shutil.which("nvcc")
    if found is not None:
        return Path(found)
    return next((place for place in _CUDA_PLACES if place.is_file()), None)


def find_packages() -> Path | None:
    """Return the folder of NVIDIA's packages from PyPI beside this meshd; None without a compiler in it."""
    spec = importlib.util.find_spec("nvidia")
    places = (Path(place) / "cu13" for place in (spec and spec.submodule_search_locations) or ())
    return next((place for place in places if (place / "bin/nvcc").is_file()), None)


def need_backend(backend: str) -> None:
    """Raise UserError unless this machine has the program that a build for these devices needs first of all.

    CMake says that only at the end of a long log.
    """
    system = "macOS" if sys.platform == "darwin" else "Linux"
    foreign, usual = _ELSEWHERE[system]
    if backend in foreign:
        raise UserError(f"{_NAMES[backend]} does not exist on {system}", hint=f"use {usual}: {GPU_PAGE}")
    program, variables, places = COMPILERS.get(backend, ("", (), ()))
    found = any(os.environ.get(name) for name in variables) or any(place.is_file() for place in places)
    found = found or (backend == "cuda" and find_packages() is not None)
    if program and not found and shutil.which(program) is None:
        raise UserError(
            f"cannot build for {_NAMES[backend]}: there is no `{program}`",
            hint=f"install {_PACKAGES[backend]}: {GPU_PAGE}",
        )


def need_compiler() -> None:
    """Raise UserError that says what to install unless there is a C and a C++ compiler."""
    for variable, names in (("CC", ("cc", "gcc", "clang")), ("CXX", ("c++", "g++", "clang++"))):
        chosen = os.environ.get(variable, "").split(" ")[0]
        if any(shutil.which(name) for name in ((chosen,) if chosen else names)):
            continue
        language = "C" if variable == "CC" else "C++"
        missing = (
            f"`{chosen}`, which {variable} names, does not exist"
            if chosen
            else f"there is no {language} compiler"
        )
        raise UserError(
            f"cannot build llama.cpp: {missing}",
            hint="Debian, Ubuntu: `apt install build-essential`; Fedora: `dnf install gcc-c++`; "
            "macOS: `xcode-select --install`",
        )


def find_tool(name: str) -> str:
    """Return the path of `cmake` or `ninja`: installed with meshd[build], else in PATH. Raises UserError."""
    found = _look_for(name)
    if found is None:
        raise _lacking([name])
    return found


def need_tools() -> None:
    """Raise UserError that says what to install unless cmake and ninja are there."""
    if missing := missing_tools():
        raise _lacking(missing)


def missing_tools() -> list[str]:
    """Return those of cmake and ninja that are missing."""
    return [name for name in _TOOLS if _look_for(name) is None]


def how_to_build(backend: str = "auto") -> str:
    """Return a hint where there is no native build: what to run here, and what to install before."""
    option = "" if backend == "auto" else f" --backend {backend}"
    run = f"run `meshd native build{option}` once; it needs a C++ compiler and takes some minutes"
    return f"{_INSTALL}; then {run}" if missing_tools() else run


def _look_for(name: str) -> str | None:
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / name).is_file():
            return str(folder / name)
    return shutil.which(name)


def _lacking(names: Sequence[str]) -> UserError:
    are = "is" if len(names) == 1 else "are"
    listed = " and ".join(f"`{name}`" for name in names)
    return UserError(f"cannot build llama.cpp: {listed} {are} not installed", hint=_INSTALL)
