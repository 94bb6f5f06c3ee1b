"""native/mesh: what llama.cpp cannot divide among workers ends llama-server, so the plan refuses it before.

Once one of these works, its rule may go (meshd/model/indivisible.py, meshd/plan/by_tensors.py).
"""

import contextlib
import http.client
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from meshd.build.interface import LLAMA_SERVER
from meshd.model.layers import read_layers

from tests.e2e.mesh_rig import Mesh
from tests.e2e.mesh_server_scene import MARKS, found_build
from tests.e2e.models import header_of, stock
from tests.e2e.native_rig import DEADLINE, PROMPT, Head
from tests.e2e.random_models import INDIVISIBLE, divisible_model, indivisible_model
from tests.e2e.random_parts import WIDTH
from tests.e2e.random_projector import random_projector
from tests.native.build import MeshBuild

_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
SPLIT = ("-sm", "tensor", "-fa", "on")
# As in test_mesh_server_tensors.py
NEAR_F32 = 0.005
pytestmark = MARKS


@pytest.fixture
def build() -> MeshBuild:
    return found_build()


@pytest.fixture(autouse=True)
def no_backtrace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the seconds that a debugger takes."""
    monkeypatch.setenv("GGML_NO_BACKTRACE", "1")


def _end(
    build: MeshBuild, folder: Path, model: Path, *extra: str, workers: int = 2, image: str = ""
) -> tuple[int, str]:
    """The exit code of llama-server, which ends at its start or with the first request, and its log."""
    options = (*SPLIT, *extra)
    with Mesh(build, folder, model, workers, weights=[model], extra=options, push=True, ready=False) as mesh:
        if mesh.head.wait_ready_or_end() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                _ask(mesh.head, image)
        return mesh.head.wait_end(), mesh.head.output


def _ask(head: Head, image: str = "") -> list[float]:
    """The logprobs of an answer, about an image if there is one."""
    content: list[object] = [{"type": "text", "text": PROMPT}]
    content += [{"type": "image_url", "image_url": {"url": image}}] if image else []
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8}
    wanted = body | {"temperature": 0, "logprobs": True}
    status, answer = head.request("POST", "/v1/chat/completions", json.dumps(wanted).encode(), DEADLINE)
    assert status == 200, answer
    return [token["logprob"] for token in json.loads(answer)["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize("name", sorted(INDIVISIBLE))
def test_a_shape_that_ends_it_is_known(build: MeshBuild, name: str, tmp_path: Path) -> None:
    model = indivisible_model(name)
    assert read_layers([header_of(model)], name=name).indivisible
    code, said = _end(build, tmp_path, model, workers=3)
    assert code == -signal.SIGABRT
    assert "GGML_ASSERT" in said


def _adapter(path: Path, layers: int) -> Path:
    """A LoRA adapter of the queries of a `llama` of DIVISIBLE."""
    writer = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    for layer in range(layers):
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_a", np.ones((2, WIDTH), np.float32))
        writer.add_tensor(f"blk.{layer}.attn_q.weight.lora_b", np.ones((128, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("option", ["--lora", "-ot"])
def test_an_option_that_ends_it(build: MeshBuild, option: str, tmp_path: Path) -> None:
    value = str(_adapter(tmp_path / "adapter.gguf", 1)) if option == "--lora" else "blk.0.ffn_up=CPU"
    code, said = _end(build, tmp_path, divisible_model("llama"), option, value)
    assert code == -signal.SIGABRT
    assert "ggml-backend-meta.cpp" in said


def _sees() -> tuple[str, ...]:
    return ("--mmproj", str(random_projector(WIDTH)), "--no-mmproj-offload", "-c", "2048")


def test_an_image_for_gemma3_ends_it(build: MeshBuild, tmp_path: Path) -> None:
    """It ends in `ggml_backend_meta_graph_compute`, without an assert."""
    code, _ = _end(build, tmp_path, divisible_model("gemma3"), *_sees(), image=_PIXEL)
    assert code == -signal.SIGSEGV


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3moe", "gpt-oss"])
def test_an_image_for_others_does_not(build: MeshBuild, name: str, tmp_path: Path) -> None:
    model, options = divisible_model(name), (*SPLIT, *_sees(), "-ctk", "f32", "-ctv", "f32")
    with Head(stock().binaries[LLAMA_SERVER], tmp_path, model, [], extra=options[2:]) as head:
        alone = _ask(head, _PIXEL)
    with Mesh(build, tmp_path, model, 2, weights=[model], extra=options, push=True) as mesh:
        assert _ask(mesh.head, _PIXEL) == pytest.approx(alone, abs=NEAR_F32)
