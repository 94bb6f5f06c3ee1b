"""The folder that a build is made in: upstream's source as it is, ours beside it, and the compiler's output.

It stays after a build, so that the next one compiles only what differs.
"""

import hashlib
import shutil
from pathlib import Path, PurePosixPath

from meshd.base.errors import UserError
from meshd.build.pin import Pin

# large, and not needed to compile the server: 113 of 176 MB
_LEFT_OUT = frozenset({".git", "models", "docs", "media"})
_MAX_ORIGIN = 4096


class Tree:
    """One tree, for one backend and kind of CPU; for one process at a time (see cache.locked)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "src"
        self.ours = folder / "mesh"  # a copy of native/mesh: the cache outlives any one checkout
        self.build = folder / "build"
        self.log = folder / "build.log"
        self._origin = folder / "origin"

    def holds(self, origin: str) -> bool:
        """Return True if the source is complete and came from `origin`."""
        try:
            with self._origin.open("rb") as file:
                return file.read(_MAX_ORIGIN) == origin.encode()
        except OSError:
            return False

    def fill_from_archive(self, archive: Path, pin: Pin, *, origin: str) -> None:
        """Unpack the source from the pinned archive. Replaces whatever was there."""
        self._clear()
        prefix = PurePosixPath(pin.sdist.folder)
        import tarfile  # a daemon, which only asks what is built, does without

        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if not member.isfile() or not path.is_relative_to(prefix) or ".." in path.parts:
                    continue
                inner = path.relative_to(prefix)
                content = tar.extractfile(member)
                if inner.parts[0] in _LEFT_OUT or content is None:
                    continue
                target = self.source / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as out:
                    shutil.copyfileobj(content, out)
                target.chmod(0o755 if member.mode & 0o100 else 0o644)
        self._filled(pin, origin, str(archive))

    def fill_from_folder(self, source: Path, pin: Pin, *, origin: str) -> None:
        """Copy the source from the user's tree, which is not touched."""
        self._clear()
        left_out = {
            path.name for path in source.iterdir() if path.name in _LEFT_OUT or _is_build_folder(path)
        }

        def ignore(folder: str, names: list[str]) -> set[str]:
            return left_out if Path(folder) == source else set()

        shutil.copytree(source, self.source, ignore=ignore, dirs_exist_ok=True)
        self._filled(pin, origin, str(source))

    def drop(self) -> None:
        """Remove all but the log: nothing of it is of use, and it takes some hundred megabytes."""
        self._origin.unlink(missing_ok=True)
        for folder in (self.source, self.ours, self.build):
            shutil.rmtree(folder, ignore_errors=True)

    def _clear(self) -> None:
        self._origin.unlink(missing_ok=True)  # first: half of a source is none
        shutil.rmtree(self.folder, ignore_errors=True)
        self.source.mkdir(parents=True)

    def _filled(self, pin: Pin, origin: str, name: str) -> None:
        check_source(self.source, pin, name=name)
        part = self._origin.with_suffix(".part")
        part.write_text(origin, "utf-8")
        part.replace(self._origin)


def _is_build_folder(path: Path) -> bool:
    return (path / "CMakeCache.txt").exists()


def check_source(source: Path, pin: Pin, *, name: str) -> None:
    """Raise UserError unless `source` is upstream at the pinned commit, as far as the pin's files tell."""
    for path, sha256 in pin.files.items():
        file = source / path
        if not file.is_file():
            raise UserError(
                f"`{name}` is not a llama.cpp source tree: there is no `{path}`",
                hint=f"give a clone of llama.cpp at commit {pin.commit[:9]}, or omit --source to download it",
            )
        if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            raise UserError(
                f"`{name}` is not llama.cpp at the pinned commit: `{path}` differs",
                hint=f"run `git checkout {pin.commit[:9]}` there, and undo local changes",
            )


def renew(copy: Path, sources: Path) -> None:
    """Make `copy` equal to the folder `sources`: cmake binds a build folder to the path of its sources.

    Raises OSError.
    Equal files stay untouched, so that they are not compiled again. A changed file gets the current time:
    with the time of its source, it could be older than an object of another version, and would be skipped.
    """
    wanted = {path.relative_to(sources) for path in sources.rglob("*") if path.is_file()}
    folders = {folder for name in wanted for folder in name.parents}
    # delete first, and a folder's content before the folder: a file may replace a folder, or a folder a file
    for place in sorted(copy.rglob("*"), reverse=True):
        name = place.relative_to(copy)
        if not place.is_dir():
            if name not in wanted:
                place.unlink()
        elif name not in folders:
            place.rmdir()
    for name in wanted:
        place, content = copy / name, (sources / name).read_bytes()
        if not (place.is_file() and place.read_bytes() == content):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
