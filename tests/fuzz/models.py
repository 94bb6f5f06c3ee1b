"""Targets that name models: what `--model` is given, a manifest of Ollama, the files of a repository."""

import json
import random
from collections.abc import Sequence

from meshd.base.errors import UserError
from meshd.library.ollama import read_manifest
from meshd.model.gguf_names import GgufFile, choose, models_in
from meshd.model.model_name import HubName, MeshName, OllamaName, parse_model_name, split_models

from tests.fuzz.mutate import flip, twist
from tests.fuzz.target import Target

NAMES = (
    "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M",
    "hf:a/b:UD-Q2_K_XL/b-00001-of-00002.gguf",
    "ollama:smollm2:135m",
    "ollama:hf.co/org/repo:Q4_K_M",
    "GLM-4.7-Flash-Q4_K_M.gguf",
    "mesh:GLM-4.7-Flash-Q4_K_M",
    "mesh:0123456789abcdef0123456789abcdef:/m.gguf",
    "hf:a/b:Q8_0:/m/c.gguf:ollama:x:1b:glm",
)
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64, "size": 3},
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "2" * 64, "size": 98},
        ],
    }
)
FILES = (
    "Q8_0/m-Q8_0-00001-of-00002.gguf\nQ8_0/m-Q8_0-00002-of-00002.gguf\nm-UD-Q4_K_XL.gguf\nmmproj-F16.gguf",
    "GLM-4.7-Flash-Q4_K_M.gguf\nREADME.md\nBF16/a.gguf",
)


def _make_flipped(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    return flip(rng, rng.choice(samples), samples)


def _feed_name(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert ":".join(split_models(text)) == text
    try:
        name = parse_model_name(text)
    except ValueError as error:
        raise UserError(str(error)) from None
    assert parse_model_name(str(name)) == name
    if isinstance(name, MeshName):
        assert "/" not in name.text and ".." not in name.text and not name.text.startswith(".")
    elif isinstance(name, HubName):
        assert not {"", ".", ".."} & {name.org, name.repo, *name.choice.split("/")[1:]}
    elif isinstance(name, OllamaName):
        assert not {"", ".", ".."} & {name.host, name.namespace, name.model, name.tag}


def _make_manifest(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    if rng.random() < 0.5:
        return flip(rng, good, samples)
    try:
        return json.dumps(twist(rng, json.loads(good))).encode()
    except (TypeError, ValueError, RecursionError):
        return flip(rng, good, ())


def _feed_manifest(data: bytes) -> None:
    layer = read_manifest(data, "ollama:x")
    assert len(layer.digest) == 64 and layer.digest.isalnum() and 0 <= layer.size < 1 << 62


def _feed_files(data: bytes) -> None:
    paths = list(dict.fromkeys(data.decode("utf-8", "replace").split("\n")))
    models = models_in(GgufFile(path, 1) for path in paths)
    if not models:
        raise UserError("no model")
    assert sum(len(model.files) for model in models) <= len(paths)
    assert choose(models, "") and all(model in models for model in choose(models, "Q8_0"))
    for model in models:
        assert len(model.missing) == model.shards - len(model.files)


TARGETS = (
    Target(
        name="model-name",
        samples=tuple(name.encode() for name in NAMES),
        make=_make_flipped,
        feed=_feed_name,
        allowed=(UserError,),
        share=4,
    ),
    Target(
        name="manifest",
        samples=(MANIFEST.encode(),),
        make=_make_manifest,
        feed=_feed_manifest,
        allowed=(UserError,),
        share=4,
    ),
    Target(
        name="model-files",
        samples=tuple(files.encode() for files in FILES),
        make=_make_flipped,
        feed=_feed_files,
        allowed=(UserError,),
        share=2,
        most_bytes=16 << 20,  # 99,999 shards, all but one missing, are named
    ),
)
