"""Finished builds in the cache: their keys and stamps, and the lock that lets one process build at a time."""

import asyncio
import fcntl
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.interface import BuildProgress, NativeInfo, ProgressCallback, Stage
from meshd.wire.native import STOCK_PATCHES

_STAMP = "stamp.json"
_MAX_STAMP = 64 * 1024
_KEPT_BUILDS = 6  # about 40 MB each: patched and stock, a version back, a second backend
_LOOK_SECONDS = 0.2  # how often a waiting builder looks whether the other one is done


@dataclass(frozen=True, slots=True)
class BuildKey:
    """What a build depends on."""

    commit: str
    patches_sha256: str
    backend: str
    cpu: str

    @property
    def name(self) -> str:
        patches = self.patches_sha256 if self.patches_sha256 == STOCK_PATCHES else self.patches_sha256[:12]
        return f"{self.commit[:9]}-{patches}-{self.backend}-{self.cpu}"


def load(folder: Path, key: BuildKey) -> NativeInfo | None:
    """The finished build in `folder`, or None: no stamp, another key, or a binary is missing or cut short."""
    stamp = _read_stamp(folder / _STAMP)
    if stamp is None or (stamp.get("commit"), stamp.get("patches")) != (key.commit, key.patches_sha256):
        return None
    return _info(folder, stamp)


def load_any(bin_dir: Path) -> NativeInfo | None:
    """The finished build whose binaries lie in `bin_dir`, whatever its key."""
    stamp = _read_stamp(bin_dir.parent / _STAMP)
    return None if stamp is None or bin_dir.name != "bin" else _info(bin_dir.parent, stamp)


def _info(folder: Path, stamp: Mapping[str, object]) -> NativeInfo | None:
    sizes = stamp.get("binaries")
    if not isinstance(sizes, dict) or not sizes:
        return None
    binaries: dict[str, Path] = {}
    for name, entry in sizes.items():
        if not isinstance(entry, list) or len(entry) != 2:
            return None
        path = folder / "bin" / str(entry[0])
        try:
            if path.stat().st_size != entry[1] or not os.access(path, os.X_OK):
                return None
        except OSError:
            return None
        binaries[str(name)] = path
    return NativeInfo(
        pin=str(stamp.get("commit")),
        patches_sha256=str(stamp.get("patches")),
        backend=str(stamp.get("backend")),
        bin_dir=folder / "bin",
        binaries=binaries,
    )


def _read_stamp(path: Path) -> Mapping[str, object] | None:
    try:
        with path.open("rb") as file:
            value: object = json.loads(file.read(_MAX_STAMP))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def store(folder: Path, key: BuildKey, built: Mapping[str, Path]) -> NativeInfo:
    """Copy the binaries into `folder`, beside those already there; the stamp comes last. Raises OSError.

    Until then the old stamp is right, or names another size than there is.
    """
    bin_dir = folder / "bin"
    before = load(folder, key)
    sizes = {
        name: [path.name, path.stat().st_size] for name, path in (before.binaries if before else {}).items()
    }
    bin_dir.mkdir(parents=True, exist_ok=True)
    parts = {bin_dir / f"{source.name}.part": bin_dir / source.name for source in built.values()}
    stamp_part = folder / f"{_STAMP}.part"
    try:
        for name, source in built.items():
            part = bin_dir / f"{source.name}.part"
            shutil.copy2(source, part)
            sizes[name] = [source.name, part.stat().st_size]
        stamp = {
            "commit": key.commit,
            "patches": key.patches_sha256,
            "backend": key.backend,
            "binaries": sizes,
        }
        stamp_part.write_text(json.dumps(stamp, indent=1) + "\n", "utf-8")
        for part, place in parts.items():
            part.replace(place)  # a running program keeps the file it was started from
        stamp_part.replace(folder / _STAMP)
    except BaseException:
        for part in (*parts, stamp_part):
            with suppress(OSError):
                part.unlink()
        raise
    info = load(folder, key)
    if info is None:
        raise UserError(f"the build in `{folder}` changed while it was stored", hint="build again")
    return info


def prune(native: Path, *, tree: Path) -> None:
    """Remove all trees but `tree`, and the builds that were made longest ago beyond those that are kept."""
    for other in native.glob("tree-*"):
        if other != tree:
            shutil.rmtree(other, ignore_errors=True)
    stamps = sorted(native.glob(f"*/{_STAMP}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for stamp in stamps[_KEPT_BUILDS:]:
        shutil.rmtree(stamp.parent, ignore_errors=True)


@contextmanager
def explained_disk_errors(cache: Path) -> Iterator[None]:
    """Turns errors of the disk, or of a program that cannot be started, into a UserError."""
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
    """Hold the lock file; waits, and says so by its `activity`, while another process holds it."""
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
