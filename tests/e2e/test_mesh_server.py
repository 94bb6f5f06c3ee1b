"""native/mesh in a stock llama-server of the pin: text of one node, weights by content, losses."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from meshd.base.wakeful_loop import Waiting
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair, Mesh, MeshServer
from tests.e2e.mesh_server_scene import LONG, LOST, MARKS, found_build, unready_head
from tests.e2e.models import smollm2, stock_text
from tests.native.build import MeshBuild
from tests.native.schema import OPERATIONS
from tests.native.suite import count_tests

pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


@pytest.mark.parametrize("waiting", list(Waiting))
def test_the_native_tests_pass_under_sanitizers(build: MeshBuild, waiting: Waiting) -> None:
    env = {**os.environ, "GGML_MESH_WAITING": waiting.value}
    result = subprocess.run([build.tests], capture_output=True, text=True, check=False, timeout=300, env=env)
    passed = [line for line in result.stdout.splitlines() if line.startswith("passed ")]
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAILED ")]
    assert (result.returncode, failed) == (0, []), f"after {passed[-1:]}: {result.stderr[-20_000:]}"
    assert len(passed) == count_tests()


def test_both_say_what_they_are(build: MeshBuild) -> None:
    words: tuple[tuple[str, ...], ...] = (("--describe",), ("--describe", str(build.module)))
    program, module = (
        json.loads(subprocess.run([build.server, *argv], capture_output=True, check=True).stdout)
        for argv in words
    )
    assert (program.pop("program"), module.pop("program")) == ("mesh-server", "libggml-mesh")
    assert program == module
    assert program["protocol"] == wire.VERSION
    assert {*program["operations"]} <= {one.name for one in OPERATIONS}
    assert len(program["operations"]) > 50


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stock_head_answers_as_one_node_does(build: MeshBuild, workers: int, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), workers) as mesh:
        assert mesh.head.complete() == stock_text(smollm2())
        assert mesh.messages(wire.GRAPH) < mesh.messages(wire.COMPUTE)
        assert mesh.bytes(wire.WRITE) > smollm2().stat().st_size / 2


def test_a_worker_that_is_killed_ends_the_head_with_its_reason(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 2) as mesh:
        mesh.servers[1].process.send_signal(signal.SIGKILL)
        assert mesh.head.wait_end() == LOST
        assert "mesh: lost MESH1: it ended" in mesh.head.output


def test_a_worker_without_memory_fails_the_load(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 1, memory="1000000", ready=False) as mesh:
        assert mesh.head.wait_end() == 1
        assert "unable to allocate MESH0 buffer" in mesh.head.output


def test_a_worker_with_another_number_of_devices_is_not_used(tmp_path: Path) -> None:
    with unready_head(tmp_path, CountedPair(), devices=[2]) as head:
        assert head.wait_end() == 1
        assert "lost MESH0: its WELCOME is wrong: it has 1 devices, not 2" in head.output


def test_a_worker_whose_head_is_gone_ends(build: MeshBuild, tmp_path: Path) -> None:
    pair = CountedPair()
    with MeshServer(build, tmp_path, pair) as server:
        pair.head.close()
        assert server.process.wait(60) == 0
    pair.close()


def test_a_long_prompt_is_pipelined_and_answered_as_by_one_node(build: MeshBuild, tmp_path: Path) -> None:
    """Two workers at once: what orders their inputs are the connections alone."""
    prompt, extra = LONG, ("-ub", "32")
    with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], extra=extra) as mesh:
        before = mesh.messages(wire.GRAPH) + mesh.messages(wire.COMPUTE)
        assert mesh.head.complete(prompt) == stock_text(smollm2(), prompt=prompt, extra=extra)
        assert mesh.messages(wire.GRAPH) + mesh.messages(wire.COMPUTE) - before > 2 * 8
