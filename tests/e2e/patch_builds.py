"""Builds with the first patches of the series only, and none behind them: to measure what each one changes.

All have the options of the patched build, but no OpenMP, as on macOS: its threads would stand where those
that llama.cpp makes and ends by itself are seen. So the first, which has no patch, differs from the second by
that patch alone. They are made in a tree of their own, where each compiles what differs.
"""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from meshd.build import cache as builds
from meshd.build.compile import compile_tree
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, RPC_SERVER, BuildProgress
from meshd.build.machine import cpu_kind
from meshd.build.pin import native_folder, patches_digest, read_pin
from meshd.build.tree import Tree

from tests.e2e.models import cache_folder, patched

TARGETS = {RPC_SERVER: "ggml-rpc-server", LLAMA_SERVER: "llama-server", LLAMA_BENCH: "llama-bench"}


def patch_files() -> list[Path]:
    """The series, in its order."""
    return sorted((native_folder() / "patches").glob("*.patch"))


def _silent(progress: BuildProgress) -> None:
    """The log of the build has it."""


def build_first(count: int) -> dict[str, Path]:
    """The binaries with the first `count` patches, by name; built if they are not there yet."""
    patched()  # the tree is filled, and the whole build there, before others are made in its tree
    return asyncio.run(_build_first(count))


async def _build_first(count: int) -> dict[str, Path]:
    files = patch_files()[:count]
    texts = [(file.name, file.read_bytes()) for file in files]
    place = cache_folder() / "patch-builds" / f"{count:02}-{patches_digest(texts)[:12]}"
    made = {name: place / target for name, target in TARGETS.items()}
    if all(path.exists() for path in made.values()):
        return made
    pin = replace(read_pin(), texts=tuple(texts))
    native = cache_folder() / "native"
    async with builds.locked(native / "lock", _silent):
        tree = Tree(native / f"tree-few-{pin.commit[:9]}-{cpu_kind()}")
        if not tree.source.exists():
            whole = Tree(native / f"tree-cpu-{cpu_kind()}")
            shutil.copytree(whole.folder, tree.folder, ignore=shutil.ignore_patterns("build", "build.log"))
        tree.patch(pin.patches)
        targets = list(TARGETS.values())
        await compile_tree(
            tree, backend="cpu", targets=targets, progress=_silent, flags=["-DGGML_OPENMP=OFF"]
        )
        for path in made.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            shutil.copy2(tree.build / "bin" / path.name, part)
            part.replace(path)
    return made
