"""wheels.compiler: what stands for compilers and archivers; a program that prints its arguments is zig."""

import importlib.util
import platform
import subprocess
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from wheels.compiler import Zig, find_zig, write_tools


@pytest.fixture
def zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Zig:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    zig = Zig(tmp_path / "a folder", "0.1")
    zig.folder.mkdir()
    zig.program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    zig.program.chmod(0o755)
    return zig


@pytest.fixture
def tools(zig: Zig, tmp_path: Path) -> Path:
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


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("-march=armv8-a", "-mcpu=generic+v8a"),
        ("-march=armv8.2-a+dotprod+fp16+sve", "-mcpu=generic+v8_2a+dotprod+fullfp16+sve"),
        ("-march=armv9.2-a+i8mm+sve2+sme", "-mcpu=generic+v9_2a+i8mm+sve2+sme"),
        ("-march=x86-64-v3", "-march=x86-64-v3"),
    ],
)
def test_kinds_of_arm_have_zigs_names(zig: Zig, tmp_path: Path, asked: str, said: str) -> None:
    write_tools(zig, tmp_path, "aarch64")
    expected = ["cc", "-target", "aarch64-linux-gnu.2.28", "-c", said, "a file.c"]
    assert _said(tmp_path / "cc", "-c", asked, "a file.c") == expected


def test_cmake_is_told_of_another_machine(zig: Zig, tmp_path: Path) -> None:
    *_, system, processor = write_tools(zig, tmp_path, "aarch64")
    assert (system, processor) == ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64")


def test_an_archiver_gets_all_its_arguments(tools: Path) -> None:
    assert _said(tools / "ar", "qc", "a.a", "b o.o") == ["ar", "qc", "a.a", "b o.o"]
    assert _said(tools / "ranlib", "a.a") == ["ranlib", "a.a"]


def test_without_zig_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="there is no `ziglang`") as caught:
        find_zig()
    assert "'.[wheels]'" in (caught.value.hint or "")
