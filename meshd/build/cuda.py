"""CUDA from wheels: NVIDIA's packages to build with, and meshd-native-cuda13 in place of a build.

NVIDIA's packages from PyPI, installed with `meshd[cuda-build]`, replace a CUDA toolkit. They share a folder,
`nvidia/cu13`, which lacks what compilers and CMake expect of a toolkit: `lib64`, libraries by their names
without a version, and something to link against where there is no driver. `make_toolkit` makes a folder of
links that has all of it. Programs find their libraries through it, too, so it lies beside the builds.
"""

import asyncio
import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.machine import CUDA_EXTRA, CUDA_IN_PACKAGE, find_nvcc, find_packages, packaged_as
from meshd.build.pin import read_pin
from meshd.build.run import Result, run
from meshd.build.wheel import installed_wheel

_NAME = "cuda"  # in the cache
# one file of each package
NEEDED_PARTS = (
    "bin/nvcc",
    "bin/crt/link.stub",
    "nvvm/bin/cicc",
    "include/cuda.h",
    "include/cublas_v2.h",
    "include/cccl/cub/cub.cuh",
    "lib/libcudart.so.13",
    "lib/libcublas.so.13",
    "lib/libnvrtc.so.13",
)
_FUNCTIONS = re.compile(r"\bcu[A-Z]\w*")
_VERSIONED = re.compile(r"(lib\w+\.so)\.\d+")
NAME = "cuda13"
_FILE = f"meshd_native_{NAME}-{__version__}-*.whl"


def toolkit_in(native: Path) -> Path:
    """Return where the folder of links is, in the cache's folder of builds."""
    return native / _NAME


async def make_toolkit(packages: Path, native: Path, log: Path) -> Path:
    """Make the folder of links in `native` anew; return it. Raises UserError and OSError."""
    lacking = [name for name in NEEDED_PARTS if not (packages / name).exists()]
    if lacking:
        raise UserError(f"NVIDIA's packages in `{packages}` lack {', '.join(lacking)}", hint=CUDA_EXTRA)
    place, part = toolkit_in(native), toolkit_in(native).with_suffix(".part")
    await asyncio.to_thread(_link, packages, part)
    # What programs are linked against; they load the driver's library, which has the same name.
    names = sorted(set(_FUNCTIONS.findall((packages / "include/cuda.h").read_text("utf-8"))))
    source = part / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 1; }}\n" for name in names), "utf-8")
    compiler = os.environ.get("CC", "").split() or [shutil.which("cc") or shutil.which("gcc") or "clang"]
    library = str(part / "lib/stubs/libcuda.so")
    argv = [*compiler, "-shared", "-fPIC", "-w", "-fno-builtin", "-Wl,-soname,libcuda.so.1", "-o", library]
    result = await run([*argv, str(source)], env=os.environ, folder=part, log=log)
    if result.code != 0:
        raise UserError(f"`{compiler[0]}` cannot make a library", hint="\n".join(result.tail))
    await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    part.replace(place)
    return place


async def mend_toolkit(native: Path, log: Path) -> None:
    """Make the folder of links anew if there is one that leads nowhere. Raises UserError and OSError.

    Then the environment with the packages was removed, and programs built with them do not start.
    """
    place = toolkit_in(native)
    if not place.is_dir() or (place / "lib/libcublas.so").exists():
        return
    packages = find_packages()
    if packages is None and find_nvcc() is not None:
        await asyncio.to_thread(_forget, native)  # a toolkit is there now
        return
    if packages is None:
        raise UserError("the build for CUDA needs NVIDIA's libraries, which were removed", hint=CUDA_EXTRA)
    await make_toolkit(packages, native, log)


def _forget(native: Path) -> None:
    """Remove the folder of links, and the builds that may need it."""
    for folder in (toolkit_in(native), *native.glob("*-cuda-*")):
        shutil.rmtree(folder, ignore_errors=True)


def _link(packages: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    (place / "lib/stubs").mkdir(parents=True)
    (place / "bin").mkdir()
    (place / "lib64").symlink_to("lib")
    for name in ("include", "nvvm"):
        (place / name).symlink_to(packages / name)
    for folder in ("bin", "lib"):  # nvcc looks for its parts beside the link by which it is called
        for file in (packages / folder).iterdir():
            (place / folder / file.name).symlink_to(file)
            if found := _VERSIONED.fullmatch(file.name):
                (place / folder / found[1]).symlink_to(file.name)


async def add_cuda(folder: Path, progress: ProgressCallback) -> Path:
    """Install meshd-native-cuda13 from a folder of wheels into the environment of this meshd.

    Our wheel is installed by its file: no index is asked for it, as nobody can say whose package an index has
    by that name. NVIDIA's libraries come from the same folder, or else from the index that pip or uv uses.
    Returns the folder of programs that has the module now. Raises UserError.
    """
    if (package := packaged_as()) is not None:
        raise UserError(
            f"nothing can be added to this meshd: it is from a package ({package}), and has no pip",
            hint=CUDA_IN_PACKAGE[package],
        )
    wheel = installed_wheel()
    if wheel is None:
        raise UserError(
            "there is no meshd-native here, whose programs load the module",
            hint="install the file meshd_native-*.whl first; a compiled build gets CUDA with `meshd native "
            "build --backend cuda`",
        )
    file = wheel_in(folder)
    progress(BuildProgress(Stage.UNPACK, f"installing {file.name}"))
    for offline in (True, False):  # the folder may have everything
        result = await _install(file, folder, offline=offline)
        if result.code == 0:
            break
        progress(BuildProgress(Stage.FETCH, "downloading NVIDIA's libraries (about 520 MB)"))
    if result.code != 0:
        shown = "\n".join(line for line in result.tail if "WARNING" not in line)
        raise UserError(f"`{file.name}` could not be installed", hint=_advice(folder, shown))
    wheel = installed_wheel()
    fault = "it is not found" if wheel is None or wheel.cuda is None else wheel.fault(read_pin())
    if wheel is None or fault:
        raise UserError(
            f"`{file.name}` was installed and cannot be used: {fault}", hint="install both wheels again"
        )
    return wheel.bin_dir


def wheel_in(folder: Path) -> Path:
    """Return the wheel in the folder, whole. Raises UserError."""
    if not folder.is_dir():
        raise UserError(f"there is no directory `{folder}`", hint="name the directory with the wheels")
    files = sorted(file for file in folder.glob(_FILE) if platform.machine() in file.name)
    if not files:
        there = sorted(file.name for file in folder.glob("meshd_native_*.whl"))
        has = f"; it has {', '.join(there)}" if there else ""
        raise UserError(
            f"`{folder}` has no `{_FILE}` for {platform.machine()}{has}",
            hint=f"take the file of meshd {__version__} from where you got meshd's wheel",
        )
    try:
        with zipfile.ZipFile(files[-1]) as archive:
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        damaged = str(error)
    if damaged is not None:
        raise UserError(f"`{files[-1]}` is not whole: {damaged}", hint="download or copy it again")
    return files[-1]


async def _install(file: Path, folder: Path, *, offline: bool) -> Result:
    options = ["--quiet", "--find-links", str(folder), *(["--no-index"] if offline else []), str(file)]
    with tempfile.TemporaryDirectory(prefix="meshd-add-") as work:
        return await run([*installer(), *options], env=os.environ, folder=Path(work), log=Path(work) / "log")


def installer() -> Sequence[str]:
    """Return the command that installs into this environment: uv's have no pip. Raises UserError."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input")
    if (uv := shutil.which("uv")) is not None:
        return (uv, "pip", "install", "--python", sys.executable)
    raise UserError(
        "this Python has no pip, and there is no `uv`",
        hint=f"install `uv`, or run `{sys.executable} -m ensurepip`",
    )


def _advice(folder: Path, tail: str) -> str:
    return (
        f"without network, put the wheels of nvidia-cublas, nvidia-cuda-nvrtc and nvidia-cuda-runtime into "
        f"`{folder}`; the last lines:\n{tail}"
    )
