"""Tiny models, and the layouts in which programs keep them."""

import hashlib
import json
from pathlib import Path

from meshd.library.pulled_models import note_names
from meshd.model.model_name import parse_model_name

from tests.gguf_bytes import gguf, language_model
from tests.hub_server import COMMIT


def tiny(architecture: str = "llama", *, fill: int = 1) -> bytes:
    """A model of some kB."""
    metadata, tensors = language_model(
        architecture=architecture,
        fill=fill,
        extra={"general.file_type": 15, "tokenizer.chat_template": "{{ x }}"},
    )
    return gguf(metadata, tensors)


def tiny_shards(count: int, stem: str = "tiny-Q4_K_M") -> dict[str, bytes]:
    """Return the shards by name."""
    metadata, tensors = language_model()
    parts = {}
    for number in range(count):
        keys = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors)}
        own = {**metadata, **keys} if number == 0 else keys
        parts[f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"] = gguf(own, tensors[number::count])
    return parts


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def pulled(path: Path, data: bytes, *names: str) -> Path:
    """As a pull by these names leaves it, in a folder of its own."""
    note_names(put(path, data).parent, map(parse_model_name, names))
    return path


def cached(cache: Path, repository: str, files: dict[str, bytes], *, commit: str = COMMIT) -> Path:
    """A repository in Hugging Face's cache; returns its snapshot."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for name, data in files.items():
        blob = put(folder / "blobs" / hashlib.sha256(data).hexdigest(), data)
        pointer = folder / "snapshots" / commit / name
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.symlink_to(Path("../" * (2 + name.count("/"))) / "blobs" / blob.name)
    put(folder / "refs" / "main", commit.encode())
    return folder / "snapshots" / commit


def in_ollama(models: Path, name: str, data: bytes, *, size: int | None = None) -> Path:
    """A model of Ollama, `HOST/NAMESPACE/MODEL/TAG`; returns its blob."""
    digest = hashlib.sha256(data).hexdigest()
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64, "size": 3},
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{digest}",
            "size": len(data) if size is None else size,
        },
    ]
    manifest = {"schemaVersion": 2, "layers": layers}
    put(models / "manifests" / name, json.dumps(manifest).encode())
    return put(models / "blobs" / f"sha256-{digest}", data)
