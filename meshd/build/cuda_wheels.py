"""NVIDIA's compiler and libraries from PyPI, installed with `meshd[cuda-build]`, in place of a CUDA toolkit.

The packages share one folder, `nvidia/cu13`, which lacks what compilers and CMake expect of a toolkit:
`lib64`, libraries by their names without a version, and something to link against where there is no driver.
`make_toolkit` makes a folder of links that has all of it. Programs find their libraries through it, too, so
it lies beside the builds.
"""

import asyncio
import os
import re
import shutil
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.machine import CUDA_EXTRA, find_nvcc, find_packages
from meshd.build.run import run

_NAME = "cuda"  # in the cache
# one file of each package
_NEEDED = (
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


def toolkit_in(native: Path) -> Path:
    """Return where the folder of links is, in the cache's folder of builds."""
    return native / _NAME


async def make_toolkit(packages: Path, native: Path, log: Path) -> Path:
    """Make the folder of links in `native` anew; return it. Raises UserError and OSError."""
    lacking = [name for name in _NEEDED if not (packages / name).exists()]
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
