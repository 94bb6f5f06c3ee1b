"""native/mesh: workers that compute each layer together, and add up their parts (`--split-mode tensor`)."""

import contextlib
import http.client
import json
import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.plan.by_tensors import ARCHITECTURES
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import LOST, MANY, MARKS, check_wrong_push_is_named, found_build
from tests.e2e.models import smollm2, stock
from tests.e2e.native_rig import DEADLINE, PROMPT, Head
from tests.e2e.near_answers import WANTED, Tokens, check_near
from tests.e2e.random_models import DIVISIBLE, divisible_model
from tests.e2e.random_parts import LAYERS as RANDOM_LAYERS
from tests.native.build import MeshBuild

TOKENS = 24
WIDTH, LAYERS = 576, 30  # of SmolLM2
SPLIT = ("-sm", "tensor", "-fa", "on")
EXACT = ("-ctk", "f32", "-ctv", "f32")  # nothing is rounded but in adding
# Of models in F32: the logprobs of DIVISIBLE were up to 0.0012 from one process, `-fa off` there up to 0.01
NEAR_F32 = 0.005
# What a worker says when it is asked
ANSWERS = [kind for kind, message in wire.MESSAGES.items() if message.sender == "worker"]
ANSWERS.remove(wire.PROGRESS)
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


def _answer(head: Head, tokens: int = TOKENS) -> Tokens:
    """Greedy tokens, each with its logprob and those of the two best."""
    body = {"prompt": PROMPT, "n_predict": tokens, "temperature": 0, "ignore_eos": True, **WANTED}
    status, answer = head.request("POST", "/completion", json.dumps(body | {"cache_prompt": False}).encode())
    assert status == 200, answer
    found = json.loads(answer)["completion_probabilities"]
    assert isinstance(found, list)
    assert len(found) == tokens
    return found


def _alone(folder: Path, model: Path, *extra: str) -> Tokens:
    with Head(stock().binaries[LLAMA_SERVER], folder, model, [], extra=extra) as head:
        return _answer(head)


def _lose(mesh: Mesh, happens: Callable[[], object]) -> None:
    """`happens` while an answer is on its way: then the head ends, and says so."""
    came: list[str] = []

    def on_piece(text: str) -> None:
        came.append(text)
        if len(came) == 5:
            happens()

    with contextlib.suppress(OSError, http.client.HTTPException):
        mesh.head.stream(tokens=MANY, on_piece=on_piece)
    assert mesh.head.wait_end() == LOST
    assert 5 <= len(came) < MANY


@pytest.mark.parametrize("workers", [2, 3])
def test_two_and_three_workers_answer_nearly_as_one_node(
    build: MeshBuild, workers: int, tmp_path: Path
) -> None:
    alone = _alone(tmp_path, smollm2(), "-fa", "on")
    with Mesh(build, tmp_path, smollm2(), workers, weights=[smollm2()], extra=SPLIT, push=True) as mesh:
        # Each has its parts of the weights from its own file.
        assert mesh.messages(wire.LOAD_PARTS) > 0
        assert all(set(pair.loaded) == {"loaded"} for pair in mesh.pairs)
        before = mesh.bytes(wire.WRITE)
        assert before < smollm2().stat().st_size / 100
        sums = mesh.messages(wire.SUM)
        answer = _answer(mesh.head)
        check_near(answer, alone)
        # Two sums a layer, for each token and for the prompt, and none of them through the head.
        asked = (mesh.messages(wire.SUM) - sums) / workers
        assert asked >= TOKENS * 2 * LAYERS
        between = sum(pair.bytes[wire.SUMMAND] for pair in mesh.between.values())
        assert between > workers * (workers - 1) * TOKENS * 2 * LAYERS * WIDTH * 4
        assert mesh.messages(wire.PUSH) == 0
        # Graphs are kept: of a token's only what is new crosses.
        graphs = mesh.messages(wire.GRAPH)
        assert _answer(mesh.head) == answer  # the same bits again
        assert mesh.messages(wire.GRAPH) - graphs < workers * 2 * LAYERS


class AwaitedReads:
    """Hold each worker's answer to a READ back until all of `readers` workers were asked as often.

    A head that waits for one of them before it asks the next gets no answer, and `late` tells so.
    """

    def __init__(self, mesh: Mesh, readers: int) -> None:
        self.late = False
        self._asked = [0] * len(mesh.pairs)
        self._answered = [0] * len(mesh.pairs)
        self._readers = readers
        self._changed = threading.Condition()
        for number, pair in enumerate(mesh.pairs):
            pair.watch(partial(self._ask, number))
            pair.lie(partial(self._answer, number))

    def _ask(self, number: int, kind: int, _body: bytes) -> None:
        if kind == wire.READ:
            with self._changed:
                self._asked[number] += 1
                self._changed.notify_all()

    def _answer(self, number: int, message: bytes) -> bytes:
        _size, kind, _zero, _id = wire.HEADER.unpack_from(message)
        if kind == wire.DATA:
            with self._changed:
                self._answered[number] += 1
                count = self._answered[number]
                asked = self._changed.wait_for(
                    lambda: sum(asked >= count for asked in self._asked) >= self._readers, DEADLINE
                )
                self.late |= not asked
        return message


# Of a tied output each worker has all of it, so the logits are read from the first; else each has a part.
@pytest.mark.parametrize(("name", "readers"), [("qwen3", 1), ("llama", 2)], ids=["tied", "divided"])
def test_the_head_waits_once_a_token(build: MeshBuild, name: str, readers: int, tmp_path: Path) -> None:
    model = divisible_model(name)
    with Mesh(build, tmp_path, model, 2, weights=[model], extra=SPLIT, push=True) as mesh:
        _answer(mesh.head)  # buffers are made, and graphs kept
        reads = AwaitedReads(mesh, readers)
        before = [Counter(pair.messages) for pair in mesh.pairs]
        _answer(mesh.head)
        said = [Counter(pair.messages) - then for pair, then in zip(mesh.pairs, before, strict=True)]
    assert not reads.late
    for number, messages in enumerate(said):
        assert messages[wire.SUM] == TOKENS * 2 * RANDOM_LAYERS
        # Each answer that the head could wait for: one for a token (the prompt is computed with the first).
        answers = {kind: messages[kind] for kind in ANSWERS if messages[kind]}
        assert answers == ({wire.DATA: TOKENS} if number < readers else {})


@pytest.mark.parametrize("name", sorted(DIVISIBLE))
def test_architectures_answer_by_tensors_nearly_as_one_node(
    build: MeshBuild, name: str, tmp_path: Path
) -> None:
    model = divisible_model(name)
    alone = _alone(tmp_path, model, "-fa", "on", *EXACT)
    absent: list[int] = []

    def on_request(kind: int, body: bytes) -> None:
        if kind == wire.SUM:
            absent.append(wire.MESSAGES[kind].body.unpack(body)[5])

    with Mesh(build, tmp_path, model, 2, weights=[model], extra=(*SPLIT, *EXACT), push=True) as mesh:
        for pair in mesh.pairs:
            pair.watch(on_request)
        check_near(_answer(mesh.head), alone, near=NEAR_F32)
        # Each had a part of each matrix, and of each expert.
        assert len(absent) >= 2 * TOKENS * 2 * RANDOM_LAYERS
        assert not any(absent)


def test_what_is_split_by_tensors_has_been_compared() -> None:
    assert {name.split()[0] for name in DIVISIBLE} >= ARCHITECTURES


def test_a_worker_without_the_file_is_sent_its_parts(build: MeshBuild, tmp_path: Path) -> None:
    alone = _alone(tmp_path, smollm2(), "-fa", "on")
    with Mesh(build, tmp_path, smollm2(), 2, extra=SPLIT, push=True) as mesh:
        check_near(_answer(mesh.head), alone)
        assert mesh.bytes(wire.WRITE) > smollm2().stat().st_size / 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_ends_the_head_and_no_token_is_wrong(
    build: MeshBuild, victim: int, tmp_path: Path
) -> None:
    with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], extra=SPLIT, push=True) as mesh:
        _lose(mesh, lambda: mesh.servers[victim].process.send_signal(signal.SIGKILL))
        assert "mesh: lost MESH" in mesh.head.output


def test_a_cut_between_the_two_ends_the_head_with_its_reason(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], extra=SPLIT, push=True) as mesh:
        _lose(mesh, lambda: mesh.cut(0, 1))
        assert "it says: lost neighbour" in mesh.head.output


def test_a_neighbour_that_says_something_else_is_named(build: MeshBuild, tmp_path: Path) -> None:
    with Mesh(build, tmp_path, smollm2(), 2, weights=[smollm2()], extra=SPLIT, push=True) as mesh:
        frame = wire.HEADER.pack(8 + WIDTH * 4, wire.SUMMAND, 0, 0) + bytes(8 + WIDTH * 4)
        _lose(mesh, lambda: mesh.between[0, 1].insert(frame))
        check_wrong_push_is_named(mesh)
