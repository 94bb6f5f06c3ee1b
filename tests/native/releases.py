"""Releases besides the pin that native/mesh is held to (native/FOLLOW.toml), and their trees in the cache."""

import tomllib
from dataclasses import replace
from pathlib import Path

from meshd.build import native
from meshd.build.interface import ProgressCallback
from meshd.build.machine import cpu_kind
from meshd.build.pin import Pin, PinnedFile, native_folder, read_pin
from meshd.build.tree import Tree


def read_releases(folder: Path | None = None) -> tuple[Pin, ...]:
    """As pins, the oldest first. Raises KeyError where a row lacks something."""
    table = tomllib.loads(((folder or native_folder()) / "FOLLOW.toml").read_text("utf-8"))
    pin = read_pin()
    return tuple(
        replace(
            pin,
            version=str(row["version"]),
            commit=str(row["commit"]),
            sdist=PinnedFile(
                requirement=str(row["requirement"]),
                file=str(row["file"]),
                sha256=str(row["sha256"]),
                folder=str(row["folder"]),
            ),
            files={},  # the archive's hash tells it from others
        )
        for row in table["release"]
    )


def package_version(release: Pin) -> str:
    """Return the version of the package that carries it: what people call it by here."""
    return release.sdist.requirement.partition("==")[2]


def tree_named(name: str, cache: Path) -> Tree:
    """Where a release's source and what is built of it lie."""
    return Tree(cache / "native" / f"follow-{name}-cpu-{cpu_kind()}")


async def unpack(release: Pin, cache: Path, progress: ProgressCallback) -> Tree:
    """Fetch and unpack what is not there. The caller holds the lock of native builds. Raises UserError."""
    tree = tree_named(package_version(release), cache)
    await native.fill(tree, release, cache, None, progress)
    return tree
