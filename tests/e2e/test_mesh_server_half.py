"""native/mesh: hidden states as half floats: their bytes each way, and that nothing else is rounded.

Real processes without meshd between them; a worker's daemon reads along on every connection.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import CountedPair, Mesh
from tests.e2e.mesh_server_scene import LONG, MARKS, found_build, unready_head
from tests.e2e.models import smollm2, stock_text
from tests.e2e.native_rig import Head
from tests.e2e.random_models import MODELS, random_model
from tests.native.build import MeshBuild

WIDTH = 576  # of SmolLM2's hidden state
STATE, HALF = 4 * WIDTH, 2 * (WIDTH + 1)
FEW, MANY = 4, 20
OUTPUT_ON_HEAD = ("-ot", "token_embd.weight=CPU")
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


def _a_token(head: Head, count: Callable[[], float]) -> float:
    seen = []
    for tokens in (FEW, MANY):
        before = count()
        head.complete(tokens=tokens)
        seen.append(count() - before)
    return (seen[1] - seen[0]) / (MANY - FEW)


@pytest.mark.parametrize(("activations", "state"), [("", STATE), ("f32", STATE), ("f16", HALF)])
def test_a_token_has_half_the_bytes_each_way(
    build: MeshBuild, activations: str, state: int, tmp_path: Path
) -> None:
    with Mesh(
        build, tmp_path, smollm2(), 1, weights=[smollm2()], extra=OUTPUT_ON_HEAD, activations=activations
    ) as mesh:
        text = mesh.head.complete()
        if state == STATE:
            assert text == stock_text(smollm2(), extra=OUTPUT_ON_HEAD)
        assert _a_token(mesh.head, lambda: mesh.bytes(wire.DATA)) == wire.HEADER.size + state
        written = _a_token(mesh.head, lambda: mesh.bytes(wire.WRITE))
        assert state < written < state + 1000  # and masks and positions, less than a state is whole


def test_a_prompt_has_half_the_bytes_and_an_answer_is_always_the_same(
    build: MeshBuild, tmp_path: Path
) -> None:
    costs, texts = {}, {}
    for activations in ("f32", "f16", "f16 again"):
        kind = activations.split()[0]
        with Mesh(
            build, tmp_path, smollm2(), 1, weights=[smollm2()], extra=OUTPUT_ON_HEAD, activations=kind
        ) as mesh:
            before = mesh.bytes(wire.WRITE)
            texts[activations] = mesh.head.complete(LONG, tokens=MANY)
            costs[activations] = mesh.bytes(wire.WRITE) - before
    assert costs["f16"] == costs["f16 again"]
    states, rest = divmod(costs["f32"] - costs["f16"], STATE - HALF)
    assert states > 350  # tokens of the prompt and the answer
    assert rest == 0  # nothing else is shorter
    assert texts["f16"] == texts["f16 again"]
    assert texts["f32"] == stock_text(smollm2(), MANY, prompt=LONG, extra=OUTPUT_ON_HEAD)


@pytest.mark.parametrize("workers", [2, 3])
def test_pushes_have_half_the_bytes(build: MeshBuild, workers: int, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), workers, weights=[smollm2()], push=True, activations="f16") as mesh:
        assert "Paris" in mesh.head.complete(tokens=MANY)
        for pair in (mesh.between[one, one + 1] for one in range(workers - 1)):
            pushed = _a_token(mesh.head, lambda pair=pair: pair.bytes[wire.PUSHED])  # type: ignore[misc]
            assert pushed == wire.HEADER.size + wire.MESSAGES[wire.PUSHED].body.size + HALF


def test_without_a_way_they_go_through_the_head_as_halves(build: MeshBuild, tmp_path: Path) -> None:
    texts = {}
    for push in (True, False):
        with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], push=push, activations="f16") as mesh:
            texts[push] = mesh.head.complete(tokens=MANY)
            first, _ = mesh.pairs
            if push:
                assert not first.messages[wire.READ]
                continue
            read = _a_token(mesh.head, lambda first=first: first.bytes[wire.DATA])  # type: ignore[misc]
            assert read == wire.HEADER.size + HALF
    assert texts[True] == texts[False]  # halves of halves are the same


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_kind_of_model_answers_the_same_each_time(build: MeshBuild, name: str, tmp_path: Path) -> None:
    model = random_model(name)
    texts = []
    for push in (True, False):
        with Mesh(build, tmp_path, model, 2, weights=[model], push=push, activations="f16") as mesh:
            texts.append(mesh.head.complete())
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("value", ["f8", "F16"])
def test_another_word_than_f32_or_f16_stops_the_start(value: str, tmp_path: Path) -> None:
    with unready_head(tmp_path, CountedPair(), activations=value) as head:
        assert head.wait_end() != 0
        assert f"GGML_MESH_ACTIVATIONS is `{value}`, neither f32 nor f16" in head.output
