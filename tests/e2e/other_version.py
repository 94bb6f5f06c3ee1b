"""Another meshd than the one under test, for a node of a fleet: a release before, or a changed copy.

The release is the wheel of a revision, built once, unpacked and put before the checkout on Python's path; its
dependencies are those of the tests. It runs the native programs that it is told to use.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import meshd
import pytest
from meshd.build.pin import native_folder, read_pin
from meshd.fleet.fleet import NodeSpec
from meshd.rpc.mesh_protocol import VERSION as MESH_VERSION

from tests.e2e.models import native
from tests.rules.source import ROOT

# The tag of the last release. Nothing is released yet: this is the last revision without rules for versions.
LAST_RELEASE = "53191e1a75d014975b28d3e2a7fc2992e22adfcd"
# The version that it says in the tests: its own may be the one under test, and status must tell them apart.
RELEASE_VERSION = "0.0.9"
_BUILT = ROOT / "build" / "releases"


def last_release() -> Path:
    """Return the folder of its package; skips the test where the history does not have it."""
    found = _git("rev-parse", "--verify", "--quiet", f"{LAST_RELEASE}^{{commit}}")
    if found.returncode:
        pytest.skip(f"the history of this checkout has no revision {LAST_RELEASE}")
    revision = found.stdout.decode().strip()
    folder = _BUILT / f"{RELEASE_VERSION}-{revision}"
    if not folder.is_dir():
        _BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUILT) as made:
            _build(revision, Path(made))
            (Path(made) / "wheel").rename(folder)
    return folder


def _build(revision: str, folder: Path) -> None:
    """Build the wheel of a revision as `make dist` does, and unpack it to `wheel`."""
    source = folder / "source"
    source.mkdir()
    archive = folder / "source.tar"
    done = _git("archive", f"--output={archive}", revision)
    assert done.returncode == 0, done.stderr
    shutil.unpack_archive(archive, source, filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("meshd-*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "wheel")
    package = folder / "wheel" / "meshd" / "__init__.py"
    text, found = re.subn(r'__version__ = ".*"', f'__version__ = "{RELEASE_VERSION}"', package.read_text())
    assert found == 1, "no place for the version"
    package.write_text(text)


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")


def shares_models(folder: Path) -> bool:
    """Return True if it has the llama.cpp and the protocol of mesh-server that this version has."""
    return (
        read_pin(folder / "meshd" / "native").commit == read_pin().commit
        and _protocol(folder) == MESH_VERSION
    )


def _protocol(folder: Path) -> int:
    """Return the version of mesh-server's protocol that a meshd speaks."""
    source = (folder / "meshd" / "rpc" / "mesh_protocol.py").read_text()
    found = re.search(r"^VERSION = (\d+)$", source, re.MULTILINE)
    assert found is not None
    return int(found[1])


def changed_copy(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """Copy the meshd under test to a folder, changed: file, its text, other text."""
    package = Path(meshd.__file__).parent
    shutil.copytree(package, folder / "meshd", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(native_folder(), folder / "native")
    for file, before, after in changes:
        path = folder / file
        text = path.read_text()
        assert text.count(before) == 1, before
        path.write_text(text.replace(before, after))
    return folder


def run_by(spec: NodeSpec, folder: Path) -> NodeSpec:
    """Let a node run the meshd in a folder, with the native programs of the tests."""
    version = _protocol(folder)
    elsewhere = {
        "PYTHONPATH": str(folder),
        "PYTHONSAFEPATH": "1",  # not the checkout in which the tests are started
        "MESHD_NATIVE_BIN": str(_programs(spec.home.parent / f"programs-{version}", version)),
    }
    return replace(spec, environment={**spec.environment, **elsewhere})


def _programs(folder: Path, version: int) -> Path:
    """Return a folder of programs for a meshd that speaks this version of mesh-server's protocol.

    Where it is not that of the tests, their mesh-server claims to speak it: the node starts, and no model is
    shared with it.
    """
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for name, program in native().binaries.items():
            (folder / name).symlink_to(program)
        server = folder / "mesh-server"
        if version != MESH_VERSION:
            real = server.readlink()
            server.unlink()
            claim = f's/"protocol": {MESH_VERSION},/"protocol": {version},/'
            server.write_text(
                f'#!/bin/sh\n[ "$1" = --describe ] || exec {real} "$@"\n{real} "$@" | sed \'{claim}\'\n'
            )
            server.chmod(0o755)
    return folder
