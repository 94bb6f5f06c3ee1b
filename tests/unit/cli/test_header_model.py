"""`meshd model` for a model of which only the header is here."""

import json
import shlex
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library.pulled_models import note_names
from meshd.model.model_name import MeshName
from meshd.store.header_file import note_path, present_tensors

from tests.conformance.run import run
from tests.gguf_bytes import parse
from tests.unit.library.models import tiny, tiny_shards
from tests.unit.store.header_files import opens, with_holes

from .shell import meshd


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without any model, and no hub."""
    for name in ("HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def test_what_the_commands_say_of_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_CACHE", str(tmp_path / "cache"))
    path = with_holes(tmp_path / "cache/models/header-0", tiny(fill=9), stem="far-Q4_0")
    row = next(
        one for one in json.loads(meshd("model", "ls", "--json").out) if one["name"] == "mesh:far-Q4_0"
    )
    assert (row["problem"], row["source"], row["quant"]) == ("only its header is here", "meshd", "Q4_K_M")
    [node] = row["nodes"]
    assert (node["names"], node["path"], node["complete"]) == (["far-Q4_0"], str(path), False)
    shown = meshd("model", "show", "mesh:far-Q4_0").out
    assert (
        f"fingerprint    {row['fingerprint']}" in shown and "problem        only its header is here" in shown
    )
    assert json.loads(meshd("model", "verify", "mesh:far-Q4_0", "--json").out)["header_only"] is True
    verified = meshd("model", "verify", "mesh:far-Q4_0")
    assert (
        verified.code == 0 and "and the tensors outside the layers are here; they are right" in verified.out
    )
    with path.open("r+b") as file:
        file.seek(-5, 2)
        file.write(b"\xff")
    damaged = meshd("model", "verify", "mesh:far-Q4_0")
    assert damaged.code == 1 and "error: cannot use `far-Q4_0.header`: tensor `output_norm" in damaged.err
    assert f"remove it with `meshd model rm {path}`" in damaged.err
    ran = meshd("model", "rm", "mesh:far-Q4_0", "--yes")
    assert ran.code == 0 and not path.parent.exists()


@pytest.mark.parametrize("damaged", ["hashes", "second"])
def test_a_damaged_header_is_removed_as_the_hint_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Also one that was pulled by its fingerprint, which a damaged note does not tell."""
    monkeypatch.setenv("MESHD_CACHE", str(tmp_path / "a cache"))
    place = tmp_path / "a cache/models/header-0"
    shards = list(tiny_shards(2, "far-Q4_0").values())
    path = with_holes(place, *shards, stem="far-Q4_0")
    run(opens(path))  # which makes links
    note_names(place, [MeshName("f" * 64)])
    if damaged == "hashes":
        note_path(path).write_bytes(b"{}")
    else:
        second = path.with_name(path.name.replace("-00001-", "-00002-"))
        with second.open("r+b") as file:
            file.seek(present_tensors(parse(shards[1]))[0].offset)
            file.write(b"\xff")
    with pytest.raises(UserError) as raised:
        run(opens(path))
    command = shlex.split(raised.value.hint.split("`")[1])
    assert command[:3] == ["meshd", "model", "rm"]
    ran = meshd(*command[1:], "--yes")
    assert ran.code == 0 and not place.exists(), ran.err
