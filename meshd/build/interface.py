"""The native part: upstream's programs and those of native/mesh, built at one pinned commit and kept.

`native/UPSTREAM.toml` is the *pin*, `native/mesh` has our *sources*. All is compiled in one *tree* for each
backend and kind of CPU, `upstream-…`, which holds llama.cpp as it is and stays for the next build. What comes
of it is copied to other folders of the cache: upstream's programs to `llama-…`, by the pin, ours to `mesh-…`,
by the hash of their sources too, so that a change of these compiles nothing of upstream's. A folder without a
*stamp* was never finished and is not used. Public functions are in `native.py`. This package runs compilers
in the foreground, for people who wait for them; a daemon only asks `find`.
Tests: tests/unit/build, tests/e2e/test_native_build.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# upstream's, by the names of their files
RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, LLAMA_QUANTIZE, LLAMA_BATCHED_BENCH = (
    "ggml-rpc-server",
    "llama-server",
    "llama-bench",
    "llama-quantize",
    "llama-batched-bench",
)
MESH_PROGRAM, MESH_MODULE = "mesh-server", "libggml-mesh.so"  # ours: what workers run, and what a head loads
NAME_IN_SCRIPTS = "rpc-server"  # of MESH_PROGRAM, in JSON: scripts rely on it

BACKENDS = ("cpu", "metal", "cuda", "vulkan", "hip")


@dataclass(frozen=True, slots=True)
class NativeInfo:
    """Binaries that are ready to run. Two nodes have the same where pin and sources_sha256 are."""

    pin: str  # upstream commit, 40 hex digits; "unknown" for a folder that the user named
    sources_sha256: str  # of native/mesh, 64 hex digits, or "unknown"
    backend: str  # one of BACKENDS, or "unknown"
    bin_dir: Path  # of upstream's
    binaries: Mapping[str, Path]
    """RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH, MESH_PROGRAM, MESH_MODULE; with tools the other two"""


class Stage(StrEnum):
    """The stage of a build."""

    WAIT = "wait"  # another process builds
    FETCH = "fetch"
    UNPACK = "unpack"
    CONFIGURE = "configure"
    COMPILE = "compile"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """The progress of a build: `done` of `total` steps of this stage, both 0 when unknown."""

    stage: Stage
    text: str
    done: int = 0
    total: int = 0


ProgressCallback = Callable[[BuildProgress], None]
"""Called on the event loop; must be quick."""
