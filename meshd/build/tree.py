"""The build directory: upstream's source, patched, and the compiler's output.

The tree stays after a build, so that the next patch or a stock build compiles only what differs: a file is
rewritten only when its content changes. What patches touch is kept as it was in `orig/`, and which files were
touched is written down before they are, so that an interrupted change is put right by the next build.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from meshd.base.errors import UserError
from meshd.build.patch import FilePatch, apply_patch
from meshd.build.pin import Pin

# large, and not needed to compile the server: 113 of 176 MB
_LEFT_OUT = frozenset({".git", "models", "docs", "media"})


class Tree:
    """One tree, for one backend and kind of CPU; for one process at a time (see cache.locked)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = folder / "src"
        self.build = folder / "build"
        self.log = folder / "build.log"
        self._original = folder / "orig"
        self._state = folder / "state.json"

    def holds(self, origin: str) -> bool:
        """Whether the source is complete and came from `origin`."""
        return self._read_state().get("origin") == [origin]

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

    def _clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.source.mkdir(parents=True)

    def _filled(self, pin: Pin, origin: str, name: str) -> None:
        check_source(self.source, pin, name=name)
        self._write_state({"origin": [origin], "touched": []})

    def patch(self, changes: Iterable[FilePatch]) -> None:
        """Make the source upstream plus exactly these changes, whatever it was before. Raises UserError."""
        wanted: dict[str, str | None] = {
            path: self._pristine(path) for path in self._read_state().get("touched", [])
        }
        for change in changes:
            text = wanted[change.path] if change.path in wanted else self._pristine(change.path)
            wanted[change.path] = apply_patch(text, change)
        for path in wanted:
            self._keep_original(path)
        state = self._read_state()
        self._write_state({"origin": state.get("origin", []), "touched": sorted(wanted)})
        for path, text in wanted.items():
            _make(self.source / path, text)

    def _pristine(self, path: str) -> str | None:
        kept = self._original / path
        if kept.with_name(kept.name + ".absent").exists():
            return None
        place = kept if kept.exists() else self.source / path
        return place.read_text("utf-8") if place.exists() else None

    def _keep_original(self, path: str) -> None:
        kept = self._original / path
        absent = kept.with_name(kept.name + ".absent")
        if kept.exists() or absent.exists():
            return
        kept.parent.mkdir(parents=True, exist_ok=True)
        if (self.source / path).exists():
            part = kept.with_name(kept.name + ".part")
            shutil.copy2(self.source / path, part)
            part.replace(kept)
        else:
            absent.touch()

    def _read_state(self) -> Mapping[str, list[str]]:
        try:
            value: object = json.loads(self._state.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(value, dict):
            return {}
        return {key: [str(item) for item in items] for key, items in value.items() if isinstance(items, list)}

    def _write_state(self, state: Mapping[str, list[str]]) -> None:
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps(state), "utf-8")
        part.replace(self._state)


def _is_build_folder(path: Path) -> bool:
    return (path / "CMakeCache.txt").exists()


def check_source(source: Path, pin: Pin, *, name: str) -> None:
    """Raise UserError unless `source` is upstream at the pinned commit, as far as the pin's files tell."""
    for path, sha256 in pin.files.items():
        file = source / path
        if not file.is_file():
            raise UserError(f"`{name}` is not a llama.cpp source tree: there is no `{path}`")
        if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            raise UserError(
                f"`{name}` is not llama.cpp at the pinned commit: `{path}` differs",
                hint=f"run `git checkout {pin.commit[:9]}` there, and undo local changes",
            )


def _make(path: Path, text: str | None) -> None:
    """Give the file this content; leave its time alone when it has it already, for ninja goes by that."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    if path.exists() and path.read_text("utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
