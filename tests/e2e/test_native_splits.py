"""Where llama.cpp cuts a step into pieces: once at each border between devices, in models of every kind.

What the scheduler says (`GGML_SCHED_DEBUG`) of a token that llama-bench generates; nothing of meshd runs.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_BENCH, RPC_SERVER

from tests.e2e.models import patched
from tests.e2e.native_rig import DEADLINE, Worker
from tests.e2e.random_models import MODELS, random_model
from tests.e2e.random_parts import LAYERS

pytestmark = pytest.mark.native

_PIECE = re.compile(r"^## SPLIT #(\d+): (\w+)\S* # \d+ inputs:? ?(.*)$", re.MULTILINE)


def pieces_of(bench: Path, model: Path, workers: Sequence[str], on_workers: int) -> list[tuple[str, str]]:
    """Device and inputs of each piece of the last step; `on_workers`: layers, the output counts as one."""
    devices = "/".join(f"RPC{number}" for number in range(len(workers)))
    argv = [
        str(bench),
        "-m",
        str(model),
        "--rpc",
        ",".join(workers),
        "-dev",
        devices,
    ]
    argv += ["-ngl", str(on_workers), "-ts", "/".join("1" * len(workers)), "-fa", "1", "-t", "1"]
    # as meshd's heads have it (-nr): upstream aborts where a layer's weights lie in buffers for AMX
    argv += ["--repack", "0"]
    done = subprocess.run(
        [*argv, "-p", "0", "-n", "2", "-r", "1", "-v"],
        env={**os.environ, "GGML_SCHED_DEBUG": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    pieces: list[tuple[str, str]] = []
    for found in _PIECE.finditer(done.stdout + done.stderr):
        if found[1] == "0":
            pieces.clear()
        pieces.append((found[2], found[3]))
    return pieces


@pytest.mark.parametrize("name", MODELS)
def test_each_device_computes_once_and_no_cache_crosses(tmp_path: Path, name: str) -> None:
    """With every border that two workers and the head can have; the head's CPU begins."""
    with ExitStack() as stack:
        rig = [stack.enter_context(Worker(patched().binaries[RPC_SERVER], tmp_path)) for _ in range(2)]
        wrong = {}
        for on_workers in range(2, LAYERS + 2):
            endpoints = [worker.endpoint for worker in rig]
            pieces = pieces_of(patched().binaries[LLAMA_BENCH], random_model(name), endpoints, on_workers)
            if [device for device, _ in pieces] != ["CPU", "RPC0", "RPC0"] or "cache_" in str(pieces):
                wrong[on_workers] = pieces
        assert wrong == {}
