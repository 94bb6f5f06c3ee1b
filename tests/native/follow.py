"""native/mesh on other releases of llama.cpp: `python -m tests.native.follow SOURCE`, or `--releases`.

Builds mesh-server, the module, mesh-tests and llama-server from that tree, which is not changed, runs the
native suite on them, and prints what came of it as a table. `--releases` takes those of native/FOLLOW.toml,
whose archives it fetches into the cache, and the pin. A quarter of an hour for each on two cores, most of it
for llama-server; what has been built is kept.
"""

import argparse
import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build import cache as builds
from meshd.build import native
from meshd.build.compile import compile_tree
from meshd.build.machine import need_compiler, need_tools
from meshd.build.pin import Pin, mesh_sources, read_pin
from meshd.build.tree import Tree
from meshd.config.tree import find_cache

from tests.native.build import MeshBuild, build_all, told
from tests.native.releases import package_version, read_releases, tree_named, unpack
from tests.native.suite import Count, ggml_of, run_mesh_tests, run_processes

_OURS = ("mesh-server", "ggml-mesh", "mesh-tests")
_HEAD = ("llama-server",)  # takes longest: what is quick to fail comes before it
_COLUMNS = ("release", "ggml", "builds", "mesh-tests", "same text", "other tests", "minutes")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one release. A part that was not run has a Count of nothing."""

    name: str
    ggml: str
    builds: bool
    unit: Count
    texts: Count
    others: Count
    minutes: float

    @property
    def good(self) -> bool:
        return self.builds and self.unit.good and self.texts.good and self.others.good

    @property
    def row(self) -> tuple[str, ...]:
        counts = (str(count) if self.builds else "" for count in (self.unit, self.texts, self.others))
        return self.name, self.ggml, "yes" if self.builds else "NO", *counts, f"{self.minutes:.0f}"


def table(outcomes: Sequence[Outcome]) -> str:
    """In Markdown."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *(outcome.row for outcome in outcomes)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


async def _compile(tree: Tree, targets: Sequence[str]) -> None:
    need_compiler()
    need_tools()
    flags = [f"-DCMAKE_PROJECT_INCLUDE={mesh_sources() / 'inject.cmake'}"]
    await compile_tree(tree, backend="cpu", targets=targets, progress=told, flags=flags)


async def _compile_locked(cache: Path, tree: Tree, targets: Sequence[str], release: Pin | None) -> None:
    async with builds.locked(cache / "native" / "lock", told):
        if release is not None:
            await unpack(release, cache, told)
        await _compile(tree, targets)


def _try(name: str, cache: Path, tree: Tree, release: Pin | None = None) -> Outcome:
    """`release`: where the tree's source comes from, if it is not there."""
    start, unit = time.monotonic(), Count()
    build = MeshBuild(tree.build / "bin")
    sys.stdout.write(f"{name}: in {tree.folder}\n")
    try:
        asyncio.run(_compile_locked(cache, tree, _OURS, release))
        unit = run_mesh_tests(build)
        asyncio.run(_compile_locked(cache, tree, _HEAD, release))
    except UserError as error:
        sys.stdout.write(f"{name}: {error}\n{error.hint or ''}\n")
        return Outcome(name, "", False, unit, Count(), Count(), (time.monotonic() - start) / 60)
    texts, others = run_processes(build.folder)
    return Outcome(name, ggml_of(build), True, unit, texts, others, (time.monotonic() - start) / 60)


def _try_pin(cache: Path) -> Outcome:
    """As `make test` does, with what it has built."""
    start = time.monotonic()
    asyncio.run(native.build(cache, backend="cpu", progress=told))
    build = MeshBuild(asyncio.run(build_all(cache)))
    unit = run_mesh_tests(build)
    texts, others = run_processes(None)
    name = f"{package_version(read_pin())}, the pin"
    return Outcome(name, ggml_of(build), True, unit, texts, others, (time.monotonic() - start) / 60)


def _try_source(cache: Path, source: Path) -> Outcome:
    tree = tree_named(hashlib.sha256(str(source).encode()).hexdigest()[:12], cache)
    tree.folder.mkdir(parents=True, exist_ok=True)
    tree.source = source
    return _try(source.name, cache, tree)


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.follow", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("source", type=Path, nargs="?", metavar="SOURCE", help="a tree of llama.cpp")
    group.add_argument("--releases", action="store_true", help="those of native/FOLLOW.toml, and the pin")
    args, cache = parser.parse_args(), find_cache(os.environ)
    if args.releases:
        outcomes = [
            _try(package_version(one), cache, tree_named(package_version(one), cache), one)
            for one in read_releases()
        ]
        outcomes.append(_try_pin(cache))
    else:
        outcomes = [_try_source(cache, args.source.resolve())]
    sys.stdout.write(table(outcomes))
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
