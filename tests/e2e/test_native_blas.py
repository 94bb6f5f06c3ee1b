"""A real device that lacks operations: OpenBLAS, which multiplies matrices and nothing else.

Only with MESHD_SOAK=1 and OpenBLAS installed, for it compiles an rpc-server of its own (a minute or three).
What it shows, test_native_unable.py shows of a CPU that is made to say the same.
"""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from meshd.build import cache as builds
from meshd.build import native
from meshd.build.interface import LLAMA_SERVER, BuildProgress
from meshd.build.machine import cpu_kind, find_tool
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.model.weights_index import encode_index

from tests.e2e.models import cache_folder, patched, smollm2
from tests.e2e.native_rig import Head, Worker, index_of
from tests.e2e.trial_lines import trial
from tests.soak import SOAK

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


def _silent(progress: BuildProgress) -> None:
    """Its output is kept by pytest."""


def _has_openblas() -> bool:
    pkg_config = shutil.which("pkg-config")
    return pkg_config is not None and subprocess.run([pkg_config, "openblas"], check=False).returncode == 0


async def _build() -> Path:
    cache = cache_folder()
    await native.build(cache, backend="cpu", progress=_silent)  # fills the tree
    tree = Tree(cache / "native" / f"tree-cpu-{cpu_kind()}")
    folder = cache / "native" / f"blas-cpu-{cpu_kind()}"
    async with builds.locked(cache / "native" / "lock", _silent):
        tree.patch(read_pin().patches)
        ninja = find_tool("ninja")
        configure = [find_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += ["-S", str(tree.source), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DBUILD_SHARED_LIBS=OFF", "-DGGML_RPC=ON", "-DGGML_RPC_RDMA=OFF", "-DGGML_OPENMP=OFF"]
        configure += ["-DGGML_BLAS=ON", "-DGGML_BLAS_VENDOR=OpenBLAS", "-DLLAMA_BUILD_TESTS=OFF"]
        configure += ["-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"]
        configure += ["-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]
        for argv in (configure, [ninja, "-C", str(folder), "ggml-rpc-server"]):
            await asyncio.to_thread(subprocess.run, argv, check=True)
    return folder / "bin" / "ggml-rpc-server"


@pytest.mark.skipif(not SOAK, reason="compiles another rpc-server: MESHD_SOAK=1")
@pytest.mark.skipif(not _has_openblas(), reason="OpenBLAS is not installed (libopenblas-dev)")
def test_openblas_is_found_out_and_serves_on(tmp_path: Path) -> None:
    server = asyncio.run(_build())
    code, found = trial(server, "BLAS", ["mul_mat:q4_1:576", "rms_norm:576", "set_rows:f16:192"])
    assert (code, {verdict for verdict, _ in found.values()}) == (0, {"lacks"})  # a token, or all
    # the prompt was computed all the same: in floats, where the processor rounds to eight bits
    code, found = trial(server, "BLAS", ["mul_mat:q4_1:576"], "--try-tolerance", "1e-6")
    assert (code, found["mul_mat:q4_1:576"][0]) == (2, "wrong")
    program = tmp_path / "rpc-server"
    program.write_text(f'#!/bin/sh\nexec {server} --device BLAS "$@"\n')
    program.chmod(0o755)
    model = smollm2()
    index = encode_index(index_of([model]))
    with Worker(program, tmp_path, weights=[model]) as worker:
        for _ in range(2):
            with Head(
                patched().binaries[LLAMA_SERVER], tmp_path, model, [worker.endpoint], index=index, ready=False
            ) as head:
                assert head.wait_ready_or_end() == 1, head.output[-2000:]
                assert head.report is not None
                assert head.report.wait("unsupported ").startswith(
                    f"unsupported {worker.endpoint} 0 SET_ROWS "
                )
                names = [line.split(" ", 5)[5] for line in head.report.lines if line.startswith("tensor ")]
                assert "blk.0.attn_q.weight" in names  # matrices go there
                assert not any("norm" in name for name in names)  # what it cannot use does not
        assert worker.process.poll() is None
