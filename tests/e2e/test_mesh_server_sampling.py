"""native/mesh: candidates for the next token come from the last worker, and texts are those of all logits."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from meshd.model.device_sampling import DeviceSampling
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import LONG, MARKS, found_build, is_before
from tests.e2e.models import smollm2, stock_text
from tests.e2e.native_rig import DEADLINE, PROMPT, Head
from tests.e2e.open_answers import REPEATING
from tests.soak import counts

STATE = 576 * 4  # bytes of a token between two layers of SmolLM2
VOCABULARY = 49152
STREAMS = 4
MOST_BYTES = 8000  # of a token and stream, on all connections of the head
PENALTIES = {"presence", "frequency"}
PENALTIES_OF_CANDIDATES = (0, 20)  # of ggml: before, llama-server takes all logits for them
TOKENS = 24
DRAFTS = ("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-m", "8")
DRAFTED = tuple("".join(prompt.splitlines(keepends=True)[:4]) for prompt in REPEATING)
DRAFTED_TOKENS = 48
DRAFTED_DEADLINE = 3 * DEADLINE  # seconds: four answers at once, of one thread, take 10 on an idle machine
pytestmark = MARKS

# What is left to the device must not change a text: order, ties, rounding, penalties, all behind top-k.
WAYS: Mapping[str, Mapping[str, object]] = {
    "greedy": {"temperature": 0},
    "usual": {},
    "hot": {"temperature": 1.5, "min_p": 0},
    "top-k alone": {"temperature": 1, "top_p": 1, "min_p": 0},
    "many": {"top_k": 200, "temperature": 1.2, "top_p": 0.99, "min_p": 0},
    "typical": {"temperature": 1.2, "typical_p": 0.7},
    "xtc": {"xtc_probability": 0.5},
    "dynamic temperature": {"dynatemp_range": 0.4},
    "presence": {"temperature": 1, "presence_penalty": 0.7},
    "frequency": {"temperature": 1, "frequency_penalty": 0.3},
    "ends": {"ignore_eos": True},
    "names of samplers": {"samplers": ["top_k", "min_p", "temperature"], "top_n_sigma": -1},
}


def completed(head: Head, request: Mapping[str, object], **more: object) -> dict[str, object]:
    return completed_within(DEADLINE, head, {**request, **more})


def completed_within(seconds: float, head: Head, request: Mapping[str, object]) -> dict[str, object]:
    body = {"prompt": PROMPT, "n_predict": TOKENS, "cache_prompt": False, **request}
    status, answer = head.request("POST", "/completion", json.dumps(body).encode(), seconds)
    assert status == 200, answer
    parsed = json.loads(answer)
    assert isinstance(parsed, dict)
    return parsed


def text(head: Head, request: Mapping[str, object], **more: object) -> str:
    return str(completed(head, request, **more)["content"])


def end_of_text(head: Head) -> int:
    _, props = head.request("GET", "/props", None)
    content = {"content": json.loads(props)["eos_token"]}
    _, answer = head.request("POST", "/tokenize", json.dumps(content).encode())
    (token,) = json.loads(answer)["tokens"]
    return int(token)


class Sampled:
    """Two models on as many workers; `rule` decides as the API of the daemon does."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.head = mesh, mesh.head
        settings = completed(self.head, {})["generation_settings"]
        assert isinstance(settings, dict)
        self.rule = DeviceSampling(settings, VOCABULARY)

    def fields(self, request: Mapping[str, object]) -> dict[str, object]:
        return self.rule.added_to({"prompt": PROMPT, **request})

    def came(self) -> int:
        return self.mesh.bytes(wire.DATA)

    def crossed(self) -> int:
        return sum(sum(pair.bytes.values()) for pair in self.mesh.pairs)


@pytest.fixture(scope="module", params=[1, 2])
def sampled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sampled]:
    folder = tmp_path_factory.mktemp("sampled")
    extra = ("-np", str(STREAMS), "-kvu", "-c", "2048", "-ub", "64")
    with Mesh(
        found_build(), folder, smollm2(), request.param, weights=[smollm2()], push=True, extra=extra
    ) as mesh:
        yield Sampled(mesh)


@pytest.mark.parametrize("way", list(WAYS))
def test_texts_are_those_of_all_logits_and_no_logits_cross(sampled: Sampled, way: str) -> None:
    asked = WAYS[way]
    fields = sampled.fields(asked)
    assert fields
    for seed in (1, 2):
        expected = text(sampled.head, asked, seed=seed)
        before = sampled.came()
        assert text(sampled.head, {**asked, **fields}, seed=seed) == expected
        if way not in PENALTIES or not is_before(PENALTIES_OF_CANDIDATES):
            assert sampled.came() - before < TOKENS * 8 * 256


def test_greedy_text_is_that_of_one_node(sampled: Sampled) -> None:
    asked = {"temperature": 0, "ignore_eos": True}
    assert text(sampled.head, {**asked, **sampled.fields(asked)}) == stock_text(smollm2(), TOKENS)


@pytest.mark.parametrize("on_device", [False, True])
def test_an_end_that_comes_first_counts_as_a_token(sampled: Sampled, on_device: bool) -> None:
    """Test what readiness asks for: it must not depend on what the model says first."""
    asked = {"temperature": 0, "n_predict": 1, "logit_bias": [[end_of_text(sampled.head), 1000]]}
    answer = completed(sampled.head, asked, backend_sampling=on_device)
    assert (answer["content"], answer["stop_type"], answer["tokens_predicted"]) == ("", "eos", 1)


def test_a_prompt_of_many_steps_of_which_most_make_no_logits(sampled: Sampled) -> None:
    asked = {"temperature": 1, "seed": 3, "prompt": LONG, "ignore_eos": True}
    fields = sampled.fields(asked)
    assert fields
    assert text(sampled.head, {**asked, **fields}) == text(sampled.head, asked)


def test_a_token_costs_a_state_and_its_candidates_in_one_round(sampled: Sampled) -> None:
    asked = {"temperature": 0, "ignore_eos": True}
    costs, rounds = [], []
    for tokens in (40, 8, 40):  # the workers keep the graphs of the first run
        before = sampled.crossed(), sampled.mesh.messages(wire.READ)
        text(sampled.head, {**asked, **sampled.fields(asked)}, n_predict=tokens)
        costs.append(sampled.crossed() - before[0])
        rounds.append(sampled.mesh.messages(wire.READ) - before[1])
    assert STATE < (costs[2] - costs[1]) / 32 <= MOST_BYTES
    assert rounds[2] - rounds[1] == 2 * 32  # their numbers and their logits, asked for together


def test_streams_are_computed_together_and_none_takes_logits(sampled: Sampled) -> None:
    asked = {"temperature": 1, "ignore_eos": True, "n_predict": 64}
    request = {**asked, **sampled.fields(asked)}
    before = sampled.crossed(), sampled.mesh.messages(wire.COMPUTE) + sampled.mesh.messages(wire.GRAPH)
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda seed: text(sampled.head, request, seed=seed), range(STREAMS)))
    assert len(set(answers)) == STREAMS
    rounds = sampled.mesh.messages(wire.COMPUTE) + sampled.mesh.messages(wire.GRAPH) - before[1]
    assert rounds / len(sampled.mesh.pairs) < 2 * 64  # not one for each stream
    # graphs of their prompts are in it
    assert sampled.crossed() - before[0] < STREAMS * 64 * VOCABULARY * 4 / 10


def test_a_device_that_is_asked_for_another_chain_keeps_its_memory(sampled: Sampled) -> None:
    """llama.cpp makes its scheduler anew, with memory that would be a round trip to each worker in turn."""
    asked: dict[str, object] = {"temperature": 0}
    fields = sampled.fields(asked)
    for request in (asked, {**asked, **fields}):  # the larger of the two has been needed once
        text(sampled.head, request)
    before = sampled.mesh.messages(wire.ALLOCATE)
    for request in (asked, {**asked, **fields}, {**asked, **fields, "top_k": 30}):
        text(sampled.head, request)
    assert sampled.mesh.messages(wire.ALLOCATE) == before


@pytest.mark.parametrize(
    "more", [{"json_schema": {"type": "object"}}, {"n_probs": 3}, {"repeat_penalty": 1.1}]
)
def test_with_a_chain_for_a_device_a_request_that_needs_logits_has_its_text_all_the_same(
    sampled: Sampled, more: Mapping[str, object]
) -> None:
    """Test requests that the rule leaves to llama-server to decline: their text must not depend on that."""
    asked = {"temperature": 0.9, "seed": 7, **more}
    fields = sampled.fields({"temperature": 0.9})
    assert not sampled.fields(asked)
    assert text(sampled.head, {**asked, **fields, "backend_sampling": False}) == text(sampled.head, asked)


@pytest.mark.parametrize("by_user", [False, True], ids=["candidates", "whole chain"])
def test_drafts_of_several_answers_are_sampled_from_their_own_logits(tmp_path: Path, by_user: bool) -> None:
    """Each round has micro batches in which other samplers are idle, and drafts give several rows to some.

    `by_user`: with `-- -bs`, which leaves results in memory that ggml gives to later nodes.
    """
    texts = [stock_text(smollm2(), DRAFTED_TOKENS, prompt, ("-c", "8192", "-t", "1")) for prompt in DRAFTED]
    extra = ("-np", str(STREAMS), "-c", "32768", *DRAFTS, *(("-bs",) if by_user else ()))
    with Mesh(found_build(), tmp_path, smollm2(), 1, weights=[smollm2()], extra=extra) as mesh:
        _, props = mesh.head.request("GET", "/props", None)
        settings = json.loads(props)["default_generation_settings"]["params"]
        asked: dict[str, object] = {"temperature": 0, "ignore_eos": True, "n_predict": DRAFTED_TOKENS}
        fields = DeviceSampling(settings, VOCABULARY, drafts=True).added_to(asked)
        assert ("backend_sampling" in fields) is not by_user, "the user decides"
        with ThreadPoolExecutor(STREAMS) as pool:
            for _ in range(counts(2, 20)):
                os.kill(mesh.head.process.pid, signal.SIGSTOP)  # so that it finds them together
                requests = [{**asked, **fields, "prompt": prompt} for prompt in DRAFTED]
                answers = [
                    pool.submit(completed_within, DRAFTED_DEADLINE, mesh.head, asks) for asks in requests
                ]
                time.sleep(0.5)
                os.kill(mesh.head.process.pid, signal.SIGCONT)
                got = [answer.result() for answer in answers]
                assert [answer["content"] for answer in got] == texts
                timings = got[0]["timings"]
                assert isinstance(timings, dict) and timings["draft_n_accepted"] > 0
