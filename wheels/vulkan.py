"""Vulkan, for graphics cards of all vendors: Khronos' loader, and ggml's module.

Both need packages of Debian, unpacked into a folder on whatever system this is (docs/release.md):
headers, the compiler of shaders with its libraries, and the source of the loader.
"""

import os
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.compile import build_failed
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.machine import find_tool
from meshd.build.run import run

LOADER = "libvulkan.so.1"
MODULE = "libggml-vulkan.so"
_ARCHIVE = re.compile(r"vulkan-loader_(\d+\.\d+\.\d+)[.\d]*\.orig\.tar\.xz")
_NEEDED = ("usr/bin/glslc", "usr/include/vulkan/vulkan.hpp", "usr/share/cmake/SPIRV-Headers")
# No windows are opened: then it needs nothing of X11 or Wayland
_LOADER_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DSYSCONFDIR=/etc",  # where systems list their drivers; without it, where CMake installs
    *(f"-DBUILD_WSI_{system}_SUPPORT=OFF" for system in ("XCB", "XLIB", "XLIB_XRANDR", "WAYLAND")),
)
_GLSLC = """#!/bin/sh
exec '{usr}/lib64/ld-linux-x86-64.so.2' --library-path '{usr}/lib/x86_64-linux-gnu' '{usr}/bin/glslc' "$@"
"""


@dataclass(frozen=True, slots=True)
class Vulkan:
    """The packages' folder `usr`, and the loader's unpacked `source`; headers have the same version."""

    usr: Path
    source: Path
    version: str

    async def compile_loader(self, tools: Sequence[str], log: Path, progress: ProgressCallback) -> Path:
        """Compile the loader beside its source; return the library. `tools` are options of CMake.

        Raises UserError.
        """
        progress(BuildProgress(Stage.CONFIGURE, f"compiling Vulkan's loader {self.version}"))
        build, ninja = self.source.parent / "build", find_tool("ninja")
        (self.source / "loader/generated").mkdir(exist_ok=True)
        registry = self.source / "vulkan-headers/registry"
        generate = [sys.executable, "scripts/generate_source.py", str(registry)]
        configure = [
            find_tool("cmake"),
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-S",
            str(self.source),
        ]
        configure += ["-B", str(build), f"-DCMAKE_PREFIX_PATH={self.usr}", *_LOADER_FLAGS, *tools]
        for argv in (
            [*generate, "--generated-version", self.version],
            configure,
            [ninja, "-C", str(build), "vulkan"],
        ):
            result = await run(argv, env=os.environ, folder=self.source, log=log)
            if result.code != 0:
                raise build_failed("Vulkan's loader could not be compiled", log, result.tail)
        return build / "loader" / LOADER

    def module_flags(self, loader: Path) -> list[str]:
        """Write what stands for the compiler of shaders; return CMake's options for ggml's module."""
        glslc = self.source.parent / "glslc"
        glslc.write_text(_GLSLC.format(usr=self.usr), "utf-8")
        glslc.chmod(0o755)
        return [
            "-DGGML_VULKAN=ON",
            f"-DVulkan_GLSLC_EXECUTABLE={glslc}",
            f"-DVulkan_INCLUDE_DIR={self.usr / 'include'}",
            f"-DVulkan_LIBRARY={loader}",
            f"-DSPIRV-Headers_DIR={self.usr / 'share/cmake/SPIRV-Headers'}",
        ]


def unpack_vulkan(folder: Path, work: Path) -> Vulkan:
    """Check that `folder` has all of it, and unpack the loader's source into `work`. Raises UserError."""
    hint = "docs/release.md says how to fill it"
    archives = [(path, found) for path in folder.glob("*") if (found := _ARCHIVE.fullmatch(path.name))]
    lacking = [name for name in _NEEDED if not (folder / name).exists()]
    lacking += [] if archives else ["the source of vulkan-loader"]
    if lacking or len(archives) > 1:
        what = f"lacks {', '.join(lacking)}" if lacking else "has the sources of several vulkan-loaders"
        raise UserError(f"`{folder}` {what}", hint=hint)
    if (folder / "usr/include/stdio.h").exists():
        raise UserError(f"`{folder}` has the headers of a C library, and zig has its own", hint=hint)
    ((path, found),) = archives
    shutil.rmtree(work, ignore_errors=True)
    with tarfile.open(path, "r:xz") as archive:
        archive.extractall(work, filter="data")
    return Vulkan(folder.absolute() / "usr", next(work.iterdir()), found[1])
