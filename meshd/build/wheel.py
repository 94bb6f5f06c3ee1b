"""Find the programs of meshd-native: a wheel beside meshd's, for those who have no compiler.

Its package `meshd_native` is looked at, never imported: a stamp, and `bin` with programs and libraries.
meshd-native-cuda13 adds its own stamp and `bin/libggml-cuda.so`, which ggml loads from there.
`wheels/` makes both; docs/decisions/0075 has the reasons.
"""

import importlib.util
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.build.cache import read_stamp, stamped_files
from meshd.build.interface import LLAMA_BENCH, LLAMA_SERVER, MESH_MODULE, MESH_PROGRAM, RPC_SERVER
from meshd.build.pin import Pin

PACKAGE = "meshd_native"
CUDA_STAMP, CUDA_MODULE = "cuda13.json", "libggml-cuda.so"
_PROGRAMS = (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, MESH_PROGRAM, MESH_MODULE)
_SHOWN = 12  # digits of a hash
_ARCHITECTURE = re.compile(r"(\d{2,3})([af]?)")  # 90: compute capability 9.0


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed meshd-native: what it was built from, and its programs; none if it is damaged."""

    commit: str
    sources_sha256: str
    backend: str
    bin_dir: Path
    programs: Mapping[str, Path]
    cuda: str | None = None
    """The commit of the module for CUDA; empty if it is damaged, None if there is none."""
    machine_code: tuple[str, ...] = ()
    """The kinds of GPU that this module has machine code for, as NVIDIA's compiler names them."""

    @property
    def backends(self) -> tuple[str, ...]:
        """List what its programs can compute on, the most useful first."""
        return (*(("cuda",) if self.cuda is not None else ()), self.backend)

    def fault(self, pin: Pin) -> str | None:
        """Return why this meshd cannot use it, or None."""
        if not self.programs:
            return "it is damaged: a file is missing, or differs from its stamp"
        if (self.commit, self.sources_sha256) == (pin.commit, pin.sources_sha256):
            if self.cuda in (None, pin.commit):
                return None
            # ggml would load the module all the same
            what = f"is for llama.cpp {self.cuda[:_SHOWN]}" if self.cuda else "is damaged"
            return f"the meshd-native-cuda13 beside it {what}: uninstall that one"
        made = f"llama.cpp {self.commit[:_SHOWN]} with sources {self.sources_sha256[:_SHOWN]}"
        return f"it has {made}, and this meshd needs {pin.commit[:_SHOWN]} with {pin.sources_sha256[:_SHOWN]}"

    def compiles_for(self, kinds: Iterable[int]) -> list[int]:
        """Return the kinds of GPU (90: compute capability 9.0) for which the driver has to compile first.

        Machine code runs on later ones of the same major version; with `a`, on that kind alone. Empty, too,
        if the stamp of the module says nothing.
        """
        has = [_ARCHITECTURE.fullmatch(code) for code in self.machine_code]
        known = [(int(match[1]), match[2]) for match in has if match is not None]

        def fits(kind: int) -> bool:
            return any(
                kind == code or (letter != "a" and kind // 10 == code // 10 and kind > code)
                for code, letter in known
            )

        return [kind for kind in kinds if known and not fits(kind)]


def has_wheels() -> bool:
    """Say whether wheels are made for machines like this one."""
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def installed_wheel() -> Wheel | None:
    """Return the meshd-native beside this meshd, fit or not; None if there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:  # no origin: a folder that is no package
        return None
    return read_wheel(Path(spec.origin).parent)


def read_wheel(package: Path) -> Wheel:
    """Read the package in a folder; one whose stamp says anything unexpected has no programs."""
    stamp = read_stamp(package) or {}
    parts = [stamp.get(name) for name in ("commit", "sources", "backend")]
    commit, sources, backend = (part if isinstance(part, str) else "" for part in parts)
    files = stamped_files(package, stamp)
    programs = {name: files[name] for name in _PROGRAMS} if files.keys() >= set(_PROGRAMS) else {}
    return Wheel(commit, sources, backend, package / "bin", programs, *_cuda(package))


def _cuda(package: Path) -> tuple[str | None, tuple[str, ...]]:
    """Return Wheel.cuda and machine_code. A module without a stamp is loaded, too, and counts as damaged."""
    stamp = read_stamp(package, CUDA_STAMP)
    if stamp is None:
        is_there = any((package / part).exists() for part in (CUDA_STAMP, f"bin/{CUDA_MODULE}"))
        return "" if is_there else None, ()
    commit, code = stamp.get("commit"), stamp.get("machine_code")
    is_whole = CUDA_MODULE in stamped_files(package, stamp)
    kinds = tuple(kind for kind in code if isinstance(kind, str)) if isinstance(code, list) else ()
    return commit if isinstance(commit, str) and is_whole else "", kinds
