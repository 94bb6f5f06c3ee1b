"""native/mesh: what answers cost in one slot of several, by the bytes that cross."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.native_rig import DEADLINE
from tests.e2e.random_models import random_model
from tests.native.build import MeshBuild

SLOTS = 4
CONTEXT = 1024  # tokens of each
PROMPT = 300
TOKENS = 8
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


def _ask(mesh: Mesh, slot: int, first: int, tokens: int, *, prompt: int = PROMPT) -> None:
    """In this slot, to a prompt that no other has."""
    body = {
        "prompt": [10 + (first * 31 + number * 7) % 200 for number in range(prompt)],
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "id_slot": slot,
    }
    status, answer = mesh.head.request("POST", "/completion", json.dumps(body).encode(), DEADLINE)
    assert status == 200, answer


def _sent(mesh: Mesh, kind: int, asked: Callable[[], object]) -> int:
    """Bytes of such messages to all workers meanwhile."""
    before = mesh.bytes(kind)
    asked()
    return mesh.bytes(kind) - before


def _together(mesh: Mesh, slots: Sequence[int]) -> None:
    with ThreadPoolExecutor(len(slots)) as pool:
        for answer in [pool.submit(_ask, mesh, slot, 50 + slot, 4 * TOKENS, prompt=8) for slot in slots]:
            answer.result()


def test_finished_conversations_add_nothing_to_a_later_answer(build: MeshBuild, tmp_path: Path) -> None:
    """Their cells are attended to in a shared cache, and the mask is as wide as all of them."""
    model = random_model("llama")
    costs: dict[str, tuple[int, int]] = {}
    for name, options in (("apart", ()), ("shared", ("-kvu",))):
        extra = ("-np", str(SLOTS), "-c", str(SLOTS * CONTEXT), *options)
        with Mesh(build, tmp_path, model, 2, weights=[model], extra=extra, push=True) as mesh:
            fresh = _sent(mesh, wire.WRITE, partial(_ask, mesh, 0, 1, TOKENS))
            for slot in range(1, SLOTS):
                _ask(mesh, slot, 10 + slot, 1, prompt=CONTEXT - 100)
            costs[name] = fresh, _sent(mesh, wire.WRITE, partial(_ask, mesh, 0, 2, TOKENS))
    fresh, later = costs["apart"]
    assert later == fresh == costs["shared"][0]
    assert costs["shared"][1] > 2 * fresh


def test_answers_in_slots_that_are_not_neighbours_send_no_graph_for_each_token(
    build: MeshBuild, tmp_path: Path
) -> None:
    """llama.cpp computes them in turns, and builds the graph of each anew: it is the one that is kept."""
    model = random_model("llama")
    extra = ("-np", str(SLOTS), "-c", str(SLOTS * CONTEXT))
    with Mesh(build, tmp_path, model, 2, weights=[model], extra=extra, push=True) as mesh:
        _together(mesh, (0, 2))
        before, computed = mesh.messages(wire.GRAPH), mesh.messages(wire.COMPUTE)
        _together(mesh, (0, 2))
        graphs = mesh.messages(wire.GRAPH) - before
        assert mesh.messages(wire.COMPUTE) - computed > 4 * graphs
