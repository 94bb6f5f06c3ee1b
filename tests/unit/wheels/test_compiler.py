"""wheels.compiler: what stands for compilers and archivers; a program that prints its arguments is zig."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from wheels.compiler import Zig, find_zig, write_tools


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    zig = Zig(tmp_path / "a folder", "0.1")
    zig.folder.mkdir()
    zig.program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    zig.program.chmod(0o755)
    folder = tmp_path / "tools"
    options = write_tools(zig, folder, "x86_64")
    assert options == [
        f"-DCMAKE_C_COMPILER={folder / 'cc'}",
        f"-DCMAKE_CXX_COMPILER={folder / 'c++'}",
        f"-DCMAKE_AR={folder / 'ar'}",
        f"-DCMAKE_RANLIB={folder / 'ranlib'}",
    ]
    return folder


def _said(tool: Path, *arguments: str) -> list[str]:
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("verb", ["cc", "c++"])
def test_a_compiler_is_for_older_systems(tools: Path, verb: str) -> None:
    arguments = ["-c", "a file.c", "", "-Wl,--exclude-libs,ALL", "-Wl,-rpath,$ORIGIN", "-o", "*"]
    expected = [verb, "-target", "x86_64-linux-gnu.2.28", *arguments]
    expected.remove("-Wl,--exclude-libs,ALL")
    assert _said(tools / verb, *arguments) == expected


def test_an_archiver_gets_all_its_arguments(tools: Path) -> None:
    assert _said(tools / "ar", "qc", "a.a", "b o.o") == ["ar", "qc", "a.a", "b o.o"]
    assert _said(tools / "ranlib", "a.a") == ["ranlib", "a.a"]


def test_without_zig_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="there is no `ziglang`") as caught:
        find_zig()
    assert "'.[wheels]'" in (caught.value.hint or "")
