"""A finished build in a cache, without a compiler."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshd.build import cache as builds
from meshd.build.cache import BuildKey
from meshd.build.native import OUR_PROGRAMS, UPSTREAM_PROGRAMS
from meshd.build.pin import read_pin
from meshd.build.wheel import PACKAGE

LIBRARY = "libggml-base.so"  # in a wheel, beside its programs


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


def install_wheel(site: Path, **said: object) -> Path:
    """Write meshd-native into a folder of packages; `said` replaces parts of its stamp."""
    return install_scripts(site, {}, **said)


def install_scripts(site: Path, texts: Mapping[str, str], **said: object) -> Path:
    """Do as `install_wheel` does; some programs have these texts."""
    package, pin = site / PACKAGE, read_pin()
    names = (*UPSTREAM_PROGRAMS, *OUR_PROGRAMS, LIBRARY)
    sizes = {name: program(package / "bin", name, texts.get(name, "x")).stat().st_size for name in names}
    stamp = {"commit": pin.commit, "sources": pin.sources_sha256, "backend": "cpu", "binaries": sizes}
    (package / "stamp.json").write_text(json.dumps({**stamp, **said}))
    (package / "__init__.py").write_text("raise RuntimeError('it is looked at, and not run')\n")
    return package
