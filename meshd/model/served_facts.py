"""Describe a served model for its clients: its context length, creation time and capabilities."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshd.model.ggml import FILE_TYPES

if TYPE_CHECKING:  # verbs that only show a status do without it, and without what it imports
    from meshd.model.gguf import Header

_EMBEDDING_ARGS = frozenset({"--embedding", "--embeddings"})


@dataclass(frozen=True, slots=True)
class ServedFacts:
    """The facts about a model that is or will be loaded. Unknown numbers are 0, unknown texts empty.

    `context`: tokens of one answer with its prompt, once the model is loaded; `trained_context`: what it was
    trained for. `created`: Unix seconds, of the file. `size`: bytes of its weights. `capabilities`: words of
    Ollama's API: `completion`, `tools`, `thinking`, `vision`, `audio`, `embedding`; until the model is loaded
    only those that do not depend on its template.
    """

    context: int = 0
    trained_context: int = 0
    created: int = 0
    size: int = 0
    parameters: int = 0
    embedding_length: int = 0
    architecture: str = ""
    quantization: str = ""
    fingerprint: str = ""
    capabilities: tuple[str, ...] = ("completion",)


def facts_of_file(headers: "Sequence[Header]", *, created: int, llama_args: Sequence[str]) -> ServedFacts:
    """Return the facts in the headers of all shards, and whether llama-server is started for embeddings."""
    first = headers[0]
    architecture = first.text("general.architecture")
    embeds = not _EMBEDDING_ARGS.isdisjoint(llama_args)
    return ServedFacts(
        trained_context=first.integer(f"{architecture}.context_length"),
        created=created,
        size=sum(tensor.size for header in headers for tensor in header.tensors),
        parameters=sum(math.prod(tensor.dims) for header in headers for tensor in header.tensors),
        embedding_length=first.integer(f"{architecture}.embedding_length"),
        architecture=architecture,
        quantization=FILE_TYPES.get(first.integer("general.file_type", -1), ""),
        capabilities=("completion", "embedding") if embeds else ("completion",),
    )


def with_properties(facts: ServedFacts, props: Mapping[str, object]) -> ServedFacts:
    """Add what a loaded llama-server reports by `/props` (tools/server/server-context.cpp, get_res_props)."""
    template = props.get("chat_template")
    thinks = isinstance(template, str) and ("<think>" in template or "enable_thinking" in template)
    takes = _flags(props.get("chat_template_caps"))
    hears = _flags(props.get("modalities"))
    can = {
        "tools": "supports_tools" in takes,
        "thinking": thinks or "supports_reasoning_effort" in takes,
        "vision": "vision" in hears,
        "audio": "audio" in hears,
    }
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    return replace(
        facts,
        context=context if isinstance(context, int) and context > 0 else facts.context,
        capabilities=(*facts.capabilities, *(word for word, true in can.items() if true)),
    )


def _flags(value: object) -> frozenset[str]:
    return (
        frozenset(name for name, flag in value.items() if flag is True)
        if isinstance(value, dict)
        else frozenset()
    )
