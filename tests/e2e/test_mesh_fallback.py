"""A model that fits no more after a loss: a smaller quantisation of it goes on, until the worker is back."""

from functools import cache
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from meshd.fleet.fleet import model_ready

from tests.e2e.homes import connected
from tests.e2e.models import made
from tests.e2e.nodes import SAME_BATCHES, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.open_answers import answers_under
from tests.e2e.random_gguf import F16, Q4_0, RandomModel
from tests.e2e.test_mesh_continued import GOES_ON, TOKENS, kill
from tests.e2e.test_mesh_standby import killed, nodes, standby

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

WIDTH, LAYERS, INNER = 768, 12, 2048
PROMPT = "tell me more"
ON_WORKERS = ("--device", "none", "--set", "serve.output=head", "--ctx-size", "512", "--slots", "1")


def _make(path: Path, kind: GGMLQuantizationType) -> None:
    model = RandomModel(path, "llama", width=WIDTH, layers=LAYERS, kind=kind)
    model.real("attention.layer_norm_rms_epsilon", 1e-6)
    for key in ("attention.head_count", "attention.head_count_kv"):
        model.integer(key, 12)
    model.integer("rope.dimension_count", WIDTH // 12)
    model.integer("feed_forward_length", INNER)
    model.vocabulary("token_embd")
    model.norm("output_norm")
    model.vocabulary("output")
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        model.norm(f"{block}.attn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            model.matrix(f"{block}.{name}", WIDTH, WIDTH)
        model.norm(f"{block}.ffn_norm")
        model.matrix(f"{block}.ffn_gate", WIDTH, INNER)
        model.matrix(f"{block}.ffn_up", WIDTH, INNER)
        model.matrix(f"{block}.ffn_down", INNER, WIDTH)
    model.finish()


@cache
def large() -> Path:
    """170 MB of layers."""
    return made("fallback-f16.gguf", lambda path: _make(path, F16))


@cache
def small() -> Path:
    """The same, in less than a third of them."""
    return made("fallback-q4.gguf", lambda path: _make(path, Q4_0))


def test_a_smaller_one_goes_on_until_the_worker_is_back(tmp_path: Path) -> None:
    """Nodes of one machine share its memory, so the two workers are never used together."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            big = await fleet.worker("big", "--memory", "500M", model=large())
            token = await big.token()
            await fleet.worker("little", "--memory", "240M", model=large(), token=token)
            await connected(big, 1)
            chosen = ("--standby", "little", "--set", f"serve.fallback_models={small()}", "--grace", "10")
            options = (*ON_WORKERS, *GOES_ON, *chosen, *SAME_THREADS, *SAME_BATCHES)
            head = await fleet.head(large(), *options, token=token)
            status = await head.until(lambda s: model_ready(s) and "no room" in standby(s).why)
            assert nodes(status) == {"big"} and model_of(status).fallback == ""
            assert model_of(status).name == "fallback-f16"
            first = model_of(status).fingerprint

            (streamed,), _ = await answers_under(api_of(status), kill(killed(fleet, big)), [PROMPT], TOKENS)
            assert streamed.error == "" and streamed.done and streamed.tokens == TOKENS
            said = "`fallback-q4.gguf` in place of `fallback-f16.gguf`: `fallback-f16.gguf` does not fit: "
            assert any(said in one for one in streamed.comments), streamed.comments
            status = await fleet.ready(head)
            model = model_of(status)
            assert (model.fallback, model.name) == ("fallback-q4.gguf", "fallback-f16")
            assert model.reason.startswith(said) and model.fingerprint != first
            assert nodes(status) == {"little"}
            assert said in (await cli(head.spec.home, "status")).stdout

            await fleet.start(big.spec)
            model = model_of(await head.until(lambda s: model_ready(s) and nodes(s) == {"big"}))
            assert (model.fallback, model.fingerprint) == ("", first)

    play(check())
