"""meshd-native, packed with empty programs and installed by pip: meshd finds it; pip removes all of it."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from meshd.build.pin import Pin, read_pin
from meshd.build.wheel import PACKAGE
from wheels.__main__ import NAME, PROGRAMS, files_of, read_programs
from wheels.archive import Name, pack
from wheels.parts import Part

from tests.rules.source import ROOT

LIBRARIES = ("libggml.so", "libggml-base.so", "libggml-cpu-x64.so", "libggml-vulkan.so", "libvulkan.so.1")


@dataclass(frozen=True, slots=True)
class Venv:
    """A venv with the dependencies of the tests, and the checkout's meshd."""

    folder: Path
    site: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def meshd(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        home = {"MESHD_HOME": str(self.folder / "home"), "MESHD_CACHE": str(self.folder / "cache")}
        return _run([self.python, "-m", "meshd", *arguments], PYTHONPATH=str(ROOT), **home, **environ)

    def pip(self, *arguments: str | Path) -> None:
        done = _run([sys.executable, "-m", "pip", "--python", self.folder, "-q", *arguments])
        assert done.returncode == 0, done.stderr


def _run(command: Sequence[str | Path], **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={"PATH": os.environ["PATH"], "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    folder = tmp_path / "venv"
    done = _run([sys.executable, "-m", "venv", "--without-pip", folder])
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Venv(folder, site)


def packed(folder: Path, pin: Pin) -> Path:
    built = folder / "built"
    built.mkdir(parents=True)
    for file in (*PROGRAMS, *LIBRARIES):
        (built / file).write_bytes(b"\x7fELF" + file.encode())
    name = Name(PACKAGE, "0.0.1", "py3-none-any")
    parts = [Part("llama.cpp", pin.release, "MIT", "MIT License\n")]
    return pack(folder, name, files_of(read_programs(built, vulkan=True), parts, pin, name))


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_it_is_found_once_installed_and_leaves_nothing(venv: Venv, tmp_path: Path) -> None:
    before = _files(venv.folder)
    venv.pip("install", "--no-deps", "--no-index", "--no-compile", packed(tmp_path / "dist", read_pin()))
    shown = venv.meshd("native", "info", "--json")
    assert shown.returncode == 0, shown.stderr
    info = json.loads(shown.stdout)
    place = venv.site / PACKAGE / "bin"
    assert (info["pin"], info["bin_dir"]) == (read_pin().commit, str(place))
    assert {path.name for path in place.iterdir()} == {*PROGRAMS, *LIBRARIES}
    assert all(os.access(path, os.X_OK) for path in place.iterdir())
    venv.pip("uninstall", "--yes", NAME)
    assert _files(venv.folder) - before <= {"home", "cache"}, "meshd's own folders, if it made them"
    assert venv.meshd("native", "info").returncode == 1


def test_one_of_other_sources_is_named_and_not_used(venv: Venv, tmp_path: Path) -> None:
    other = replace(read_pin(), sources_sha256="f" * 64)
    venv.pip("install", "--no-deps", "--no-index", "--no-compile", packed(tmp_path / "dist", other))
    shown = venv.meshd("native", "info")
    assert shown.returncode == 1
    assert "hint: install the meshd-native of this meshd" in shown.stderr
    assert "f" * 12 in shown.stderr
