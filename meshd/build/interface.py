"""The native part: llama.cpp at one pinned commit, and meshd's backend for it or patches, kept in the cache.

`native/UPSTREAM.toml` is the *pin*, `native/patches` the patches; a *key* names one build of them (commit,
patches, backend, kind of CPU), a *tree* is the folder that builds are made in and that later builds reuse.
A build that has no *stamp* was never finished and is not used. Public functions are in `native.py`, and in
`mesh.py` for the programs of native/mesh. This package runs compilers in the foreground, for people who wait
for them; a daemon only asks `find`.
Tests: tests/unit/build, tests/e2e/test_native_build.py. Why patches: docs/decisions/0002.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshd.wire.native import STOCK_PATCHES

RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, LLAMA_QUANTIZE = (
    "rpc-server",
    "llama-server",
    "llama-bench",
    "llama-quantize",
)
MESH_PROGRAM, MESH_MODULE = "mesh-server", "libggml-mesh.so"  # files of native/mesh, for `mesh.py`

BACKENDS = ("cpu", "metal", "cuda", "vulkan", "hip")


@dataclass(frozen=True, slots=True)
class NativeInfo:
    """Binaries that are ready to run. Two nodes fit together when pin and patches_sha256 are the same."""

    pin: str  # upstream commit, 40 hex digits; "unknown" for a folder that the user named
    patches_sha256: str  # 64 hex digits, or STOCK
    backend: str  # one of BACKENDS, or "unknown"
    bin_dir: Path
    binaries: Mapping[str, Path]
    """RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH; with tools LLAMA_QUANTIZE; for the mesh protocol MESH_…"""

    @property
    def patched(self) -> bool:
        return self.patches_sha256 != STOCK_PATCHES


class Stage(StrEnum):
    """What a build is at."""

    WAIT = "wait"  # another process builds
    FETCH = "fetch"
    UNPACK = "unpack"
    CONFIGURE = "configure"
    COMPILE = "compile"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build is: `done` of `total` steps of this stage, both 0 when they are not known."""

    stage: Stage
    text: str
    done: int = 0
    total: int = 0


ProgressCallback = Callable[[BuildProgress], None]
"""Called on the event loop; must be quick."""
