"""Which architectures can be served, compared with the pinned source where it lies in the cache."""

import re

import pytest
from meshd.base.errors import UserError
from meshd.model.architectures import (
    KNOWN_ARCHITECTURES,
    check_architecture,
    check_is_model,
    check_projector,
)
from meshd.model.ggml import FILE_TYPES

from tests.gguf_bytes import gguf, parse
from tests.pinned_source import pinned_source


def test_the_list_is_that_of_the_pinned_source() -> None:
    text = pinned_source("src/llama-arch.cpp")
    table = text[text.index("LLM_ARCH_NAMES = {") :]
    names = set(re.findall(r'LLM_ARCH_\w+,\s*"([^"]+)"', table[: table.index("};")]))
    assert names - {"clip", "(unknown)"} == KNOWN_ARCHITECTURES


def test_file_types_are_those_of_the_pinned_source() -> None:
    found = re.findall(
        r"^\s*LLAMA_FTYPE_(?:MOSTLY|ALL)_(\w+)\s*=\s*(\d+),", pinned_source("include/llama.h"), re.M
    )
    assert {int(number): name for name, number in found} == dict(FILE_TYPES)


def _check(architecture: str) -> None:
    check_architecture(parse(gguf({"general.architecture": architecture})), label="m.gguf")


@pytest.mark.parametrize("architecture", ["llama", "deepseek2"])
def test_a_known_one_is_accepted(architecture: str) -> None:
    _check(architecture)


@pytest.mark.parametrize(
    ("metadata", "words", "hint"),
    [
        ({"general.architecture": "clip"}, "(mmproj), not a model", "--mmproj"),
        ({"general.architecture": "clip", "general.type": "model"}, "(mmproj), not a model", "--mmproj"),
        ({"general.architecture": "llama", "general.type": "mmproj"}, "(mmproj), not a model", "--mmproj"),
        (
            {"general.architecture": "llama", "general.type": "adapter"},
            "an adapter (LoRA)",
            "llama-export-lora",
        ),
        ({"general.type": "imatrix"}, "an importance matrix", "--model"),
    ],
)
def test_what_is_no_model_is_named(metadata: dict[str, str], words: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        check_is_model(parse(gguf(metadata)), label="m.gguf")
    assert caught.value.what.startswith("`m.gguf` cannot be served: it is ")
    assert words in caught.value.what
    assert hint in caught.value.hint


def test_a_model_is_one_with_or_without_its_type() -> None:
    check_is_model(parse(gguf({"general.architecture": "llama"})), label="m.gguf")
    check_is_model(parse(gguf({"general.architecture": "llama", "general.type": "model"})), label="m.gguf")


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("glm4moelite", "`glm4moelite`, which only Ollama knows; in llama.cpp it is `deepseek2`"),
        ("nonsense", "`nonsense`, which the pinned llama.cpp does not know"),
    ],
)
def test_one_that_is_not_known_is_named(architecture: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        _check(architecture)
    assert words in caught.value.what and "`m.gguf`" in caught.value.what
    assert "\n" not in caught.value.what and caught.value.hint


def test_none_at_all() -> None:
    with pytest.raises(UserError, match="does not say which architecture"):
        check_architecture(parse(gguf({"general.name": "x"})), label="m.gguf")


def test_only_a_projector_is_taken_for_one() -> None:
    check_projector(parse(gguf({"general.architecture": "clip"})), label="mmproj.gguf")
    with pytest.raises(UserError, match=r"`m.gguf` is not an mmproj file: its architecture is `llama`"):
        check_projector(parse(gguf({"general.architecture": "llama"})), label="m.gguf")
