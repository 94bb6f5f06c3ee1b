"""Find, build and describe the native binaries. Words and types: interface.py."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build.cache import BuildKey
from meshd.build.compile import compile_tree
from meshd.build.fetch import PinnedFile, fetch
from meshd.build.interface import (
    BACKENDS,
    LLAMA_BENCH,
    LLAMA_QUANTIZE,
    LLAMA_SERVER,
    RPC_SERVER,
    BuildProgress,
    NativeInfo,
    ProgressCallback,
    Stage,
)
from meshd.build.machine import cpu_kind, how_to_build, need_compiler, need_tools, resolve_backend
from meshd.build.pin import Pin, read_pin
from meshd.build.tree import Tree, check_source
from meshd.wire.native import RPC_PROTOCOL, STOCK_PATCHES, UNKNOWN

_TARGETS = {RPC_SERVER: "ggml-rpc-server", LLAMA_SERVER: "llama-server", LLAMA_BENCH: "llama-bench"}
_FILES = {
    RPC_SERVER: ("ggml-rpc-server", "rpc-server"),
    LLAMA_SERVER: ("llama-server",),
    LLAMA_BENCH: ("llama-bench",),
}
_TOOLS = {LLAMA_QUANTIZE: "llama-quantize"}


def find(cache: Path, backend: str = "auto", *, patched: bool = True) -> NativeInfo | None:
    """The finished build of the installed pin and patches for this machine, or None. Starts no program.

    `auto` takes the backend that `build` would choose, and else any that was built. Raises UserError when the
    pin itself cannot be read.
    """
    pin = read_pin()
    wanted = resolve_backend(backend)
    candidates = [wanted] + [name for name in reversed(BACKENDS) if backend == "auto" and name != wanted]
    for name in candidates:
        key = _key(pin, name, patched=patched)
        info = builds.load(cache / "native" / key.name, key)
        if info is not None:
            return info
    return None


def not_built(what: str) -> UserError:
    """That there is no patched build, and how to get one."""
    return UserError(what, hint=how_to_build("--native-protocol", RPC_PROTOCOL))


async def build(
    cache: Path,
    *,
    backend: str = "auto",
    source: Path | None = None,
    tools: bool = False,
    patched: bool = True,
    progress: ProgressCallback,
) -> NativeInfo:
    """Build what is missing and return it; a finished build is returned at once.

    `source` is a tree of upstream at the pinned commit (default: the pinned archive, fetched by pip).
    `tools` adds llama-quantize. `patched=False` builds upstream as it is. Waits for another builder. An
    interrupted or cancelled build is continued by the next one. Raises UserError, BuildFailed among them.
    """
    pin = read_pin()
    backend = resolve_backend(backend)
    key = _key(pin, backend, patched=patched)
    targets = {**_TARGETS, **(_TOOLS if tools else {})}
    if source is not None:
        await asyncio.to_thread(check_source, source, pin, name=str(source))
    folder = cache / "native" / key.name
    info = await asyncio.to_thread(builds.load, folder, key)
    if info is None or not targets.keys() <= info.binaries.keys():
        with builds.explained_disk_errors(cache):
            async with builds.locked(cache / "native" / "lock", progress):
                info = await asyncio.to_thread(builds.load, folder, key)  # the one we waited for may have it
                if info is None or not targets.keys() <= info.binaries.keys():
                    need_compiler()
                    need_tools()
                    tree = Tree(cache / "native" / f"tree-{backend}-{key.cpu}")
                    await fill(tree, pin, cache, source, progress)
                    info = await _make(tree, pin, key, folder, targets, progress)
    progress(BuildProgress(Stage.DONE, f"llama.cpp is ready ({key.name})"))
    return info


async def _make(
    tree: Tree, pin: Pin, key: BuildKey, folder: Path, targets: Mapping[str, str], progress: ProgressCallback
) -> NativeInfo:
    """Patch, compile, and store what came of it. Raises UserError, OSError."""
    patched = key.patches_sha256 != STOCK_PATCHES
    await asyncio.to_thread(tree.patch, pin.patches if patched else ())
    # an archive has no git to tell it: so that each program can say what it is, wherever it is copied to
    flags = [f"-DLLAMA_BUILD_COMMIT={pin.commit[:9]}"]
    made = list(targets.values())
    await compile_tree(tree, backend=key.backend, targets=made, progress=progress, flags=flags)
    built = {name: tree.build / "bin" / target for name, target in targets.items()}
    info = await asyncio.to_thread(builds.store, folder, key, built)
    await asyncio.to_thread(builds.prune, tree.folder.parent, tree=tree.folder)
    return info


async def fill(tree: Tree, pin: Pin, cache: Path, source: Path | None, progress: ProgressCallback) -> None:
    """Make it upstream's source, where it is not that yet. The caller holds the lock. Raises UserError."""
    # a tree of the user's has the same files as the archive (check_source): either is as good
    origin = pin.commit
    if await asyncio.to_thread(tree.holds, origin):
        return
    if source is not None:
        progress(BuildProgress(Stage.UNPACK, f"copying `{source}`"))
        await asyncio.to_thread(tree.fill_from_folder, source, pin, origin=origin)
        return
    sdist = pin.sdist
    wanted = PinnedFile(sdist.requirement, sdist.file, sdist.sha256, from_source=True)
    archive = await fetch(wanted, cache / "downloads", progress)
    progress(BuildProgress(Stage.UNPACK, f"unpacking {archive.name}"))
    await asyncio.to_thread(tree.fill_from_archive, archive, pin, origin=origin)


def _key(pin: Pin, backend: str, *, patched: bool) -> BuildKey:
    return BuildKey(pin.commit, pin.patches_sha256 if patched else STOCK_PATCHES, backend, cpu_kind())


def read_bin_dir(path: Path, *, head: bool = True) -> NativeInfo:
    """Describe a folder of binaries that the user names. Raises UserError when a needed one is missing.

    Without `head` llama-server is not needed.

    A finished build of meshd keeps its pin and patches; anything else is stock of an unknown commit.
    """
    path = path.absolute()
    info = builds.load_any(path)
    if info is not None:
        return info
    found = programs_in(path)
    for name in (RPC_SERVER, *((LLAMA_SERVER,) if head else ())):
        if name not in found:
            raise lacks(path, name)
    return NativeInfo(UNKNOWN, STOCK_PATCHES, UNKNOWN, path, found)


def programs_in(path: Path) -> dict[str, Path]:
    """Which of upstream's programs a folder has. Raises UserError when it is none."""
    if not path.is_dir():
        raise UserError(
            f"there is no directory `{path}`", hint="name the directory with llama.cpp's binaries"
        )
    places = {
        name: next((path / file for file in files if (path / file).is_file()), None)
        for name, files in _FILES.items()
    }
    return {name: place for name, place in places.items() if place is not None}


def lacks(path: Path, name: str) -> UserError:
    """That this folder of the user's has not what is needed."""
    rpc = "; a build without `-DGGML_RPC=ON` has no rpc-server" if name == RPC_SERVER else ""
    return UserError(
        f"`{path}` has no `{_FILES[name][0]}`",
        hint=f"name the directory with llama.cpp's binaries, usually `build/bin`{rpc}",
    )
