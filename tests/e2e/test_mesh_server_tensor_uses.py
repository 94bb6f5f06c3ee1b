"""native/mesh: what people do with a model whose layers are split by tensors (`--split-mode tensor`)."""

import json
import math
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.devices.command_lines import drafting
from meshd.model.drafts import MOST_FREE, Drafts
from meshd.rpc import mesh_protocol as wire

from tests.e2e.api_client import generation
from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import LONG, MARKS, found_build
from tests.e2e.models import smollm2, stock
from tests.e2e.native_rig import DEADLINE, PROMPT, Head, wait_until
from tests.e2e.near_answers import NEAR, WANTED, Tokens, check_near
from tests.e2e.open_answers import REPEATING
from tests.e2e.random_models import divisible_model
from tests.native.build import MeshBuild

TOKENS = 24
SPLIT = ("-sm", "tensor")
FLASH = ("-fa", "on")
LAYERS = 30  # of SmolLM2
COUNTING = "one two three four one two three four one two three four one two"
# The logprobs of a model in F32 were up to 0.0034 from one process, in 600 tokens of a context of 256
NEAR_SHIFTED = 0.01
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


def _ask(head: Head, path: str, body: object) -> Any:
    status, answer = head.request("POST", path, json.dumps(body).encode(), DEADLINE)
    assert status == 200, answer
    return json.loads(answer)


def _answer(head: Head, tokens: int = TOKENS, *, prompt: str = PROMPT, **more: object) -> Tokens:
    found = _ask(head, "/completion", generation(prompt, tokens) | WANTED | more)["completion_probabilities"]
    assert isinstance(found, list)
    assert len(found) == tokens
    return found


def _alone(folder: Path, model: Path, *extra: str, tokens: int = TOKENS) -> Tokens:
    with Head(stock().binaries[LLAMA_SERVER], folder, model, [], extra=(*FLASH, *extra)) as head:
        return _answer(head, tokens)


def _mesh(build: MeshBuild, folder: Path, model: Path, workers: int, *extra: str) -> Mesh:
    return Mesh(build, folder, model, workers, weights=[model], extra=(*SPLIT, *FLASH, *extra), push=True)


@pytest.mark.parametrize("shares", ["3,1", "1,3", "2,1,1"])
def test_workers_have_uneven_shares(build: MeshBuild, shares: str, tmp_path: Path) -> None:
    alone = _alone(tmp_path, smollm2())
    parts = shares.split(",")
    with _mesh(build, tmp_path, smollm2(), len(parts), "-ts", shares) as mesh:
        check_near(_answer(mesh.head), alone)
        allocated = [pair.allocated for pair in mesh.pairs]
    assert allocated == sorted(allocated, reverse=int(parts[0]) > int(parts[-1]))
    assert min(allocated) < max(allocated) * 3 / 4


# A cache in q4_0 rounds what differs once more: logprobs were up to 0.26 from one process
@pytest.mark.parametrize(("kind", "near"), [("q8_0", NEAR), ("q4_0", 0.3)])
def test_a_cache_of_another_type(build: MeshBuild, kind: str, near: float, tmp_path: Path) -> None:
    types = ("-ctk", kind, "-ctv", kind)
    alone = _alone(tmp_path, smollm2(), *types)
    with _mesh(build, tmp_path, smollm2(), 2, *types) as mesh:
        check_near(_answer(mesh.head), alone, near=near)


def test_a_context_that_is_full_is_shifted(build: MeshBuild, tmp_path: Path) -> None:
    """The answer is longer than the context, twice; the model's is in F32, so it is one process's."""
    model, tokens = divisible_model("llama"), 600
    full = ("-c", "256", "--context-shift")
    alone = _alone(tmp_path, model, *full, tokens=tokens)
    with _mesh(build, tmp_path, model, 2, *full) as mesh:
        check_near(_answer(mesh.head, tokens), alone, near=NEAR_SHIFTED, least=tokens)


def test_four_answers_at_once(build: MeshBuild, tmp_path: Path) -> None:
    """Each is near that of one process; equal requests get equal text; and they share sums."""
    prompts = [PROMPT, COUNTING, PROMPT, COUNTING]
    alone = {prompt: _alone_with(tmp_path, prompt) for prompt in set(prompts)}
    with _mesh(build, tmp_path, smollm2(), 2, "-np", "4", "-c", "2048") as mesh:
        before = mesh.messages(wire.SUM)
        with ThreadPoolExecutor(4) as pool:
            answers = list(
                pool.map(lambda slot: _answer(mesh.head, prompt=prompts[slot], id_slot=slot), range(4))
            )
        for prompt, answer in zip(prompts, answers, strict=True):
            check_near(answer, alone[prompt])
        assert _ids(answers[0]) == _ids(answers[2])
        assert _ids(answers[1]) == _ids(answers[3])
        assert mesh.messages(wire.SUM) - before < 3 * TOKENS * 2 * LAYERS * len(mesh.pairs)


def _alone_with(folder: Path, prompt: str) -> Tokens:
    with Head(stock().binaries[LLAMA_SERVER], folder, smollm2(), [], extra=FLASH) as head:
        return _answer(head, prompt=prompt)


def _ids(answer: Tokens) -> Sequence[int]:
    return [token["id"] for token in answer]


def test_a_slot_is_saved_and_restored_without_a_round_trip_for_each_row(
    build: MeshBuild, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with _mesh(build, tmp_path, smollm2(), 2, "-c", "1024", "--slot-save-path", str(kept)) as mesh:
        whole = _ask(mesh.head, "/completion", _request(LONG, cached=True))
        rows = int(whole["tokens_evaluated"])
        assert rows > 200
        # While nothing is answered, the head asks for all rows of a tensor.
        before = mesh.messages(wire.READ)
        save = threading.Thread(target=_ask, args=(mesh.head, "/slots/0?action=save", {"filename": "slot"}))
        with mesh.pairs[0].unanswered():
            save.start()
            wait_until(lambda: mesh.messages(wire.READ) - before >= rows, "all rows are asked for")
        save.join(DEADLINE)
        assert mesh.messages(wire.READ) - before >= rows * 2 * LAYERS
        assert (kept / "slot").stat().st_size > rows * 2 * LAYERS * 2 * 192
        # Another conversation takes its place; restored, only the last token of the prompt is computed.
        _ask(mesh.head, "/completion", _request(COUNTING, cached=True))
        asked = Counter({kind: mesh.messages(kind) for kind in (wire.READ, wire.SYNC)})
        restored = _ask(mesh.head, "/slots/0?action=restore", {"filename": "slot"})
        assert restored["n_restored"] >= rows
        assert sum(mesh.messages(kind) for kind in asked) - asked.total() < 4 * 2 * LAYERS
        again = _ask(mesh.head, "/completion", _request(LONG, cached=True))
        assert again["content"] == whole["content"]
        assert again["timings"]["prompt_n"] == 1


def _request(prompt: str, *, cached: bool) -> dict[str, object]:
    return {
        "prompt": prompt,
        "n_predict": 8,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": cached,
        "id_slot": 0,
    }


def test_repeated_tokens_are_drafted_and_change_nothing(build: MeshBuild, tmp_path: Path) -> None:
    """A sum then serves several tokens."""
    asked: dict[str, int] = {}
    texts: dict[str, str] = {}
    for name, drafts in (("off", Drafts()), ("on", Drafts(free=MOST_FREE))):
        with _mesh(build, tmp_path, smollm2(), 2, *drafting(drafts, "")) as mesh:
            before = mesh.messages(wire.SUM)
            body = {"prompt": REPEATING[0], "n_predict": 48, "temperature": 0, "cache_prompt": False}
            texts[name] = _ask(mesh.head, "/completion", body)["content"]
            asked[name] = mesh.messages(wire.SUM) - before
    assert texts["on"] == texts["off"]
    assert asked["on"] < asked["off"]


def test_llama_cpp_loads_no_draft_model_beside_it(build: MeshBuild, tmp_path: Path) -> None:
    """So meshd names none (head/speculation.py): once this one loads, it may."""
    drafts = drafting(Drafts(model=4), str(smollm2()))
    extra = (*SPLIT, *FLASH, *drafts)
    with Mesh(
        build, tmp_path, smollm2(), 2, weights=[smollm2()], extra=extra, push=True, ready=False
    ) as mesh:
        assert mesh.head.wait_ready_or_end() == 1
        assert "LLAMA_SPLIT_MODE_TENSOR needs >= 1 devices" in mesh.head.output


def test_embeddings_are_those_of_one_process(build: MeshBuild, tmp_path: Path) -> None:
    pooled = ("--embeddings", "--pooling", "mean")
    with Head(stock().binaries[LLAMA_SERVER], tmp_path, smollm2(), [], extra=(*FLASH, *pooled)) as head:
        alone = _vectors(head)
    with _mesh(build, tmp_path, smollm2(), 2, *pooled) as mesh:
        for mine, theirs in zip(_vectors(mesh.head), alone, strict=True):
            assert _cosine(mine, theirs) > 0.999


def _vectors(head: Head) -> Sequence[Sequence[float]]:
    found = _ask(head, "/v1/embeddings", {"input": [PROMPT, COUNTING]})
    return [entry["embedding"] for entry in found["data"]]


def _cosine(mine: Sequence[float], theirs: Sequence[float]) -> float:
    product = sum(a * b for a, b in zip(mine, theirs, strict=True))
    return product / math.sqrt(sum(a * a for a in mine) * sum(b * b for b in theirs))
