"""Find, build and describe the native binaries. Words and types: interface.py.

What only builds is imported where it is used: each daemon finds.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build.interface import (
    BACKENDS,
    LLAMA_BATCHED_BENCH,
    LLAMA_BENCH,
    LLAMA_QUANTIZE,
    LLAMA_SERVER,
    MESH_MODULE,
    MESH_PROGRAM,
    RPC_SERVER,
    BuildProgress,
    NativeInfo,
    ProgressCallback,
    Stage,
)
from meshd.build.machine import how_to_build, need_backend, need_compiler, need_tools, resolve_backend
from meshd.build.pin import Pin, mesh_sources, read_pin
from meshd.build.tree import Tree, check_source
from meshd.build.wheel import PACKAGE, has_wheels, installed_wheel
from meshd.wire.versions import UNKNOWN

UPSTREAM_PROGRAMS = (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH)
_TOOLS = (LLAMA_QUANTIZE, LLAMA_BATCHED_BENCH)
OUR_PROGRAMS = (MESH_PROGRAM, MESH_MODULE)
_TARGETS = {MESH_MODULE: "ggml-mesh"}  # of cmake; all others are called as their files are
_ALSO_CALLED = {RPC_SERVER: "rpc-server"}  # by older releases, in folders of the user's


def find(cache: Path, backend: str = "auto") -> NativeInfo | None:
    """Return the finished build of the installed pin and sources for this machine, or None. Starts no
    program.

    `auto` takes the backend that `build` would choose, and else any that was built here; without one, what
    meshd-native has. Raises UserError when the pin itself cannot be read.
    """
    return next(iter(candidates(cache, backend)), None)


def candidates(cache: Path, backend: str = "auto") -> tuple[NativeInfo, ...]:
    """Return all builds that `find` can choose from, its choice first. Raises UserError as `find` does."""
    pin, found = read_pin(), []
    wanted = resolve_backend(backend)
    for name in [wanted] + [name for name in reversed(BACKENDS) if backend == "auto" and name != wanted]:
        there = _stored(cache, pin, name)
        if there.keys() >= {*UPSTREAM_PROGRAMS, *OUR_PROGRAMS}:
            bin_dir = builds.folder_of(cache, builds.upstream_key(pin, name))
            found.append(NativeInfo(pin.commit, pin.sources_sha256, name, bin_dir, there))
    wheel = installed_wheel()
    if wheel is not None and wheel.fault(pin) is None and backend in ("auto", *wheel.backends):
        name = wheel.backends[0]
        found.append(NativeInfo(pin.commit, pin.sources_sha256, name, wheel.bin_dir, wheel.programs))
    return tuple(found)


def folder_of_ours(cache: Path, backend: str = "cpu") -> Path:
    """Return the folder of native/mesh's programs, once built from the present sources."""
    return builds.folder_of(cache, builds.ours_key(read_pin(), backend))


def not_built(what: str, backend: str = "auto") -> UserError:
    """Return the error that something is missing, and how to get it."""
    return UserError(what, hint=_without_building(backend) + how_to_build(backend)).final()


def _without_building(backend: str) -> str:
    """Return the beginning of a hint for those who can install a wheel; empty where none helps."""
    wheel = installed_wheel()
    fault = wheel.fault(read_pin()) if wheel is not None else None
    if fault:
        return f"install the meshd-native of this meshd (of the one that is installed: {fault}); or "
    if wheel is None and backend in ("auto", "cpu") and has_wheels():
        return f"install {PACKAGE}-….whl beside meshd, as docs/install.md says; or "
    return ""


async def build(
    cache: Path,
    *,
    backend: str = "auto",
    source: Path | None = None,
    tools: bool = False,
    progress: ProgressCallback,
) -> NativeInfo:
    """Build what is missing and return it; a finished build is returned at once.

    `source` is a tree of upstream at the pinned commit (default: the pinned archive, fetched by pip).
    `tools` adds llama-quantize and llama-batched-bench. Waits for another builder. An interrupted or
    cancelled build is continued by the next one. Raises UserError.
    """
    backend = resolve_backend(backend)
    upstream = (*UPSTREAM_PROGRAMS, *(_TOOLS if tools else ()))
    await build_programs(cache, OUR_PROGRAMS, upstream, backend=backend, source=source, progress=progress)
    info = await asyncio.to_thread(find, cache, backend)
    if info is None:
        raise UserError(f"the build in `{cache}` changed while it was stored", hint="build again")
    progress(BuildProgress(Stage.DONE, f"llama.cpp and meshd's backend are ready, for {backend}"))
    return info


async def build_programs(
    cache: Path,
    ours: Collection[str] = OUR_PROGRAMS,
    upstream: Collection[str] = (),
    *,
    backend: str = "cpu",
    source: Path | None = None,
    progress: ProgressCallback,
) -> Path:
    """Build the missing ones of these programs like `build`; return the folder of ours."""
    pin = read_pin()
    if backend == "cuda":
        from meshd.build.cuda import mend_toolkit

        with builds.explained_disk_errors(cache):
            async with builds.locked(cache / "native" / "lock", progress):
                await mend_toolkit(cache / "native", cache / "native" / "cuda.log")
    if source is not None:
        await asyncio.to_thread(check_source, source, pin, name=str(source))
    if await asyncio.to_thread(_missing, cache, pin, backend, [*upstream, *ours]):
        with builds.explained_disk_errors(cache):
            async with builds.locked(cache / "native" / "lock", progress):
                # the one we waited for may have built it
                missing = await asyncio.to_thread(_missing, cache, pin, backend, [*upstream, *ours])
                if missing:
                    _need_to_compile(backend)
                    tree = builds.tree_of(cache, backend)
                    await fill(tree, pin, cache, source, progress)
                    await _compile(tree, pin, backend, missing, progress)
                    await asyncio.to_thread(_store, cache, pin, backend, tree, missing, set(ours))
    return folder_of_ours(cache, backend)


def _need_to_compile(backend: str) -> None:
    """Raise UserError unless this machine has what a build needs."""
    try:
        need_compiler()
        need_tools()
    except UserError as error:
        raise UserError(error.what, hint=_without_building(backend) + error.hint) from None
    need_backend(backend)


async def fill(tree: Tree, pin: Pin, cache: Path, source: Path | None, progress: ProgressCallback) -> None:
    """Make the tree upstream's source, unless it is already. The caller holds the lock. Raises UserError."""
    # a tree of the user's has the same files as the archive (check_source): either is as good
    origin = pin.commit
    if await asyncio.to_thread(tree.holds, origin):
        return
    if source is not None:
        progress(BuildProgress(Stage.UNPACK, f"copying `{source}`"))
        await asyncio.to_thread(tree.fill_from_folder, source, pin, origin=origin)
        return
    from meshd.build.fetch import fetch

    archive = await fetch(pin.sdist, cache / "downloads", progress)
    progress(BuildProgress(Stage.UNPACK, f"unpacking {archive.name}"))
    await asyncio.to_thread(tree.fill_from_archive, archive, pin, origin=origin)


def _stored(cache: Path, pin: Pin, backend: str) -> dict[str, Path]:
    keys = builds.upstream_key(pin, backend), builds.ours_key(pin, backend)
    return {name: path for key in keys for name, path in builds.load(cache, key).items()}


def _missing(cache: Path, pin: Pin, backend: str, names: Sequence[str]) -> list[str]:
    there = _stored(cache, pin, backend)
    return [name for name in names if name not in there]


async def _compile(
    tree: Tree, pin: Pin, backend: str, names: Sequence[str], progress: ProgressCallback
) -> None:
    from meshd.build.compile import compile_tree
    from meshd.build.tree import renew

    await asyncio.to_thread(renew, tree.ours, mesh_sources())
    # an archive has no git to tell it: so that each program can say what it is, wherever it is copied to
    flags = [
        f"-DLLAMA_BUILD_COMMIT={pin.commit[:9]}",
        f"-DCMAKE_PROJECT_INCLUDE={tree.ours / 'inject.cmake'}",
    ]
    targets = [_TARGETS.get(name, name) for name in names]
    await compile_tree(tree, backend=backend, targets=targets, progress=progress, flags=flags)


def _store(cache: Path, pin: Pin, backend: str, tree: Tree, made: Sequence[str], ours: set[str]) -> None:
    if read_pin() != pin:
        raise UserError(
            "the sources of meshd's backend changed while they were compiled", hint="run it again"
        )
    for key, names in (
        (builds.upstream_key(pin, backend), [name for name in made if name not in ours]),
        (builds.ours_key(pin, backend), [name for name in made if name in ours]),
    ):
        if names:
            builds.store(cache, key, [tree.build / "bin" / name for name in names])
    builds.prune(tree.folder.parent, pin)


def read_bin_dir(path: Path, cache: Path, *, head: bool = True) -> NativeInfo | None:
    """Return the build in a folder of the user's, completed by our own; None where that lacks programs, too.

    A head needs a llama-server there. Nothing here tells what the programs are: the daemon asks them. Raises
    UserError.
    """
    path = path.absolute()
    if not path.is_dir():
        raise UserError(
            f"there is no directory `{path}`", hint="name the directory with llama.cpp's binaries"
        )
    found: dict[str, Path] = {}
    for name in (*UPSTREAM_PROGRAMS, *OUR_PROGRAMS):
        files = [path / file for file in (name, _ALSO_CALLED.get(name, name)) if (path / file).is_file()]
        if files:
            found[name] = files[0]
    if head and LLAMA_SERVER not in found:
        raise UserError(
            f"`{path}` has no `{LLAMA_SERVER}`",
            hint="name the directory with llama.cpp's binaries, usually `build/bin`",
        )
    needed = {MESH_PROGRAM, *((MESH_MODULE,) if head else ())}
    if not needed <= found.keys():
        own = find(cache)
        if own is None:
            return None
        found = {**{name: own.binaries[name] for name in needed}, **found}
    return NativeInfo(UNKNOWN, UNKNOWN, UNKNOWN, path, found)
