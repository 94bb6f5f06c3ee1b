"""A finished build in a cache, without a compiler."""

from collections.abc import Iterable
from pathlib import Path

from meshd.build import cache as builds
from meshd.build.cache import BuildKey
from meshd.build.native import OUR_PROGRAMS, UPSTREAM_PROGRAMS
from meshd.build.pin import read_pin


def program(folder: Path, name: str, text: str = "x") -> Path:
    """One that can be run, as far as its mode tells."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def _store(cache: Path, key: BuildKey, names: Iterable[str]) -> Path:
    builds.store(cache, key, [program(cache / "out", name) for name in names])
    return builds.folder_of(cache, key)


def store_upstream(cache: Path, backend: str = "cpu") -> Path:
    """The folder of upstream's programs."""
    return _store(cache, builds.upstream_key(read_pin(), backend), UPSTREAM_PROGRAMS)


def store_ours(cache: Path, backend: str = "cpu") -> Path:
    """The folder of those of native/mesh."""
    return _store(cache, builds.ours_key(read_pin(), backend), OUR_PROGRAMS)
