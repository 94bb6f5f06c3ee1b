"""Test what the names of GGUF files say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.gguf_names import (
    HEADER_SUFFIX,
    GgufFile,
    GgufModel,
    choose,
    file_names,
    header_stem,
    is_model,
    models_in,
    quant_of,
)


def _models(*paths: str) -> list[GgufModel]:
    return models_in(GgufFile(path, 10) for path in paths)


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("GLM-4.7-Flash-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("x-UD-Q2_K_XL.gguf", "UD-Q2_K_XL"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-IQ4_XS.gguf", "IQ4_XS"),
        ("BF16/model-00001-of-00002.gguf", "BF16"),
        ("Q8_0/model-Q4_0.gguf", "Q4_0"),
        ("model.gguf", ""),
        ("Qwen3-4B.gguf", ""),
        ("FQ4_0x.gguf", ""),
    ],
)
def test_quantisations(path: str, quant: str) -> None:
    assert quant_of(path) == quant


@pytest.mark.parametrize("path", ["a.gguf", "b/A.GGUF", "mmprojection.gguf"])
def test_models(path: str) -> None:
    assert is_model(path)


@pytest.mark.parametrize(
    "path", ["a.bin", "mmproj-F16.gguf", "x/mmproj-BF16.gguf", "a.mmproj.gguf", "imatrix.gguf"]
)
def test_what_is_no_model(path: str) -> None:
    assert not is_model(path)


def test_shards_are_one_model_and_the_missing_are_named() -> None:
    [model] = _models("Q8_0/m-Q8_0-00003-of-00003.gguf", "Q8_0/m-Q8_0-00001-of-00003.gguf", "mmproj-F16.gguf")
    assert (model.name, model.quant, model.shards, model.size) == ("Q8_0/m-Q8_0", "Q8_0", 3, 20)
    assert [file.path[-19:-14] for file in model.files] == ["00001", "00003"]
    assert not model.complete and model.missing == ("Q8_0/m-Q8_0-00002-of-00003.gguf",)
    assert _models(*(f"m-0000{n}-of-00002.gguf" for n in (1, 2)))[0].complete


def test_numbers_beyond_the_count_are_no_shards() -> None:
    assert _models("m-00003-of-00002.gguf", "m-00000-of-00002.gguf") == []


def test_what_is_chosen() -> None:
    models = _models("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q5_K_XL.gguf", "other/m-Q8_0.gguf", "plain.gguf")

    def names(wish: str) -> list[str]:
        return [model.name for model in choose(models, wish)]

    assert names("") == ["m-Q4_K_M"]
    assert names("q4_k_m") == ["m-Q4_K_M"]
    assert names("Q8_0") == ["m-Q8_0", "other/m-Q8_0"]
    assert names("other/m-Q8_0.gguf") == ["other/m-Q8_0"]
    assert names("m-Q8_0") == ["m-Q8_0"]
    assert names("Q5_K_XL") == ["m-UD-Q5_K_XL"]
    assert names("plain.gguf") == names("plain") == ["plain"]
    assert names("Q2_K") == []


def test_without_a_wish_the_usual_ones_come_first() -> None:
    def chosen(*paths: str) -> str:
        return choose(_models(*paths), "")[0].name

    assert chosen("m-BF16.gguf", "m-Q8_0.gguf", "m-Q2_K.gguf") == "m-Q8_0"
    assert chosen("m-F16.gguf", "m-UD-Q4_K_XL.gguf") == "m-UD-Q4_K_XL"
    assert chosen("b.gguf", "a.gguf") == "a"
    assert choose([], "") == []


@given(st.lists(st.text(alphabet="aQ4_-0125of/.gu", max_size=30), max_size=8))
def test_any_names(paths: list[str]) -> None:
    """Each file is part of at most one model, and a chosen one is one of them."""
    models = _models(*dict.fromkeys(paths), "m-Q4_0.gguf")
    files = [file.path for model in models for file in model.files]
    assert len(files) == len(set(files))
    for wish in ("", "Q4_0"):
        assert all(model in models for model in choose(models, wish))
        assert choose(models, wish)


def test_the_ending_may_have_capitals() -> None:
    """Found by the fuzzer: a part that is there was said to be missing."""
    [model] = _models("m-00001-of-00003.GGUF", "m-00003-of-00003.gguf")
    assert model.missing == ("m-00002-of-00003.gguf",)


@pytest.mark.parametrize(
    ("count", "names"),
    [(1, ["m.gguf"]), (2, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"])],
)
def test_the_files_of_a_model_are_numbered_if_there_are_several(count: int, names: list[str]) -> None:
    assert file_names("m", count) == names
    assert file_names("m", 1, ".part") == ["m.part"]


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        (f"m{HEADER_SUFFIX}", "m"),
        (f"m-00001-of-00002{HEADER_SUFFIX}", "m"),
        ("m-00002-of-00002", "m"),
        ("m", "m"),
        ("m-1-of-2", "m-1-of-2"),
    ],
)
def test_a_header_has_the_name_of_its_model(name: str, stem: str) -> None:
    assert header_stem(name) == stem
