"""Test what a text given to `--model` means."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.model_name import (
    BareName,
    HubName,
    MeshName,
    OllamaName,
    hint_for_name,
    is_file_name,
    is_path,
    parse_model_name,
    split_models,
    stem_of_ollama,
)

REGISTRY = "registry.ollama.ai"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:unsloth/GLM-4.7-Flash-GGUF", HubName("unsloth", "GLM-4.7-Flash-GGUF")),
        ("hf:a/b:Q4_K_M", HubName("a", "b", "Q4_K_M")),
        ("hf:a/b:UD-Q2_K_XL/b-00001-of-00002.gguf", HubName("a", "b", "UD-Q2_K_XL/b-00001-of-00002.gguf")),
        ("ollama:smollm2", OllamaName(REGISTRY, "library", "smollm2", "latest")),
        ("ollama:smollm2:135m", OllamaName(REGISTRY, "library", "smollm2", "135m")),
        ("ollama:me/mine:v2", OllamaName(REGISTRY, "me", "mine", "v2")),
        ("ollama:hf.co/org/repo:Q4_K_M", OllamaName("hf.co", "org", "repo", "Q4_K_M")),
        ("ollama:localhost:5000/a/b", OllamaName("localhost:5000", "a", "b", "latest")),
        ("glm", BareName("glm")),
        ("GLM-4.7-Flash-Q4_K_M.gguf", BareName("GLM-4.7-Flash-Q4_K_M.gguf")),
        ("qwen2.5:0.5b", BareName("qwen2.5:0.5b")),
    ],
)
def test_names(text: str, name: HubName | OllamaName | BareName) -> None:
    assert parse_model_name(text) == name
    assert parse_model_name(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf:",
        "hf:repo",
        "hf:a/b/c",
        "hf:a/b:",
        "hf:../b",
        "hf:a/..",
        "hf:a--b/c",
        "hf:a/b:../../etc/passwd",
        "hf:a/b:/etc/passwd",
        "hf:a/.b",
        "ollama:",
        "ollama:..",
        "ollama:a/../b",
        "ollama:a:b:c",
        "ollama:a/b/c/d",
        "ollama:x:",
        "ollama:/etc/x/y",
        "a\nb",
        "x" * 600,
        "models/a.gguf",
        "~/a.gguf",
        "mesh:",
        "mesh:a/b",
        "mesh:.hidden",
        "mesh:a..b",
        "mesh:0123456789abcdef",
        "mesh:" + "0" * 64 + ".gguf",
        "mesh:" + "x" * 201,
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_model_name(text)


@pytest.mark.parametrize("text", ["/a", "a/b", "./glm", "../x", "~/m.gguf", "~", ".", "./hf:a"])
def test_paths(text: str) -> None:
    assert is_path(text)


@pytest.mark.parametrize("text", ["hf:a/b", "ollama:a/b", "glm", "a.gguf", "a:b"])
def test_what_is_not_only_a_path(text: str) -> None:
    assert not is_path(text)


def test_what_ollama_calls_them() -> None:
    for text in ("smollm2", "smollm2:135m", "me/mine", "hf.co/org/repo:Q4"):
        name = parse_model_name(f"ollama:{text}")
        assert isinstance(name, OllamaName) and name.short == text


def test_a_model_of_members_is_a_name_or_a_fingerprint() -> None:
    half, low = "0123456789ABCDEF" * 2, "0123456789abcdef" * 2
    for text, digits in (
        ("Qwen3-4B", ""),
        (half, low),
        (half * 2, low * 2),
        ("0" * 65, ""),
        ("012345678", ""),
    ):
        name = parse_model_name(f"mesh:{text}")
        assert isinstance(name, MeshName) and (name.text, name.fingerprint) == (text, digits)


@pytest.mark.parametrize("count", [10, 12, 31])
def test_few_digits_of_a_fingerprint(count: int) -> None:
    with pytest.raises(
        ValueError, match=f"expected at least 32 of the 64 digits of a fingerprint, not {count}"
    ):
        parse_model_name("mesh:" + ("0F" * 32)[:count])


@given(st.text("0123456789abcdefABCDEF", min_size=10, max_size=64), st.sampled_from(["", ".gguf", ".GGUF"]))
def test_digits_are_never_a_files_name(digits: str, ending: str) -> None:
    assert not is_file_name(digits)
    try:
        name = parse_model_name(f"mesh:{digits}{ending}")
    except ValueError:
        assert ending or len(digits) < 32
        return
    assert isinstance(name, MeshName) and name.fingerprint == digits.lower() and not ending


@pytest.mark.parametrize("ending", ["-00001-of-00002.gguf.renamed", ".header.renamed"])
def test_a_file_of_the_longest_name_can_be_made(tmp_path: Path, ending: str) -> None:
    longest = next(count for count in range(300, 0, -1) if is_file_name("x" * count))
    (tmp_path / f"{'x' * longest}{ending}").touch()
    assert isinstance(parse_model_name(f"mesh:{'x' * longest}.gguf"), MeshName)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/m/a.gguf:/m/b.gguf", ["/m/a.gguf", "/m/b.gguf"]),
        ("hf:a/b", ["hf:a/b"]),
        ("hf:a/b:Q4_K_M", ["hf:a/b:Q4_K_M"]),
        ("hf:a/b:/m/c.gguf", ["hf:a/b", "/m/c.gguf"]),
        ("hf:a/b:Q8_0:/m/c.gguf:ollama:x:1b:glm", ["hf:a/b:Q8_0", "/m/c.gguf", "ollama:x:1b", "glm"]),
        ("hf:a/b:hf:c/d", ["hf:a/b", "hf:c/d"]),
        ("glm:ollama:x", ["glm", "ollama:x"]),
        ("hf", ["hf"]),
        ("mesh:a:glm", ["mesh:a", "glm"]),
        ("hf:a/b:mesh:c", ["hf:a/b", "mesh:c"]),
    ],
)
def test_lists_of_a_variable(text: str, parts: list[str]) -> None:
    assert split_models(text) == parts


@given(st.text(alphabet="hfolamesh:/.-_~ aQ4\n\0é", max_size=40))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    """A name never leads out of the folder that it names."""
    try:
        name = parse_model_name(text)
    except ValueError:
        return
    if isinstance(name, BareName):
        return
    if isinstance(name, MeshName):
        assert "/" not in name.text and ".." not in name.text and parse_model_name(str(name)) == name
        return
    fields = (
        (name.org, name.repo)
        if isinstance(name, HubName)
        else (name.host, name.namespace, name.model, name.tag)
    )
    assert all(field not in ("", ".", "..") and "/" not in field for field in fields)
    if isinstance(name, HubName) and name.choice:
        assert ".." not in Path(name.choice).parts and not name.choice.startswith("/")
    assert parse_model_name(str(name)) == name


@given(st.text(max_size=60))
def test_a_list_loses_nothing(text: str) -> None:
    assert ":".join(split_models(text)) == text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("https://huggingface.co/a/b-GGUF", "`hf:a/b-GGUF`"),
        ("https://huggingface.co/a/b-GGUF/tree/main", "`hf:a/b-GGUF`"),
        ("HTTPS://hf.co/a/b/", "`hf:a/b`"),
        ("https://huggingface.co/a/b/blob/main/b-Q4_K_M.gguf", "`hf:a/b:b-Q4_K_M.gguf`"),
        ("https://huggingface.co/a/b/resolve/main/q/b-Q4_0.gguf?download=true", "`hf:a/b:q/b-Q4_0.gguf`"),
        ("http://x/y.gguf", "download the file first"),
        ("s3://bucket/y.gguf", "download the file first"),
    ],
)
def test_an_address_is_neither_a_name_nor_a_path(text: str, hint: str) -> None:
    assert not is_path(text)
    with pytest.raises(ValueError, match="not an address"):
        parse_model_name(text)
    assert hint in hint_for_name(text)


def test_a_name_that_a_hint_gives_is_one() -> None:
    hint = hint_for_name("https://huggingface.co/a/b/blob/main/q/b-Q4_0.gguf")
    assert parse_model_name(hint.split("`")[1]) == HubName("a", "b", "q/b-Q4_0.gguf")


def test_a_blob_elsewhere_is_called_by_its_name() -> None:
    assert stem_of_ollama("ollama:library/qwen3:8b") == "library-qwen3-8b"


@pytest.mark.parametrize("text", ["hf:org/repo:Q4", "ollama:qwen3:8b", "mesh:garage", "glm"])
def test_a_name_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_model_name(text)) == text
