"""Build meshd-native-cuda13, the module for CUDA that goes into the folder of meshd-native's programs.

Needs NVIDIA's compiler (`pip install '.[cuda-build]'`, or a toolkit 13) and GCC: NVIDIA's headers refuse
zig's C++ library. CUDAARCHS, if set, names other kinds of GPU. The wheel is written to dist/;
docs/decisions/0075 has the reasons.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from meshd import __version__
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.compile import compile_tree
from meshd.build.pin import Pin, read_pin
from meshd.build.tree import Tree
from meshd.build.wheel import CUDA_MODULE, CUDA_STAMP, PACKAGE
from meshd.config.tree import find_cache

from wheels.__main__ import ROOT, told
from wheels.archive import EARLIEST, Entry, Name, pack
from wheels.parts import Part, bill

NAME = "meshd-native-cuda13"
# Machine code for Turing to Blackwell (RTX 20 to 50, T4 to H200), and PTX for all others that are newer:
# Hopper's, as upstream makes of 120 what only that kind can run.
ARCHITECTURES = "75-real;80-real;86-real;89-real;90;120-real"
# The libraries of the toolkit that compiles it, for the oldest driver of that version
_REQUIRED = ("nvidia-cublas>=13.0,<13.2", "nvidia-cuda-runtime>=13.0,<13.1")
_FLAGS = (
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DGGML_CCACHE=OFF",
    "-DGGML_CUDA_NCCL=OFF",  # its library would be another 300 MB
    "-DGGML_CUDA_COMPRESSION_MODE=size",
    "-DCMAKE_CUDA_RUNTIME_LIBRARY=Shared",
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../../nvidia/cu13/lib",  # where pip puts NVIDIA's libraries
    # no exception crosses the module, so it may have a C++ library of its own; see portable_targets.cmake
    "-DCMAKE_MODULE_LINKER_FLAGS=-s -static-libstdc++ -static-libgcc"
    " -Wl,--as-needed,-z,nodelete,-z,defs,--exclude-libs,ALL",
    # a compiler that has only a static C++ library puts it into libggml-base.so as well, and the module would
    # take it from there, where meshd-native's has none
    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--exclude-libs,ALL",
)
_ARCHITECTURE = re.compile(r"(\d+)([af]?)(-real)?")  # others: native, all, and those without machine code
_GLIBC = re.compile(rb"\0GLIBC_2\.(\d+)")
_LIBRARY = re.compile(rb"(?<=\0)lib[\w+-]+\.so[.\d]*(?=\0)")
_BESIDE = {"libggml-base.so", "libcudart.so.13", "libcublas.so.13", "libcuda.so.1"}
_OF_GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
_METADATA = """Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: CUDA 13 for the native programs of meshd
License-Expression: MIT AND GPL-3.0-or-later WITH GCC-exception-3.1
License-File: llama.cpp.txt
Requires-Python: >=3.11
{required}
ggml's module for NVIDIA GPUs of compute capability 7.5 or later, of llama.cpp {release} ({commit}), for
drivers 580 or later. It is loaded by the programs of meshd-native, whose folder it shares.
"""


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m wheels.cuda", description=__doc__)
    parser.add_argument("--module", type=Path, metavar="FILE", help="pack this one, and compile nothing")
    parser.add_argument("--build", type=Path, default=ROOT / "build/native-cuda13", help="where to compile")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    try:
        place = asyncio.run(_make(Tree(asked.build), asked.out, asked.module))
    except UserError as error:
        sys.stderr.write(f"error: {error.what}\nhint: {error.hint}\n")
        return 1
    sys.stdout.write(f"{place} {place.stat().st_size / 1e6:.1f} MB\n")
    return 0


async def _make(tree: Tree, out: Path, module: Path | None) -> Path:
    pin = read_pin()
    tree.folder.mkdir(parents=True, exist_ok=True)
    await native.fill(tree, pin, find_cache(os.environ), None, told)
    if module is None:
        os.environ.setdefault("CUDAARCHS", ARCHITECTURES)
        os.environ.setdefault("SOURCE_DATE_EPOCH", str(EARLIEST))
        same = f"-ffile-prefix-map={tree.folder}=."
        flags = [*_FLAGS, f"-DCMAKE_CXX_FLAGS={same}", f"-DCMAKE_CUDA_FLAGS=-Xcompiler {same}"]
        await compile_tree(tree, backend="cuda", targets=("ggml-cuda",), progress=told, flags=flags)
        module = tree.build / "bin" / CUDA_MODULE
    licence = (tree.source / "LICENSE").read_text("utf-8")
    kinds = machine_code(os.environ.get("CUDAARCHS", ""))  # of a module that others made, nothing is known
    return pack_module(module.read_bytes(), licence, pin, out, kinds=kinds)


def machine_code(architectures: str) -> list[str]:
    """Return those for which there will be machine code; upstream turns 12.x into what runs on it alone."""
    found = map(_ARCHITECTURE.fullmatch, architectures.split(";"))
    return [
        one[1] + (one[2] or ("a" if re.match("12.$", one[1]) else "")) for one in found if one is not None
    ]


def pack_module(module: bytes, licence: str, pin: Pin, out: Path, *, kinds: Sequence[str] = ()) -> Path:
    """Write the wheel of this module, with machine code for these `kinds` of GPU, if known.

    Raises UserError if it needs libraries that will not be there.
    """
    found = {name.decode() for name in _LIBRARY.findall(module)}
    odd = sorted(found - _BESIDE - _OF_GLIBC - {CUDA_MODULE, "ld-linux-x86-64.so.2"})
    if odd or not found >= _BESIDE:
        what = f"needs {', '.join(odd)}" if odd else f"does not need {', '.join(sorted(_BESIDE - found))}"
        raise UserError(f"the module {what}", hint="build it with `python -m wheels.cuda`, without --module")
    glibc = max([28, *(int(minor) for minor in _GLIBC.findall(module))])  # 28: meshd-native's
    name = Name("meshd_native_cuda13", __version__, f"py3-none-manylinux_2_{glibc}_{platform.machine()}")
    stamp = {"commit": pin.commit, "machine_code": list(kinds), "binaries": {CUDA_MODULE: len(module)}}
    path = f"{PACKAGE}/bin/{CUDA_MODULE}"
    metadata = _METADATA.format(
        name=NAME,
        version=__version__,
        required="".join(f"Requires-Dist: {one}\n" for one in _REQUIRED),
        release=pin.release,
        commit=pin.commit[:9],
    )
    purl = f"pkg:github/ggml-org/llama.cpp@{pin.commit}"
    parts = [
        Part("llama.cpp", pin.release, pin.license, licence, purl),
        Part("libstdc++", "", "GPL-3.0-or-later WITH GCC-exception-3.1", ""),
    ]
    texts = {
        f"{PACKAGE}/{CUDA_STAMP}": json.dumps(stamp, indent=1) + "\n",
        f"{name.info}/METADATA": metadata,
        f"{name.info}/sboms/{NAME}.cdx.json": bill(NAME, __version__, parts, {path: module}, pin),
        f"{name.info}/licenses/llama.cpp.txt": licence,
    }
    files = {file: Entry(text.encode()) for file, text in texts.items()}
    files[path] = Entry(module, executable=True)
    return pack(out, name, files, epoch=int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST)))


if __name__ == "__main__":
    sys.exit(main())
