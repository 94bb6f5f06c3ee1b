"""The compiler of portable programs, from the package `ziglang`: clang, libc++, an older glibc's symbols."""

import importlib.metadata
import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError

PACKAGE = "ziglang"
GLIBC = "2.28"  # of Debian 10, Ubuntu 18.10, RHEL 8, and all that is newer
MACHINES = ("aarch64", "x86_64")
_ARCHIVERS = ("ar", "ranlib")
# The linker lacks --exclude-libs; mesh.map says what libggml-mesh.so shows. ggml names kinds of ARM as
# clang and GCC do, -march=armv8.2-a+fp16, which zig writes -mcpu=generic+v8_2a+fullfp16.
_COMPILER = """#!/bin/sh
count=$#
while [ $count -gt 0 ]; do
    case $1 in
    -Wl,--exclude-libs,*) ;;
    -march=armv*) set -- "$@" "$(echo "$1" | sed '{arm}')" ;;
    *) set -- "$@" "$1" ;;
    esac
    shift
    count=$((count - 1))
done
exec '{zig}' {verb} -target {target} "$@"
"""
_ARM = r"s/-march=armv\([0-9]\)\(\.\([0-9]\)\)*-a/-mcpu=generic+v\1_\3a/; s/_a/a/; s/+fp16/+fullfp16/"
_ARCHIVER = """#!/bin/sh
exec '{zig}' {verb} "$@"
"""


@dataclass(frozen=True, slots=True)
class Zig:
    """The installed package."""

    folder: Path
    version: str

    @property
    def program(self) -> Path:
        """Return the program that does all of it."""
        return self.folder / "zig"


def find_zig() -> Zig:
    """Return the installed package. Raises UserError."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(
            f"cannot build portable programs: there is no `{PACKAGE}`", hint="run `pip install '.[wheels]'`"
        )
    return Zig(Path(spec.origin).parent, importlib.metadata.version(PACKAGE))


def write_tools(zig: Zig, folder: Path, machine: str) -> list[str]:
    """Write what stands for compilers and archivers into `folder`; return CMake's options for it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = f"{machine}-linux-gnu.{GLIBC}"
    texts = dict.fromkeys(("cc", "c++"), _COMPILER) | dict.fromkeys(_ARCHIVERS, _ARCHIVER)
    for verb, text in texts.items():
        tool = folder / verb
        tool.write_text(text.format(zig=zig.program, verb=verb, target=target, arm=_ARM), "utf-8")
        tool.chmod(0o755)
    names = {"C_COMPILER": "cc", "CXX_COMPILER": "c++", "AR": "ar", "RANLIB": "ranlib"}
    options = [f"-DCMAKE_{option}={folder / tool}" for option, tool in names.items()]
    if machine != platform.machine():  # CMake then runs nothing that it compiles
        options += ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={machine}"]
    return options
