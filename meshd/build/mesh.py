"""The programs of native/mesh: compiled in an untouched tree of the pin, beside a stock llama-server.

They are kept under the hash of their sources, so that a change of these compiles nothing of upstream's again.
"""

import asyncio
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build import native
from meshd.build.compile import compile_tree
from meshd.build.interface import (
    LLAMA_SERVER,
    MESH_MODULE,
    MESH_PROGRAM,
    BuildProgress,
    NativeInfo,
    ProgressCallback,
    Stage,
)
from meshd.build.machine import cpu_kind, how_to_build, need_compiler, need_tools
from meshd.build.pin import native_folder, read_pin
from meshd.build.renew import renew
from meshd.build.tree import Tree
from meshd.wire.native import STOCK_PATCHES, UNKNOWN

PROGRAMS: Mapping[str, str] = {"mesh-server": MESH_PROGRAM, "ggml-mesh": MESH_MODULE}  # targets, and files
_KEPT = 4


def find(cache: Path, backend: str = "auto") -> NativeInfo | None:
    """The finished build of the installed pin and sources, with a stock llama-server; None without either."""
    stock = native.find(cache, backend, patched=False)
    if stock is None:
        return None
    folder = folder_of(cache, stock.backend)
    return _joined(stock, folder) if _has(folder, PROGRAMS) else None


def read_bin_dir(path: Path, cache: Path, *, head: bool = True) -> NativeInfo | None:
    """A folder that the user names, and our own build for what is not in it; None where that lacks, too.

    A head needs a llama-server there. Nothing here tells what the programs are: the daemon asks them. Raises
    UserError.
    """
    path = path.absolute()
    found = native.programs_in(path)
    if head and LLAMA_SERVER not in found:
        raise native.lacks(path, LLAMA_SERVER)
    found |= {name: path / name for name in PROGRAMS.values() if (path / name).is_file()}
    needed = {MESH_PROGRAM, *((MESH_MODULE,) if head else ())}
    if not needed <= found.keys():
        own = find(cache)
        if own is None:
            return None
        found = {**{name: own.binaries[name] for name in needed}, **found}
    return NativeInfo(UNKNOWN, STOCK_PATCHES, UNKNOWN, path, found)


def not_built(cache: Path, what: str) -> UserError:
    """That something is missing, and how to get it; whoever has a patched build may go on with that."""
    hint = how_to_build()
    if native.find(cache) is not None:
        hint += "; until then `--native-protocol rpc` on all nodes uses the patched build that is there"
    return UserError(what, hint=hint)


async def build(
    cache: Path,
    *,
    backend: str = "auto",
    source: Path | None = None,
    tools: bool = False,
    progress: ProgressCallback,
) -> NativeInfo:
    """Build what is missing and return it, as `native.build`."""
    stock = await native.build(
        cache, backend=backend, source=source, tools=tools, patched=False, progress=progress
    )
    folder = await build_programs(cache, PROGRAMS, backend=stock.backend, source=source, progress=progress)
    progress(BuildProgress(Stage.DONE, f"meshd's backend is ready ({folder.name})"))
    return _joined(stock, folder)


async def build_programs(
    cache: Path,
    targets: Mapping[str, str],
    *,
    backend: str = "cpu",
    source: Path | None = None,
    progress: ProgressCallback,
) -> Path:
    """The folder with the files that these targets make. One at a time, with the other native builds."""
    folder = folder_of(cache, backend)
    if _has(folder, targets):
        return folder
    with builds.explained_disk_errors(cache):
        async with builds.locked(cache / "native" / "lock", progress):
            if not _has(folder, targets):
                need_compiler()
                need_tools()
                tree = await untouched(cache, backend, source=source, progress=progress)
                await _compile(tree, backend, targets, progress)
                if folder_of(cache, backend) != folder:
                    raise UserError(
                        "the sources of meshd's backend changed while they were compiled", hint="run it again"
                    )
                await asyncio.to_thread(_store, tree.build / "bin", folder, targets)
    return folder


async def untouched(
    cache: Path, backend: str = "cpu", *, source: Path | None = None, progress: ProgressCallback
) -> Tree:
    """Upstream at the pin, as it is. The caller holds the lock of the native builds."""
    tree = Tree(cache / "native" / f"untouched-{backend}-{cpu_kind()}")
    await native.fill(tree, read_pin(), cache, source, progress)
    return tree


def sources() -> Path:
    """Of our programs. Raises UserError."""
    folder = native_folder() / "mesh"
    if not (folder / "inject.cmake").is_file():
        raise UserError(f"the sources of meshd's backend are missing: `{folder}`", hint="reinstall meshd")
    return folder


def folder_of(cache: Path, backend: str = "cpu") -> Path:
    """Of the build of the sources as they are now."""
    return cache / "native" / f"mesh-{_key()}-{backend}-{cpu_kind()}"


def _key() -> str:
    digest, folder = hashlib.sha256(read_pin().commit.encode()), sources()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _has(folder: Path, targets: Mapping[str, str]) -> bool:
    return all((folder / name).is_file() for name in targets.values())


def _joined(stock: NativeInfo, folder: Path) -> NativeInfo:
    return replace(stock, binaries={**stock.binaries, **{name: folder / name for name in PROGRAMS.values()}})


async def _compile(tree: Tree, backend: str, targets: Mapping[str, str], progress: ProgressCallback) -> None:
    copy = tree.folder / "mesh"  # the cache outlives any one checkout
    await asyncio.to_thread(renew, copy, sources())
    flags = [f"-DCMAKE_PROJECT_INCLUDE={copy / 'inject.cmake'}"]
    await compile_tree(tree, backend=backend, targets=list(targets), progress=progress, flags=flags)


def _store(made: Path, folder: Path, targets: Mapping[str, str]) -> None:
    """All of it or nothing, beside what is there; the builds that were made longest ago go."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if folder.is_dir():
        shutil.copytree(folder, part)
    part.mkdir(exist_ok=True)
    for name in targets.values():
        shutil.copy2(made / name, part)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    others = sorted(
        (path for path in folder.parent.glob("mesh-*") if path != folder),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for path in others[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
