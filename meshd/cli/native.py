"""Build llama.cpp at a pinned commit and meshd's backend for it, or show the build.

`build` needs a C++ compiler, cmake and ninja; the last two come with meshd[build] or from your system. An
existing build is kept. With `--native-protocol rpc`: llama.cpp with meshd's patches instead.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshd.cli.options import Arguments, Parser, add_config_file, add_keys, load_role
from meshd.cli.output import Json, Output
from meshd.config import MESH, Paths

if TYPE_CHECKING:  # the modules cost time to import, and `--help` needs none of them
    from meshd.build.interface import BuildProgress, NativeInfo

UPSTREAMS = "ggml-rpc-server"  # llama.cpp's own server, where workers run another one
_BACKENDS = ("auto", "cpu", "metal", "cuda", "vulkan", "hip")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`build` and `info`."""
    below = parser.add_subparsers(dest="action", metavar="build | info", required=True, parser_class=Parser)
    building = below.add_parser("build", description="Build what the cache lacks.")
    _add_backend(building)
    building.add_argument("--source", metavar="DIR", help="llama.cpp source tree at the pinned commit")
    building.add_argument("--tools", action="store_true", help="also build llama-quantize")
    _add_protocol(building)
    building.add_argument("--json", action="store_true", help="print JSON, for scripts")
    informing = below.add_parser(
        "info", description="Show commit, patches, backend and binaries of the build."
    )
    _add_backend(informing)
    _add_protocol(informing)
    informing.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=_BACKENDS,
        default="auto",
        metavar="B",
        help=f"what to compute on: {', '.join(_BACKENDS)} (default: auto)",
    )


def _add_protocol(parser: argparse.ArgumentParser) -> None:
    add_config_file(parser)
    add_keys(parser, ("native.protocol",))


def run(args: Arguments, out: Output) -> int:
    """Foreground work, without a daemon."""
    config = load_role(args, "worker").config
    if args.action == "build":
        info = _build(config.paths.cache, args, config.native.protocol, out)
    else:
        info = _find(config.paths, args.backend, config.native.protocol)
    if args.json:
        out.json(to_json(info))
    else:
        out.line(f"pin       {info.pin}")
        out.line(f"patches   {info.patches_sha256}")
        out.line(f"backend   {info.backend}")
        out.line(f"binaries  {info.bin_dir}")
        for name, path in _binaries(info):
            out.line(f"  {name:<15}  {path.name if path.parent == info.bin_dir else path}")
    return 0


def _build(cache: Path, args: Arguments, protocol: str, out: Output) -> "NativeInfo":
    import asyncio

    from meshd.build import mesh, native

    def show(progress: "BuildProgress") -> None:
        share = progress.done / progress.total if progress.total else None
        out.progress(f"{progress.stage}: {progress.text}" if progress.text else str(progress.stage), share)

    build = mesh.build if protocol == MESH else native.build
    source = Path(args.source).expanduser() if args.source else None
    return asyncio.run(build(cache, backend=args.backend, source=source, tools=args.tools, progress=show))


def _find(paths: Paths, backend: str, protocol: str) -> "NativeInfo":
    from meshd.build import mesh, native

    found: NativeInfo | None
    cache, named = paths.cache, paths.native_bin
    if protocol == MESH:
        found = mesh.read_bin_dir(named, cache) if named else mesh.find(cache, backend)
    else:
        found = native.read_bin_dir(named) if named else native.find(cache, backend)
    if found is None:
        what = f"there is no native build for `{backend}` in `{cache}`"
        raise mesh.not_built(cache, what) if protocol == MESH else native.not_built(what)
    return found


def to_json(info: "NativeInfo") -> Json:
    """As docs/cli.md has it."""
    return {
        "pin": info.pin,
        "patches_sha256": info.patches_sha256,
        "backend": info.backend,
        "bin_dir": str(info.bin_dir),
        "binaries": {name: str(path) for name, path in _binaries(info)},
    }


def _binaries(info: "NativeInfo") -> list[tuple[str, Path]]:
    """In order of their names: `rpc-server` is what a worker runs, whatever it is called."""
    from meshd.build.interface import MESH_PROGRAM, RPC_SERVER

    binaries = dict(info.binaries)
    if MESH_PROGRAM in binaries:
        if RPC_SERVER in binaries:
            binaries[UPSTREAMS] = binaries[RPC_SERVER]
        binaries[RPC_SERVER] = binaries[MESH_PROGRAM]
    return sorted(binaries.items())
