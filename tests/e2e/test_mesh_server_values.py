"""A worker whose numbers cannot be: it is lost itself, before llama-server or the next worker uses them."""

import http.client
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from meshd.model.device_sampling import DeviceSampling
from meshd.rpc import mesh_protocol as wire

from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import LOST, MARKS, found_build
from tests.e2e.models import smollm2
from tests.e2e.native_rig import DEADLINE, PROMPT

STATE = 576 * 4  # bytes of a token between two layers of SmolLM2
VOCABULARY = 49152
CANDIDATES = 4096  # bytes at most: numbers of tokens and their logits, or the number of one token
pytestmark = MARKS


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with Mesh(
        found_build(), tmp_path, smollm2(), 2, weights=[smollm2()], extra=("-c", "512", "-np", "1")
    ) as mesh:
        yield mesh


def _answer_of(said: bytes, is_one: Callable[[bytes], bool], value: bytes) -> bytes:
    """With this everywhere, if it is such an answer."""
    _size, kind, *_more = wire.HEADER.unpack_from(said)
    head, data = said[: wire.HEADER.size], said[wire.HEADER.size :]
    return head + value * (len(data) // 4) if kind == wire.DATA and is_one(data) else said


def _are_tokens(data: bytes) -> bool:
    count = len(data) // 4
    return len(data) <= CANDIDATES and all(0 <= one < VOCABULARY for one in struct.unpack(f"<{count}i", data))


def _lost(mesh: Mesh) -> list[str]:
    """A request with candidates of the last worker ends llama-server; what it reports."""
    _status, props = mesh.head.request("GET", "/props", None)
    settings = json.loads(props)["default_generation_settings"]["params"]
    added = DeviceSampling(settings, VOCABULARY).added_to({"prompt": PROMPT})
    body = json.dumps({"prompt": PROMPT, "n_predict": 4, "cache_prompt": False, **added}).encode()
    with pytest.raises((OSError, http.client.HTTPException)):
        mesh.head.request("POST", "/completion", body, DEADLINE)
    assert mesh.head.wait_end() == LOST
    assert mesh.head.report is not None
    mesh.head.report.join()
    return mesh.head.report.lines


@pytest.mark.parametrize("token", [VOCABULARY, 0x7FFFFFF0, -1])
def test_tokens_beyond_the_vocabulary_lose_the_worker_that_chose_them(mesh: Mesh, token: int) -> None:
    wrong = struct.pack("<i", token)
    mesh.pairs[1].lie(lambda said: _answer_of(said, _are_tokens, wrong))
    assert _lost(mesh) == [f"lost 1 it answers with place {token} of {VOCABULARY}"]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_states_that_are_not_finite_lose_the_worker_that_sent_them(mesh: Mesh, value: float) -> None:
    """And not the next one, which could not choose candidates of what it made of them."""
    wrong = struct.pack("<f", value)
    mesh.pairs[0].lie(lambda said: _answer_of(said, lambda data: len(data) % STATE == 0, wrong))
    assert _lost(mesh) == ["lost 0 it sent values that are not finite"]
