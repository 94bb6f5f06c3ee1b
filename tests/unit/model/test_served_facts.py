"""Test what clients are told of a model: from its headers, and from llama-server once it is loaded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.served_facts import ServedFacts, facts_of_file, with_properties

from tests.gguf_bytes import Plain, Tensor, gguf, parse

METADATA: dict[str, Plain] = {
    "general.architecture": "qwen3",
    "general.file_type": 15,
    "qwen3.context_length": 40960,
    "qwen3.embedding_length": 64,
}
PROPS = {
    "default_generation_settings": {"n_ctx": 8192, "params": {}},
    "modalities": {"vision": True, "audio": False},
    "chat_template": "{% if enable_thinking %}",
    "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
}


def test_headers_tell_what_was_trained_and_how_it_is_stored() -> None:
    header = parse(gguf(METADATA, [Tensor("a", (4, 8)), Tensor("b", (2,))]))
    facts = facts_of_file([header, header], created=1700000000, llama_args=())
    assert facts == ServedFacts(
        context=0,
        trained_context=40960,
        created=1700000000,
        size=2 * 34 * 4,
        parameters=2 * 34,
        embedding_length=64,
        architecture="qwen3",
        quantization="Q4_K_M",
        capabilities=("completion",),
    )
    embeds = facts_of_file([header], created=0, llama_args=("--pooling", "mean", "--embeddings"))
    assert embeds.capabilities == ("completion", "embedding")


def test_a_loaded_llama_server_tells_context_and_capabilities() -> None:
    facts = with_properties(ServedFacts(trained_context=40960), PROPS)
    assert (facts.context, facts.trained_context) == (8192, 40960)
    assert facts.capabilities == ("completion", "tools", "thinking", "vision")


@pytest.mark.parametrize(
    ("props", "can"),
    [
        ({"chat_template": "plain", "chat_template_caps": {"supports_tools": False}}, ()),
        (
            {"chat_template": "plain", "chat_template_caps": {"supports_reasoning_effort": True}},
            ("thinking",),
        ),
        ({"chat_template": "a <think> b"}, ("thinking",)),
        ({"modalities": {"vision": False, "audio": True}}, ("audio",)),
        ({"modalities": [], "chat_template": 1, "default_generation_settings": {"n_ctx": "8"}}, ()),
    ],
)
def test_only_what_is_said_counts(props: dict[str, object], can: tuple[str, ...]) -> None:
    facts = with_properties(ServedFacts(), props)
    assert facts == ServedFacts(capabilities=("completion", *can))


@given(st.dictionaries(st.sampled_from([*PROPS, "x"]), st.recursive(st.none() | st.text(), st.lists)))
def test_any_properties_can_be_read(props: dict[str, object]) -> None:
    assert with_properties(ServedFacts(context=1), props).context == 1
