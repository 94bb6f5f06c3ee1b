"""wheels.vulkan: the folder of packages, and how loader and module are compiled by scripts for tools."""

import asyncio
import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from wheels import vulkan
from wheels.vulkan import LOADER, Vulkan, unpack_vulkan

GENERATOR = "import pathlib, sys\npathlib.Path('loader/generated/seen').write_text(' '.join(sys.argv[1:]))\n"
VERSION = "1.4.309"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Packages, as far as it is looked at them."""
    folder = tmp_path / "the packages"
    for name in ("usr/bin/glslc", "usr/include/vulkan/vulkan.hpp", "usr/share/cmake/SPIRV-Headers/config"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    with tarfile.open(folder / f"vulkan-loader_{VERSION}.0.orig.tar.xz", "w:xz") as archive:
        for name, text in (("scripts/generate_source.py", GENERATOR), ("loader/loader.c", "int loader;")):
            member = tarfile.TarInfo(f"vulkan-loader-{VERSION}.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    (folder / f"vulkan-loader_{VERSION}.0-1.debian.tar.xz").touch()
    return folder


def test_the_source_is_unpacked_each_time_anew(packages: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for _ in range(2):
        unpacked = unpack_vulkan(packages, work)
        assert unpacked == Vulkan(packages / "usr", work / f"vulkan-loader-{VERSION}.0", VERSION)
        assert (unpacked.source / "loader/loader.c").read_text() == "int loader;"
        assert not (work / "left").exists()
        (work / "left").touch()


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("usr/bin/glslc", "lacks usr/bin/glslc"),
        (f"vulkan-loader_{VERSION}.0.orig.tar.xz", "lacks the source of vulkan-loader"),
    ],
)
def test_what_is_not_there_is_named(packages: Path, tmp_path: Path, gone: str, named: str) -> None:
    (packages / gone).unlink()
    with pytest.raises(UserError, match=named):
        unpack_vulkan(packages, tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("vulkan-loader_1.3.239.0.orig.tar.xz", "sources of several"),
        ("usr/include/stdio.h", "headers of a C library"),
    ],
)
def test_what_must_not_be_there_is_named(packages: Path, tmp_path: Path, more: str, why: str) -> None:
    (packages / more).touch()
    with pytest.raises(UserError, match=why):
        unpack_vulkan(packages, tmp_path / "work")


def test_the_compiler_of_shaders_runs_with_its_own_libraries(packages: Path, tmp_path: Path) -> None:
    linker = packages / "usr/lib64/ld-linux-x86-64.so.2"
    linker.parent.mkdir()
    linker.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    linker.chmod(0o755)
    flags = unpack_vulkan(packages, tmp_path / "work").module_flags(tmp_path / LOADER)
    glslc = tmp_path / "work/glslc"
    assert f"-DVulkan_GLSLC_EXECUTABLE={glslc}" in flags
    assert f"-DVulkan_LIBRARY={tmp_path / LOADER}" in flags
    said = subprocess.run([glslc, "-o", "a file", "$x"], capture_output=True, text=True, check=True).stdout
    usr = packages / "usr"
    assert said.splitlines() == [
        *("--library-path", str(usr / "lib/x86_64-linux-gnu"), str(usr / "bin/glslc")),
        *("-o", "a file", "$x"),
    ]


@pytest.mark.parametrize("fails", ["", "cmake", "ninja"])
def test_the_loader_is_generated_configured_and_compiled(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    tools = {name: tmp_path / name for name in ("cmake", "ninja")}
    for name, tool in tools.items():
        tool.write_text(f'#!/bin/sh\necho {name} "$@"\nexit {int(name == fails)}\n')
        tool.chmod(0o755)
    monkeypatch.setattr(vulkan, "find_tool", lambda name: str(tools[name]))
    unpacked, log = unpack_vulkan(packages, tmp_path / "work"), tmp_path / "log"
    compiling = unpacked.compile_loader(["-DCMAKE_C_COMPILER=zig"], log, lambda progress: None)
    if fails:
        with pytest.raises(UserError) as caught:
            asyncio.run(compiling)
        assert f"\n{fails} " in caught.value.hint
        return
    assert asyncio.run(compiling) == tmp_path / "work/build/loader" / LOADER
    assert (unpacked.source / "loader/generated/seen").read_text() == (
        f"{unpacked.source / 'vulkan-headers/registry'} --generated-version {VERSION}"
    )
    said = [line for line in log.read_text().splitlines() if line.startswith(("cmake", "ninja"))]
    assert len(said) == 2
    assert f"-DCMAKE_PREFIX_PATH={packages / 'usr'} " in said[0]
    assert "-DBUILD_WSI_XCB_SUPPORT=OFF" in said[0] and said[0].endswith("-DCMAKE_C_COMPILER=zig")
    assert said[1] == f"ninja -C {tmp_path / 'work/build'} vulkan"
