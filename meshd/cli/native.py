"""Build llama.cpp for this machine, at a pinned commit with meshd's patches, or show the build.

`build` needs a C++ compiler, cmake and ninja; the last two come with meshd[build] or from your system. An
existing build is kept.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.base.errors import UsageError, UserError
from meshd.cli.options import Arguments, Parser
from meshd.cli.output import Json, Output
from meshd.config import load

if TYPE_CHECKING:  # the modules cost time to import, and `--help` needs none of them
    from meshd.build.interface import BuildProgress, NativeInfo

_BACKENDS = ("auto", "cpu", "metal", "cuda", "vulkan", "hip")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`build` and `info`."""
    below = parser.add_subparsers(dest="action", metavar="build | info", required=True, parser_class=Parser)
    building = below.add_parser(
        "build", description="Build llama.cpp, unless the cache already has this build."
    )
    _add_backend(building)
    building.add_argument("--source", metavar="DIR", help="llama.cpp source tree at the pinned commit")
    building.add_argument("--tools", action="store_true", help="also build llama-quantize")
    _add_mesh(building)
    building.add_argument("--json", action="store_true", help="print JSON, for scripts")
    informing = below.add_parser(
        "info", description="Show commit, patches, backend and binaries of the build."
    )
    _add_backend(informing)
    _add_mesh(informing)
    informing.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=_BACKENDS,
        default="auto",
        metavar="B",
        help=f"what to compute on: {', '.join(_BACKENDS)} (default: auto)",
    )


def _add_mesh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mesh",
        action="store_true",
        help="llama.cpp without patches, and the programs for --native-protocol mesh (experimental)",
    )


def run(args: Arguments, out: Output) -> int:
    """Foreground work, without a daemon."""
    paths = load().config.paths
    if args.mesh and args.action == "build" and args.tools:
        raise UsageError("`--mesh` has no tools", hint="omit --tools")
    if args.action == "build":
        source = Path(args.source).expanduser() if args.source else None
        info = _build(paths.cache, args, source, out)
    else:
        info = (
            _find_mesh(paths.cache, args.backend, paths.native_bin)
            if args.mesh
            else _find(paths.cache, args.backend, paths.native_bin)
        )
    if args.json:
        out.json(to_json(info))
    else:
        out.line(f"pin       {info.pin}")
        out.line(f"patches   {info.patches_sha256}")
        out.line(f"backend   {info.backend}")
        out.line(f"binaries  {info.bin_dir}")
        for name, path in sorted(info.binaries.items()):
            out.line(f"  {name:<14}  {path.name if path.parent == info.bin_dir else path}")
    return 0


def _build(cache: Path, args: Arguments, source: Path | None, out: Output) -> "NativeInfo":
    import asyncio

    from meshd.build import mesh, native

    def show(progress: "BuildProgress") -> None:
        share = progress.done / progress.total if progress.total else None
        out.progress(f"{progress.stage}: {progress.text}" if progress.text else str(progress.stage), share)

    if args.mesh:
        return asyncio.run(mesh.build(cache, backend=args.backend, source=source, progress=show))
    return asyncio.run(
        native.build(cache, backend=args.backend, source=source, tools=args.tools, progress=show)
    )


def _find_mesh(cache: Path, backend: str, native_bin: Path | None) -> "NativeInfo":
    from meshd.build import mesh
    from meshd.build.machine import how_to_build

    found = mesh.read_bin_dir(native_bin, cache) if native_bin is not None else mesh.find(cache, backend)
    if found is None:
        raise UserError(f"meshd's own backend is not built in `{cache}`", hint=how_to_build("--mesh"))
    return found


def _find(cache: Path, backend: str, native_bin: Path | None) -> "NativeInfo":
    from meshd.build.machine import how_to_build
    from meshd.build.native import find, read_bin_dir

    if native_bin is not None:
        return read_bin_dir(native_bin)
    found = find(cache, backend)
    if found is None:
        raise UserError(
            f"there is no native build for `{backend}` in `{cache}`",
            hint=how_to_build(),
        )
    return found


def to_json(info: "NativeInfo") -> Json:
    """As docs/cli.md has it."""
    return {
        "pin": info.pin,
        "patches_sha256": info.patches_sha256,
        "backend": info.backend,
        "bin_dir": str(info.bin_dir),
        "binaries": {name: str(path) for name, path in sorted(info.binaries.items())},
    }
