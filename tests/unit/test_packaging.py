"""The scripts of packaging/: what they refuse, and the formula that one of them fills in."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.source import ROOT

DEBIAN, HOMEBREW = ROOT / "packaging/debian", ROOT / "packaging/homebrew"
MESHD, NATIVE = "meshd-1.2.3-py3-none-any.whl", "meshd_native-1.2.3-py3-none-manylinux_2_28_x86_64.whl"


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with both."""
    for name in (MESHD, NATIVE):
        (tmp_path / name).write_text(name, "utf-8")
    return tmp_path


@pytest.mark.parametrize("script", [*DEBIAN.iterdir(), HOMEBREW / "fill"], ids=lambda path: path.name)
def test_a_script_is_one_for_any_shell(script: Path) -> None:
    assert script.read_text("utf-8").startswith("#!/bin/sh\n")
    assert run("/bin/sh", "-n", script).stderr == ""


@pytest.mark.parametrize(
    "script", [DEBIAN / "build", DEBIAN / "try", HOMEBREW / "fill"], ids=lambda path: path.name
)
def test_without_arguments_it_says_how_it_is_called(script: Path) -> None:
    done = run(script)
    assert done.returncode == 2
    assert f"packaging/{script.parent.name}/{script.name} " in done.stdout
    assert "set -eu" not in done.stdout


def test_a_deb_needs_one_wheel_of_each(wheels: Path) -> None:
    (wheels / NATIVE.replace("1.2.3", "1.2.4")).touch()
    done = run(DEBIAN / "build", "bookworm", wheels, wheels)
    assert done.returncode == 1
    assert f"error: 2 wheels of meshd_native in {wheels}, expected 1" in done.stderr


def test_a_formula_needs_both_wheels(tmp_path: Path) -> None:
    done = run(HOMEBREW / "fill", tmp_path, "https://example.org")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: expected one file {tmp_path}/meshd-*.whl" in done.stderr


def test_a_formula_names_the_wheels_and_their_hashes(wheels: Path) -> None:
    done = run(HOMEBREW / "fill", wheels, "https://example.org/v1.2.3/")
    assert done.returncode == 0, done.stderr
    for name in (MESHD, NATIVE):
        digest = hashlib.sha256(name.encode()).hexdigest()
        named = rf'url "https://example\.org/v1\.2\.3/{re.escape(name)}".*?sha256 "{digest}"'
        assert re.search(named, done.stdout, re.DOTALL)
    assert 'version "1.2.3"' in done.stdout
    assert not re.search(r"@\w+@", done.stdout)
    if ruby := shutil.which("ruby"):
        (wheels / "meshd.rb").write_text(done.stdout, "utf-8")
        assert run(ruby, "-wc", wheels / "meshd.rb").stdout == "Syntax OK\n"
