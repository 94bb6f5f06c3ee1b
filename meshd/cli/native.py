"""Build llama.cpp at a pinned commit and meshd's backend for it, show the build, or add CUDA to meshd-native.

`build` needs a C++ compiler, cmake and ninja; the last two come with meshd[build] or from your system. An
existing build is kept. `add cuda13` installs a wheel of programs for NVIDIA GPUs from a directory.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.files import expanded
from meshd.build.interface import BACKENDS, MESH_PROGRAM, NAME_IN_SCRIPTS
from meshd.cli.options import Arguments, Parser, add_config_file, load_role
from meshd.cli.output import Json, Output
from meshd.config.tree import Paths
from meshd.wire.versions import UNKNOWN

if TYPE_CHECKING:  # the modules cost time to import, and `--help` needs none of them
    from meshd.build.interface import BuildProgress, NativeInfo, ProgressCallback

_BACKENDS = ("auto", *BACKENDS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `build`, `info` and `add`."""
    below = parser.add_subparsers(
        dest="action", metavar="build | info | add", required=True, parser_class=Parser
    )
    building = below.add_parser("build", description="Build what the cache lacks.")
    _add_backend(building)
    building.add_argument("--source", metavar="DIR", help="llama.cpp source tree at the pinned commit")
    add_config_file(building)
    building.add_argument("--json", action="store_true", help="print JSON, for scripts")
    informing = below.add_parser(
        "info", description="Show commit, sources, backend and binaries of the build."
    )
    _add_backend(informing)
    add_config_file(informing)
    informing.add_argument("--json", action="store_true", help="print JSON, for scripts")
    adding = below.add_parser("add", description="Install meshd-native-cuda13 beside meshd-native.")
    adding.add_argument("what", choices=("cuda13",), help="CUDA 13, for NVIDIA GPUs with driver 580 or later")
    adding.add_argument(
        "--from",
        dest="folder",
        metavar="DIR",
        required=True,
        help="directory with the wheel, by its file name",
    )


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=_BACKENDS,
        default="auto",
        metavar="B",
        help=f"what to compute on: {', '.join(_BACKENDS)} (default: auto)",
    )


def run(args: Arguments, out: Output) -> int:
    """Build or find, in the foreground, without a daemon."""
    if args.action == "add":
        return _add(args, out)
    paths = load_role(args, "worker").config.paths
    info = _build(paths.cache, args, out) if args.action == "build" else _find(paths, args.backend)
    if args.json:
        out.json(to_json(info))
    else:
        out.line(f"pin       {info.pin}")
        if info.pin == UNKNOWN:  # a directory of the user's
            out.line(f"needed    {_needed()}")
        out.line(f"sources   {info.sources_sha256}")
        out.line(f"backend   {info.backend}")
        folders = dict.fromkeys([info.bin_dir, *(path.parent for path in info.binaries.values())])
        for folder in folders:
            out.line(f"binaries  {folder}")
            out.line(
                f"          {', '.join(sorted(p.name for p in info.binaries.values() if p.parent == folder))}"
            )
    return 0


def _needed() -> str:
    from meshd.build.pin import read_pin

    return read_pin().commit


def _add(args: Arguments, out: Output) -> int:
    import asyncio

    from meshd.build.cuda import add_cuda

    place = asyncio.run(add_cuda(expanded(args.folder).absolute(), _show(out)))
    out.line(f"the programs in {place} can use CUDA now")
    out.note("`meshd doctor` must list CUDA0 as a device; then restart the node")
    return 0


def _show(out: Output) -> "ProgressCallback":
    def show(progress: "BuildProgress") -> None:
        share = progress.done / progress.total if progress.total else None
        out.progress(f"{progress.stage}: {progress.text}" if progress.text else str(progress.stage), share)

    return show


def _build(cache: Path, args: Arguments, out: Output) -> "NativeInfo":
    import asyncio

    from meshd.build.native import build

    source = expanded(args.source) if args.source else None
    return asyncio.run(build(cache, backend=args.backend, source=source, progress=_show(out)))


def _find(paths: Paths, backend: str) -> "NativeInfo":
    from meshd.build.native import find, not_built, read_bin_dir

    cache, named = paths.cache, paths.native_bin
    found = read_bin_dir(named, cache) if named else find(cache, backend)
    if found is None:
        raise not_built(f"there is no native build for `{backend}` in `{cache}`", backend)
    return found


def to_json(info: "NativeInfo") -> Mapping[str, Json]:
    """Return the fields of docs/json.md."""
    return {
        "pin": info.pin,
        "patches_sha256": info.sources_sha256,  # a name that scripts know
        "backend": info.backend,
        "bin_dir": str(info.bin_dir),
        "binaries": {name: str(path) for name, path in _binaries(info)},
    }


def _binaries(info: "NativeInfo") -> list[tuple[str, Path]]:
    """Return the binaries by name; what a worker runs also by the name that scripts know."""
    binaries = dict(info.binaries)
    if MESH_PROGRAM in binaries:
        binaries[NAME_IN_SCRIPTS] = binaries[MESH_PROGRAM]
    return sorted(binaries.items())
