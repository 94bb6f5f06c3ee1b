"""Finished builds in the cache: their keys and stamps, and the lock that lets one process build at a time."""

import asyncio
import fcntl
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.machine import cpu_kind
from meshd.build.pin import Pin
from meshd.build.tree import Tree

_STAMP = "stamp.json"
_MAX_STAMP = 64 * 1024
_KINDS = ("llama", "mesh")
_KEPT_BUILDS = 4  # of each kind, about 40 MB each: a version back, another backend
_EARLIER = ("tree-*", "untouched-*", "fuzz-cpu-*")  # what older versions of meshd built in
_LOOK_SECONDS = 0.2  # how often a waiting builder looks whether the other one is done


@dataclass(frozen=True, slots=True)
class BuildKey:
    """The inputs of a build: upstream's programs, or ours, which have `sources_sha256`."""

    commit: str
    backend: str
    cpu: str
    sources_sha256: str = ""

    @property
    def name(self) -> str:
        kind = f"mesh-{self.sources_sha256[:12]}" if self.sources_sha256 else "llama"
        return f"{kind}-{self.commit[:9]}-{self.backend}-{self.cpu}"


def upstream_key(pin: Pin, backend: str) -> BuildKey:
    """Return the key of llama.cpp's own programs."""
    return BuildKey(pin.commit, backend, cpu_kind())


def ours_key(pin: Pin, backend: str) -> BuildKey:
    """Return the key of the programs of native/mesh."""
    return BuildKey(pin.commit, backend, cpu_kind(), pin.sources_sha256)


def tree_of(cache: Path, backend: str = "cpu") -> Tree:
    """Return the build tree, whether it is filled or not."""
    return Tree(cache / "native" / f"upstream-{backend}-{cpu_kind()}")


def folder_of(cache: Path, key: BuildKey) -> Path:
    """Return the folder of a finished build's programs."""
    return cache / "native" / key.name / "bin"


def load(cache: Path, key: BuildKey) -> dict[str, Path]:
    """Return the programs of the finished build; none without a stamp of this key, or if one is damaged."""
    folder = folder_of(cache, key).parent
    stamp = read_stamp(folder)
    if stamp is None or (stamp.get("commit"), stamp.get("sources")) != (key.commit, key.sources_sha256):
        return {}
    return stamped_files(folder, stamp)


def read_stamp(folder: Path, name: str = _STAMP) -> Mapping[str, object] | None:
    """Return the stamp in a folder; None if there is none that can be read."""
    try:
        with (folder / name).open("rb") as file:
            value: object = json.loads(file.read(_MAX_STAMP))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def stamped_files(folder: Path, stamp: Mapping[str, object]) -> dict[str, Path]:
    """Return the files in `folder`/bin that its stamp names; none if one is missing, or is not as it says."""
    sizes = stamp.get("binaries")
    if not isinstance(sizes, dict):
        return {}
    bin_dir = folder / "bin"
    for name, size in sizes.items():
        try:
            found = (bin_dir / name).stat()
        except (OSError, ValueError):
            return {}
        is_whole = stat.S_ISREG(found.st_mode) and found.st_size == size
        if "/" in name or not is_whole or not os.access(bin_dir / name, os.X_OK):  # a name, and no path
            return {}
    return {name: bin_dir / name for name in sizes}


def store(cache: Path, key: BuildKey, built: Iterable[Path]) -> None:
    """Copy programs to those of their key that are there already; the stamp comes last. Raises OSError.

    Until then the old stamp is right, or names another size than there is.
    """
    bin_dir = folder_of(cache, key)
    sizes = {name: path.stat().st_size for name, path in load(cache, key).items()}
    bin_dir.mkdir(parents=True, exist_ok=True)
    parts = {bin_dir / f"{source.name}.part": source for source in built}
    stamp, stamp_part = bin_dir.parent / _STAMP, bin_dir.parent / f"{_STAMP}.part"
    try:
        for part, source in parts.items():
            shutil.copy2(source, part)
            sizes[source.name] = part.stat().st_size
        described = {"commit": key.commit, "sources": key.sources_sha256, "binaries": sizes}
        stamp_part.write_text(json.dumps(described, indent=1) + "\n", "utf-8")
        for part, source in parts.items():
            part.replace(bin_dir / source.name)  # a running program keeps the file it was started from
        stamp_part.replace(stamp)
    except BaseException:
        for part in (*parts, stamp_part):
            with suppress(OSError):
                part.unlink()
        raise


def prune(native: Path, pin: Pin) -> None:
    """Remove unused builds, and the oldest of each kind.

    The caller holds the lock: what has no stamp was never finished, or is of an older version of meshd.
    """
    gone = [folder for pattern in _EARLIER for folder in native.glob(pattern)]
    gone += [folder for folder in native.glob("upstream-*") if not Tree(folder).holds(pin.commit)]
    made = {stamp.parent: stamp.stat().st_mtime for stamp in native.glob(f"*/{_STAMP}")}
    gone += [folder for folder in made if folder.name.partition("-")[0] not in _KINDS]
    for kind in _KINDS:
        latest = sorted(native.glob(f"{kind}-*"), key=lambda folder: made.get(folder, 0.0), reverse=True)
        gone += [folder for folder in latest if folder not in made or folder in latest[_KEPT_BUILDS:]]
    for folder in gone:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def explained_disk_errors(cache: Path) -> Iterator[None]:
    """Turn errors of the disk, or of a program that cannot be started, into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"`{error.filename or cache}` cannot be used: {(error.strerror or str(error)[:200]).lower()}",
            hint=f"free space or fix the cause, and try again; MESHD_CACHE (now `{cache}`) can name "
            "a directory on another disk",
        ) from None


@asynccontextmanager
async def locked(
    path: Path, progress: ProgressCallback, activity: str = "is building llama.cpp"
) -> AsyncIterator[None]:
    """Hold the lock file; while another process holds it, wait and report its `activity`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        announced = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not announced:
                    progress(BuildProgress(Stage.WAIT, f"another meshd {activity}; waiting for it"))
                    announced = True
                await asyncio.sleep(_LOOK_SECONDS)
        yield
