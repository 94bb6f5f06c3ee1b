"""Ollama's manifests and blobs."""

import json
import os
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library import ollama
from meshd.library.ollama import read_manifest
from meshd.model.model_name import OllamaName, parse_model_name

from .models import in_ollama, put, tiny

LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def place(home: Path) -> Path:
    return home / ".ollama/models"


def name(text: str) -> OllamaName:
    found = parse_model_name(f"ollama:{text}")
    assert isinstance(found, OllamaName)
    return found


def test_a_model_is_its_blob(place: Path) -> None:
    blob = in_ollama(place, f"{LIBRARY}/smollm2/latest", tiny())
    found = ollama.find([place], name("smollm2"))
    assert found is not None and found.paths == (blob,)
    assert (found.name, found.size, found.complete) == ("ollama:smollm2", len(tiny()), True)


@pytest.mark.parametrize(
    ("text", "manifest"),
    [
        ("smollm2:135m", f"{LIBRARY}/smollm2/135m"),
        ("me/mine:v1", "registry.ollama.ai/me/mine/v1"),
        ("hf.co/org/repo:Q4_K_M", "hf.co/org/repo/Q4_K_M"),
    ],
)
def test_names_with_tag_namespace_and_registry(place: Path, text: str, manifest: str) -> None:
    in_ollama(place, manifest, tiny())
    assert ollama.find([place], name(text)) is not None
    assert [one.name for one in ollama.all_models(place)] == [f"ollama:{text}"]
    assert ollama.find([place], name("smollm2:other")) is None


def test_the_first_folder_that_has_it_counts(place: Path, home: Path) -> None:
    blob = in_ollama(home / "other", f"{LIBRARY}/a/latest", tiny())
    found = ollama.find([place, home / "other"], name("a"))
    assert found is not None and found.paths == (blob,)


def test_where_ollama_may_be(home: Path) -> None:
    assert ollama.folders({"OLLAMA_MODELS": "/srv/o"}) == [Path("/srv/o")]
    found = ollama.folders({})
    assert found[0] == home / ".ollama/models"
    if os.uname().sysname == "Linux":
        assert Path("/usr/share/ollama/.ollama/models") in found


def test_a_blob_is_called_as_ollama_calls_it(place: Path, home: Path) -> None:
    blob = in_ollama(place, f"{LIBRARY}/smollm2/135m", tiny())
    assert ollama.name_of_blob(blob) == "smollm2:135m"
    assert ollama.name_of_blob(put(place / "blobs" / f"sha256-{'0' * 64}", b"x")) == ""
    assert ollama.name_of_blob(put(home / "a.gguf", b"x")) == ""


@pytest.mark.parametrize("lost", ["cut", "gone"])
def test_what_is_not_complete(place: Path, lost: str) -> None:
    blob = in_ollama(place, f"{LIBRARY}/a/latest", tiny(), size=len(tiny()) + 7)
    if lost == "gone":
        blob.unlink()
    found = ollama.find([place], name("a"))
    assert found is not None and not found.complete
    assert found.problem == ("short by 7 bytes" if lost == "cut" else "the download is not complete")


def test_what_this_user_may_not_read_is_explained(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_ollama(place, f"{LIBRARY}/a/latest", tiny())

    def denied(manifest: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(manifest))

    monkeypatch.setattr(ollama, "_read", denied)
    with pytest.raises(UserError, match=r"not allowed to read `ollama:a` .*Ollama's own user") as caught:
        ollama.find([place], name("a"))
    assert "usermod -aG ollama" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_of_another_user(place: Path) -> None:
    """With real permissions: root may read everything, so a child that is not root asks."""
    in_ollama(place, f"{LIBRARY}/a/latest", tiny())
    (place / "manifests").chmod(0o700)
    for folder in (place, *place.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        with pytest.raises(UserError, match="not allowed to read"):
            ollama.find([place], name("a"))
        with pytest.raises(PermissionError):
            list(ollama.all_models(place))
    finally:
        os.seteuid(0)


LAYER = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "0" * 64, "size": 1}


@pytest.mark.parametrize(
    "layer",
    [
        {**LAYER, "digest": "sha256:../../../etc/passwd"},
        {**LAYER, "digest": "sha256:" + "0" * 63},
        {**LAYER, "digest": 3},
        {**LAYER, "size": -1},
        {**LAYER, "size": True},
        {**LAYER, "size": 10**400},
        {**LAYER, "size": "1"},
    ],
)
def test_a_damaged_manifest(layer: dict[str, object]) -> None:
    with pytest.raises(UserError, match="manifest of `ollama:a` is damaged") as caught:
        read_manifest(json.dumps({"layers": [layer]}).encode(), "ollama:a")
    assert caught.value.hint == "run `ollama pull a`"


def test_a_model_without_a_gguf_file() -> None:
    layers = [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "sha256:" + "0" * 64, "size": 1}]
    with pytest.raises(UserError, match="has no GGUF file") as caught:
        read_manifest(json.dumps({"layers": layers}).encode(), "ollama:a")
    assert "hf:ORG/REPO" in caught.value.hint


def test_an_endless_manifest_is_not_read_whole(place: Path) -> None:
    put(place / "manifests" / LIBRARY / "a/latest", b"[" * (ollama.MAX_MANIFEST_BYTES + 10))
    with pytest.raises(UserError, match="damaged"):
        ollama.find([place], name("a"))
    assert list(ollama.all_models(place)) == []
