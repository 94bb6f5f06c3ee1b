"""Build meshd-native, portable programs for those who have no compiler.

The wheel is written to dist/. What it is made of stays in build/native-wheel, so that the next one compiles
only what differs. docs/decisions/0075 has the reasons.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.compile import compile_tree
from meshd.build.interface import BuildProgress
from meshd.build.machine import find_tool
from meshd.build.pin import Pin, mesh_sources, read_pin
from meshd.build.tree import Tree, renew
from meshd.build.wheel import PACKAGE
from meshd.config.tree import find_cache

from wheels.archive import EARLIEST, Entry, Name, pack
from wheels.audit import audit
from wheels.compiler import GLIBC, MACHINES, Zig, find_zig, write_tools
from wheels.parts import Part, bill, compiler_parts, upstream_parts, vulkan_parts
from wheels.vulkan import LOADER, MODULE, Vulkan, unpack_vulkan

ROOT = Path(__file__).resolve().parents[1]
NAME = "meshd-native"
PROGRAMS = (*native.UPSTREAM_PROGRAMS, *native.OUR_PROGRAMS)
_TARGETS = ("llama-server", "ggml-rpc-server", "llama-bench", "mesh-server", "ggml-mesh")
_FLAGS = (
    "-DGGML_OPENMP=OFF",  # its library would have to come along; ggml has threads of its own
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    "-DGGML_VULKAN=OFF",  # unless options of wheels/vulkan.py follow
    "-DGGML_CCACHE=OFF",
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",  # wheels have no links: one file for each library
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)
_STRIPPED = tuple(f"-DCMAKE_{kind}_LINKER_FLAGS=-s" for kind in ("EXE", "SHARED", "MODULE"))
_INIT = '"""Programs of meshd: it finds them by `stamp.json` beside this file."""\n'
_METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: The native programs of meshd, built for most Linux systems
License-Expression: MIT AND BSD-2-Clause AND Unlicense AND Apache-2.0 AND Apache-2.0 WITH LLVM-exception
{licences}Requires-Python: >=3.11

llama.cpp {release} ({commit}) and meshd's backend for it, for glibc {glibc} or later. meshd of the same
version finds it. The folder `sboms` beside this file lists what is in it.
"""


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wheels", description=__doc__)
    parser.add_argument("--bin-dir", type=Path, help="pack what is there, and compile nothing")
    parser.add_argument(
        "--vulkan", type=Path, metavar="DIR", help="packages of Debian to compile Vulkan with"
    )
    parser.add_argument(
        "--machine",
        choices=MACHINES,
        default=platform.machine(),
        help="the kind of processor to build for: this machine's, or another, without Vulkan",
    )
    parser.add_argument("--build", type=Path, help="where to compile")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    build = asked.build or ROOT / build_folder(asked.machine)
    try:
        place = asyncio.run(make(Tree(build), asked.out, asked.machine, asked.bin_dir, asked.vulkan))
        sys.stdout.write(audit(place))
    except UserError as error:
        sys.stderr.write(f"error: {error.what}\nhint: {error.hint}\n")
        return 1
    sys.stdout.write(f"{place} {place.stat().st_size / 1e6:.1f} MB\n")
    return 0


def build_folder(machine: str) -> str:
    """Return where programs for `machine` are compiled, below the checkout."""
    return "build/native-wheel" if machine == platform.machine() else f"build/native-wheel-{machine}"


def tag_of(machine: str) -> str:
    """Return the tag of a wheel for `machine`."""
    return f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{machine}"


async def make(tree: Tree, out: Path, machine: str, bin_dir: Path | None, packages: Path | None) -> Path:
    """Compile what is missing and write the wheel; with Vulkan if there are `packages`. Raises UserError."""
    if packages is not None and machine != platform.machine():
        raise UserError(
            f"cannot compile Vulkan for {machine} on {platform.machine()}",
            hint="omit --vulkan, or build there",
        )
    pin, zig = read_pin(), find_zig()
    tree.folder.mkdir(parents=True, exist_ok=True)
    await native.fill(tree, pin, find_cache(os.environ), None, told)
    parts = [*upstream_parts(tree.source, pin), *compiler_parts(zig.folder, zig.version)]
    vulkan = unpack_vulkan(packages, tree.folder / "vulkan") if packages is not None else None
    if vulkan is not None:
        parts += vulkan_parts(vulkan.source, vulkan.version)
    if bin_dir is None:
        await _compile(tree, pin, zig, machine, vulkan)
        bin_dir = tree.build / "bin"
    name = Name(PACKAGE, __version__, tag_of(machine))
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST))
    programs = read_programs(bin_dir, vulkan=vulkan is not None)
    return pack(out, name, files_of(programs, parts, pin, name), epoch=epoch)


async def _compile(tree: Tree, pin: Pin, zig: Zig, machine: str, vulkan: Vulkan | None) -> None:
    renew(tree.ours, mesh_sources())
    # assertions have the names of their files; zig's own checks are for programs that are not finished; debug
    # information, which zig writes unless told otherwise, would be dropped by the linker
    same = f"-ffile-prefix-map={tree.folder}=. -fno-sanitize=undefined -g0"
    caches = {f"ZIG_{kind}_CACHE_DIR": str(tree.folder / "zig") for kind in ("GLOBAL", "LOCAL")}
    # no git: it would find the commit of whatever repository the tree lies in
    os.environ.update({**caches, "GIT_DIR": "/nonexistent"})
    # the generator of shaders' code, which CMake builds on its own, is compiled by the same tools
    os.environ.update(CC=str(tree.folder / "tools/cc"), CXX=str(tree.folder / "tools/c++"))
    os.environ["PATH"] = f"{Path(find_tool('ninja')).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(EARLIEST))
    tools = [
        *write_tools(zig, tree.folder / "tools", machine),
        *_STRIPPED,
        f"-DCMAKE_C_FLAGS={same}",
        f"-DCMAKE_CXX_FLAGS={same}",
    ]
    flags = [
        *_FLAGS,
        *tools,
        f"-DLLAMA_BUILD_COMMIT={pin.commit[:9]}",
        f"-DCMAKE_PROJECT_INCLUDE={ROOT / 'wheels/portable.cmake'}",
        f"-DMESH_INJECT={tree.ours / 'inject.cmake'}",
    ]
    if vulkan is not None:
        loader = await vulkan.compile_loader(tools, tree.log, told)
        flags += vulkan.module_flags(loader)
    await compile_tree(tree, backend="cpu", targets=_TARGETS, progress=told, flags=flags)
    if vulkan is not None:
        shutil.copyfile(loader, tree.build / "bin" / LOADER)


def read_programs(bin_dir: Path, *, vulkan: bool = False) -> dict[str, bytes]:
    """Return programs and libraries by name. Raises UserError if one is not there."""
    ours = {*PROGRAMS, *((MODULE, LOADER) if vulkan else ())}
    libraries = {path.name for path in bin_dir.glob("libggml*.so")} - {MODULE}
    lacking = sorted(name for name in ours if not (bin_dir / name).is_file())
    if lacking:
        raise UserError(f"`{bin_dir}` lacks {', '.join(lacking)}", hint="omit --bin-dir to compile them")
    return {name: (bin_dir / name).read_bytes() for name in sorted(ours | libraries)}


def files_of(programs: dict[str, bytes], parts: list[Part], pin: Pin, name: Name) -> dict[str, Entry]:
    """Return all files of the wheel but those that `pack` makes."""
    stamp = {
        "commit": pin.commit,
        "sources": pin.sources_sha256,
        "backend": "cpu",
        "binaries": {file: len(content) for file, content in sorted(programs.items())},
    }
    licences = {f"{part.name}.txt": part.text for part in parts}
    licences["meshd.txt"] = (ROOT / "LICENSE").read_text("utf-8")
    metadata = _METADATA.format(
        name=NAME,
        version=name.version,
        licences="".join(f"License-File: {file}\n" for file in sorted(licences)),
        release=pin.release,
        commit=pin.commit[:9],
        glibc=GLIBC,
    )
    inside = {f"{PACKAGE}/bin/{file}": content for file, content in programs.items()}
    texts = {
        f"{PACKAGE}/__init__.py": _INIT,
        f"{PACKAGE}/stamp.json": json.dumps(stamp, indent=1) + "\n",
        f"{name.info}/METADATA": metadata,
        f"{name.info}/sboms/{NAME}.cdx.json": bill(NAME, name.version, parts, inside, pin),
        **{f"{name.info}/licenses/{file}": text for file, text in licences.items()},
    }
    return {
        **{path: Entry(content, executable=True) for path, content in inside.items()},
        **{path: Entry(text.encode()) for path, text in texts.items()},
    }


def told(progress: BuildProgress) -> None:
    """Print the progress of a build."""
    if not progress.total or progress.done % 20 == 0:
        sys.stdout.write(f"{progress.done}/{progress.total} {progress.text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
