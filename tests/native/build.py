"""native/mesh, compiled in an untouched tree of the pin: `python -m tests.native.build`.

The result is kept in the user's cache, under the hash of the sources. About two minutes on two cores the
first time, half a minute after a change of native/mesh. Tests that need it are skipped where it is not there.
"""

import asyncio
import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from meshd.build import cache as builds
from meshd.build.compile import compile_tree
from meshd.build.fetch import PinnedFile, fetch
from meshd.build.interface import BuildProgress
from meshd.build.machine import cpu_kind, need_compiler
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.config.tree import find_cache

from tests.native.schema import ROOT

SOURCE = ROOT / "native" / "mesh"
_FILES = {"mesh-server": "mesh-server", "ggml-mesh": "libggml-mesh.so", "mesh-tests": "mesh-tests"}


@dataclass(frozen=True, slots=True)
class MeshBuild:
    """Programs of native/mesh, and the module."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "mesh-server"

    @property
    def module(self) -> Path:
        return self.folder / "libggml-mesh.so"

    @property
    def tests(self) -> Path:
        return self.folder / "mesh-tests"


def _key() -> str:
    digest = hashlib.sha256(read_pin().commit.encode())
    for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(SOURCE)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _folder(cache: Path) -> Path:
    return cache / "native" / f"mesh-{_key()}-cpu-{cpu_kind()}"


def find() -> MeshBuild | None:
    """What has been built from the sources as they are."""
    folder = _folder(find_cache(os.environ))
    return MeshBuild(folder) if folder.is_dir() else None


def _told(progress: BuildProgress) -> None:
    if progress.total and progress.done % 20 == 0:
        sys.stdout.write(f"{progress.done}/{progress.total} {progress.text}\n")


async def untouched(cache: Path) -> Tree:
    """Upstream at the pin, as it is. The caller holds the lock of the native builds."""
    pin = read_pin()
    tree = Tree(cache / "native" / f"untouched-cpu-{cpu_kind()}")
    if not tree.holds(pin.commit):
        wanted = PinnedFile(pin.sdist.requirement, pin.sdist.file, pin.sdist.sha256, from_source=True)
        tree.fill_from_archive(await fetch(wanted, cache / "downloads", _told), pin, origin=pin.commit)
    return tree


async def build(cache: Path) -> MeshBuild:
    """Build what is missing. One at a time, with the other native builds."""
    folder = _folder(cache)
    async with builds.locked(cache / "native" / "lock", _told):
        if folder.is_dir():
            return MeshBuild(folder)
        need_compiler()
        tree = await untouched(cache)
        # cmake ties a build folder to the path of its source, and the cache outlives any one checkout
        source = tree.folder / "mesh"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(SOURCE, source)
        flags = [f"-DCMAKE_PROJECT_INCLUDE={source / 'inject.cmake'}"]
        await compile_tree(tree, backend="cpu", targets=list(_FILES), progress=_told, flags=flags)
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for name in _FILES.values():
            shutil.copy2(tree.build / "bin" / name, part)
        part.rename(folder)
        _forget_others(folder)
    return MeshBuild(folder)


def _forget_others(folder: Path) -> None:
    others = [path for path in folder.parent.glob("mesh-*") if path != folder]
    for path in sorted(others, key=lambda path: path.stat().st_mtime)[:-3]:
        shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    """Run; returns the exit code."""
    built = asyncio.run(build(find_cache(os.environ)))
    sys.stdout.write(f"{built.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
