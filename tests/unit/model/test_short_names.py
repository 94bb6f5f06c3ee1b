"""The table of short names: what it declares is complete, and its estimates are those of real models."""

import pytest
from meshd.model.cache import ContextShape
from meshd.model.model_name import BareName, parse_model_name
from meshd.model.short_names import (
    SHORT_MODELS,
    SHORT_NAMES,
    ShortModel,
    hub_name_of,
    is_published,
    short_layers,
    short_model,
    short_model_of,
    stem_of,
)

BY_NAME = {model.name: model for model in SHORT_MODELS}


def test_the_names_of_before_mean_what_they_did() -> None:
    assert str(SHORT_NAMES["glm"]) == "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M"
    assert str(SHORT_NAMES["qwen3"]) == "hf:unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M"
    assert "smollm2" in BY_NAME and "smollm2" not in SHORT_NAMES, "it comes from the Python package index"


def test_each_is_declared_once_from_small_to_large() -> None:
    assert len(BY_NAME) == len({model.hub for model in SHORT_MODELS}) == len(SHORT_MODELS)
    by_size = sorted(SHORT_MODELS, key=lambda model: model.bytes)
    assert [model.name for model in by_size if model.name != "gemma-4-26b"] == [
        model.name for model in SHORT_MODELS if model.name != "gemma-4-26b"
    ]


@pytest.mark.parametrize("model", SHORT_MODELS, ids=lambda model: model.name)
def test_a_row_can_be_given_and_planned(model: ShortModel) -> None:
    assert parse_model_name(model.name) == BareName(model.name)
    layers = model.layers()
    assert layers.weight_bytes == pytest.approx(model.bytes, rel=0.001)
    assert layers.count == len(layers.cache.layers) and min(layers.layers) > layers.output // 60
    if model.hub is not None:
        assert model.hub.choice and hub_name_of(f"{model.name.upper()}.gguf") == model.hub
        assert short_model(model.name) == short_model_of(model.hub) == model


def test_a_real_size_replaces_the_estimate() -> None:
    [glm] = [layers for layers in short_layers({"glm": 9_000_000_000}) if layers.name == "glm"]
    assert glm.weight_bytes == pytest.approx(9_000_000_000, rel=0.001)
    assert BY_NAME["glm"].differs_from(18_000_000_000) and not BY_NAME["glm"].differs_from(18_300_000_000)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    # published: 144 KiB a token and 80 layers of 4 KiB; windows; 576 values a layer; a quarter attends
    [
        ("qwen3-4b", 1.21),
        ("llama-3.3-70b", 2.68),
        ("gpt-oss-20b", 0.22),
        ("glm", 0.44),
        ("qwen3.6-27b", 0.69),
    ],
)
def test_caches_of_8192_tokens_are_those_of_the_architecture(name: str, gigabytes: float) -> None:
    cache = BY_NAME[name].layers().cache.layer_bytes(ContextShape(8192))
    assert sum(cache) / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_a_model_is_called_as_its_authors_call_its_file() -> None:
    assert stem_of(SHORT_NAMES["glm"]) == "GLM-4.7-Flash-Q4_K_M"


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("hf:me/Tiny-GGUF:Q8_0", True),
        ("GLM.gguf", True),
        ("SmolLM2", True),
        ("tiny-Q8_0", False),
        ("mesh:glm", False),
        ("ollama:glm", False),
        ("mesh:", False),
    ],
)
def test_which_names_need_no_members(name: str, published: bool) -> None:
    assert is_published(name) == published
