"""Say what a confined program may use: as the command line of confine.py, on macOS as one of sandbox-exec.

A native program gets the system's libraries, its own folder, the GPUs, and what its Sandbox names: nothing of
the user's files, no network, no other process. A script that somebody gives in place of a program cannot be
confined this way, as its interpreter needs more; it runs as it is, unless the sandbox is required.
"""

import contextlib
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from meshd.process.confine import HIDDEN, has_filters, landlock_version
from meshd.process.interface import Network, Sandbox

_LAUNCHER = str(Path(__file__).with_name("confine.py"))
_ELF, _INTERPRETER = b"\x7fELF\x02\x01", 3  # 64 bits, little endian; PT_INTERP
# Libraries and what drivers read about themselves and the machine. Of /proc only what belongs to no other
# process; /etc without anything that a program could learn about users.
_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/run/opengl-driver", "/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/vulkan", "/etc/OpenCL", "/etc/glvnd", "/etc/nvidia"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/sys"),
    *("/proc/devices", "/proc/modules", "/proc/driver", "/proc/filesystems"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Nodes of GPUs, with patterns: NVIDIA's, those of Mesa and AMD, WSL2's.
_GPUS = ("dev/nvidia*", "dev/nvidia-caps", "dev/dri", "dev/kfd", "dev/dxg")
# Where drivers of NVIDIA and Mesa keep compiled kernels. They trust what they find there, so a folder of the
# user's other programs stays closed.
_KERNELS = ("CUDA_CACHE_PATH", "__GL_SHADER_DISK_CACHE_PATH", "MESA_SHADER_CACHE_DIR")
_KERNEL_FOLDER = ("meshd", "kernels")  # in the cache folder
# Variables that name libraries or drivers, as paths with colons.
_PLACES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "GGML_BACKEND_PATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_SANDBOX_EXEC, _DARWIN_USER_CACHE_DIR = "/usr/bin/sandbox-exec", 65538  # sandbox-exec(1), confstr(3) of macOS
# These would also change the interpreter that runs confine.py.
_OF_THE_LOADER = ("LD_", "GLIBC_TUNABLES", "PYTHON", "ASAN_", "UBSAN_", "TSAN_")


class NotConfined(Exception):
    """Carry in words what a required sandbox lacks here."""


def confined(
    sandbox: Sandbox, program: str, environment: Mapping[str, str], root: Path = Path("/")
) -> tuple[list[str], dict[str, str]] | None:
    """Return the words to put before the program's arguments, and its environment.

    Returns None where the program cannot be confined: a script, or on another system than Linux. macOS uses
    its profile only where the sandbox is required, as no Mac has tried it yet. Raises NotConfined if it is
    required, and a part of it is missing.
    """
    if sys.platform == "darwin" and sandbox.is_required:
        return [_SANDBOX_EXEC, "-p", profile(sandbox, program, environment), program], dict(environment)
    if sandbox.is_required and (missing := _missing()):
        raise NotConfined(f"this system has no {missing}")
    interpreter = _interpreter(Path(program)) if sys.platform == "linux" else None
    if interpreter is None:
        if sandbox.is_required:
            raise NotConfined(f"`{program}` is no program for Linux")
        return None
    gpus = [path for pattern in _GPUS for path in sorted(root.glob(pattern))]
    if gpus:
        environment = dict.fromkeys(_KERNELS, str(_kernel_folder(environment))) | dict(environment)
    found = _rules(sandbox, program, interpreter, environment, gpus)
    rules = "\n".join(rule for rule in found if "\n" not in rule)  # of a path with one, nothing is allowed
    hidden = {
        HIDDEN + name if name.startswith(_OF_THE_LOADER) else name: value
        for name, value in environment.items()
    }
    return [sys.executable, "-I", "-S", _LAUNCHER, rules, program], hidden


def confines_with() -> tuple[str, ...]:
    """Name what this system confines programs with, unless it is told not to."""
    version = landlock_version()
    return (
        *((f"Landlock (version {version})",) if version else ()),
        *(("seccomp",) if has_filters() else ()),
    )


def _missing() -> str:
    """Name the parts of a sandbox that this kernel lacks; empty if it has all."""
    parts = {"Landlock": landlock_version() > 0, "seccomp": has_filters()}
    return " and no ".join(name for name, is_there in parts.items() if not is_there)


def profile(sandbox: Sandbox, program: str, environment: Mapping[str, str]) -> str:
    """Return a profile in the language of macOS's sandbox-exec(1), in which the last rule that matches wins.

    Metal, its compiler and the system's libraries keep what they need, as the default is to allow. Closed are
    the network, other processes, all writing, and the home folder but for what the sandbox names.
    """
    real = Path(program).resolve()
    home = Path(environment.get("HOME", "/var/empty")).resolve()
    folders = (real.parent, real.parent.parent / "lib")
    read = [path for path in (*folders, *sandbox.read) if not home.is_relative_to(path)]
    kept = [*sandbox.keep, *map(Path, filter(None, [_metal_cache()]))]
    rules = ["(version 1)", "(allow default)"]
    rules += ["(deny process-fork)", "(deny process-exec*)"]
    rules += [f"(allow process-exec (literal {_quoted(real)}))"]
    rules += ["(deny signal)", "(allow signal (target self))", "(deny mach-priv-task-port)"]
    rules += [f"(deny file-read-data (subpath {_quoted(home)}))", "(deny file-write*)"]
    rules += [f"(allow file-read* (subpath {_quoted(path)}))" for path in (real, *read)]
    rules += [f"(allow file-write* (literal {_quoted(Path(device))}))" for device in _DEVICES]
    rules += [f"(allow file-read* file-write* (subpath {_quoted(path)}))" for path in kept]
    if sandbox.network != Network.ANY:
        rules += ["(deny network*)"]
    if sandbox.listen is not None:
        folder = _quoted(sandbox.listen.resolve())
        rules += [f"(allow file-write* network-bind network-inbound (subpath {folder}))"]
    return "\n".join(rules)


def _quoted(path: Path) -> str:
    """Quote a path as a string of a profile."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _metal_cache() -> str:
    """Return the folder in which Metal keeps compiled shaders; empty on another system."""
    with contextlib.suppress(OSError):  # of a system that has no such folder
        return os.path.realpath(os.confstr(_DARWIN_USER_CACHE_DIR) or "")
    return ""


def _rules(
    sandbox: Sandbox,
    program: str,
    interpreter: str,
    environment: Mapping[str, str],
    gpus: Sequence[Path],
) -> Iterator[str]:
    yield f"network {sandbox.network}"
    # What runs: the program and its loader.
    real = Path(program).resolve()
    yield f"run {real}"
    if interpreter:
        yield f"run {interpreter}"
    # What it reads: libraries beside it, those of the variables, and NVIDIA's packages beside its package.
    folders = [real.parent, real.parent.parent / "lib"]
    folders += [Path(place, "nvidia") for place in sys.path if place.endswith("site-packages")]
    named = [Path(place) for name in _PLACES for place in environment.get(name, "").split(":") if place]
    home = Path(environment.get("HOME", "/nonexistent"))
    for path in (*map(Path, _SYSTEM), *folders, *named):
        if home.is_relative_to(path):  # a program that lies in the home folder itself, or in /
            yield from (f"read {library}" for library in sorted(path.glob("*.so*")))
        elif path.is_absolute():
            yield f"read {path}"
    for path in sandbox.read:
        if path.is_absolute():
            yield f"read {path}"
    # Devices; with GPUs also what their drivers keep and share.
    for device in (*_DEVICES, *gpus):
        yield f"device {device}"
    kept = list(sandbox.keep)
    if gpus:
        # What CUDA's driver needs to start: it names its threads in /proc, and makes sockets.
        yield "driver gpu"
        yield "change /proc/self"
        kept += sorted({Path(environment[name]) for name in _KERNELS if environment[name]})
    for path in kept:
        yield f"keep {path}"
    if sandbox.listen is not None:
        yield f"listen {sandbox.listen}"
    if not kept:
        yield "file_bytes 0"
    if sandbox.memory is not None and not gpus:
        yield f"memory_bytes {sandbox.memory}"


def _kernel_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for compiled kernels, and make it: a driver cannot make its own from inside."""
    home = Path(environment.get("HOME", "/nonexistent"))
    folder = Path(environment.get("XDG_CACHE_HOME") or home / ".cache", *_KERNEL_FOLDER)
    with contextlib.suppress(OSError):
        for parent in (folder.parent.parent, folder.parent, folder):  # of a home that is there
            parent.mkdir(mode=0o700, exist_ok=True)
    return folder


def _interpreter(program: Path) -> str | None:
    """Return the loader that an ELF program names, empty if it names none; None for anything else."""
    try:
        with program.open("rb") as file:
            head = file.read(64)
            if not head.startswith(_ELF) or len(head) < 64:
                return None
            # elf(5): offset of the program headers, their size and their number
            (start,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
            for number in range(count):
                file.seek(start + number * size)
                entry = file.read(56)
                kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", entry)
                if kind == _INTERPRETER:
                    file.seek(offset)
                    return os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
    except (OSError, struct.error):
        return None
    return ""
