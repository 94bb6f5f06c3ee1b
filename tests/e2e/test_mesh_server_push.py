"""native/mesh: what one worker computes for the next goes there, and not through the head."""

import re
import signal
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair, Mesh, MeshHead, MeshServer
from tests.e2e.mesh_server_scene import LONG, MARKS, check_wrong_push_is_named, found_build, lose
from tests.e2e.models import smollm2, stock, stock_text
from tests.e2e.native_rig import DEADLINE
from tests.e2e.random_models import MODELS, random_model
from tests.native.build import MeshBuild

STATE = 576 * 4  # bytes of a token between two layers of SmolLM2
TOKENS = 24
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


def _through_head(mesh: Mesh) -> int:
    """Bytes of tensors so far, both ways."""
    return mesh.bytes(wire.WRITE) + mesh.bytes(wire.DATA)


def _pushed(mesh: Mesh) -> int:
    return sum(pair.bytes[wire.PUSHED] for pair in mesh.between.values())


@pytest.mark.parametrize("workers", [2, 3])
def test_states_between_layers_do_not_go_through_the_head(
    build: MeshBuild, workers: int, tmp_path: Path
) -> None:
    costs, answers = {}, {}
    for push in (False, True):
        with Mesh(build, tmp_path, smollm2(), workers, weights=[smollm2()], push=push) as mesh:
            before = _through_head(mesh), _pushed(mesh)
            asked = mesh.messages(wire.READ)
            assert mesh.head.complete(tokens=TOKENS) == stock_text(smollm2(), TOKENS)
            costs[push] = _through_head(mesh) - before[0], _pushed(mesh) - before[1]
            answers[push] = mesh.messages(wire.READ) - asked
            assert mesh.messages(wire.PUSH) == mesh.messages(wire.TAKE)
    borders = workers - 1
    assert costs[False][1] == 0
    assert costs[True][1] > borders * TOKENS * STATE
    assert answers[False] == workers * answers[True]  # it waits for the last worker alone
    # each state was read by the head and written to the next worker
    assert costs[False][0] - costs[True][0] > 2 * borders * TOKENS * STATE


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_kind_of_model_answers_as_one_node_does(build: MeshBuild, name: str, tmp_path: Path) -> None:
    model = random_model(name)
    with Mesh(build, tmp_path, model, 3, weights=[model], push=True) as mesh:
        assert mesh.head.complete() == stock_text(model)
        assert _pushed(mesh) > 0


def test_a_long_prompt_is_pipelined_and_answered_as_by_one_node(build: MeshBuild, tmp_path: Path) -> None:
    extra = ("-ub", "32")
    with Mesh(build, tmp_path, smollm2(), 3, weights=[smollm2()], extra=extra, push=True) as mesh:
        assert mesh.head.complete(LONG) == stock_text(smollm2(), prompt=LONG, extra=extra)


def test_a_pair_that_is_not_connected_goes_through_the_head(build: MeshBuild, tmp_path: Path) -> None:
    """Only one of the two says that it has the connection."""
    pairs = CountedPair(), CountedPair()
    lone = CountedPair()
    with (
        MeshServer(build, tmp_path, pairs[0], neighbours={1: lone.head}),
        MeshServer(build, tmp_path, pairs[1]),
        MeshHead(build, tmp_path, smollm2(), pairs, binary=stock().binaries[LLAMA_SERVER]) as head,
    ):
        assert head.complete() == stock_text(smollm2())
        assert lone.messages[wire.PUSHED] == 0
    for pair in (*pairs, lone):
        pair.close()


def test_a_cut_between_two_workers_ends_the_head_with_its_reason(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 3, weights=[smollm2()], push=True) as mesh:
        lose(mesh, lambda: mesh.cut(1, 2))
        assert "mesh: lost MESH2: it says: lost neighbour 1: it ended" in mesh.head.output


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_worker_that_is_killed_ends_the_head_and_no_token_is_wrong(
    build: MeshBuild, victim: int, tmp_path: Path
) -> None:
    """Each of the others ends with a neighbour, and whose word comes first is chance: daemons know better."""
    with Mesh(build, tmp_path, smollm2(), 3, weights=[smollm2()], push=True) as mesh:
        lose(mesh, lambda: mesh.servers[victim].process.send_signal(signal.SIGKILL))
        ended = re.search(
            r"mesh: lost MESH(\d): (it ended|it says: lost neighbour \d: it ended)", mesh.head.output
        )
        assert ended, mesh.head.output
        assert ended[2] != "it ended" or int(ended[1]) == victim


def test_a_neighbour_that_says_something_else_ends_the_head(build: MeshBuild, tmp_path: Path) -> None:
    """A frame between two of the workers' own."""
    with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], push=True) as mesh:
        lose(mesh, lambda: mesh.between[0, 1].insert(wire.HEADER.pack(8, wire.PUSHED, 0, 0) + bytes(8)))
        check_wrong_push_is_named(mesh)


def test_workers_end_with_their_head_and_without_a_complaint(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 3, weights=[smollm2()], push=True) as mesh:
        mesh.head.process.send_signal(signal.SIGKILL)
        assert [server.process.wait(DEADLINE) for server in mesh.servers] == [0, 0, 0]
