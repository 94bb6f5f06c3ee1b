"""Read Ollama's models: manifests that name blobs, one of which is the GGUF file. Never written to.

`manifests/HOST/NAMESPACE/MODEL/TAG` is JSON, `blobs/sha256-HASH` holds the bytes, and HASH is their hash.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import expanded, in_home
from meshd.base.units import in_exact_bytes
from meshd.library.disk import MAX_ENTRIES, size_of
from meshd.library.interface import ModelSource, StoredModel
from meshd.model.model_name import OllamaName, parse_model_name

MAX_MANIFEST_BYTES = 1 << 20  # real ones have about 1 kB
MAX_LAYER_BYTES = 1 << 50
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_ON_LINUX = ("/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models", "/var/lib/ollama/models")
_MANIFEST_DEPTH = 4  # HOST/NAMESPACE/MODEL/TAG


@dataclass(frozen=True, slots=True)
class Layer:
    """The model layer of a manifest."""

    digest: str  # 64 hex digits
    size: int


def folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the folders where Ollama may keep models: the user's own, then those of its system service."""
    if given := environ.get("OLLAMA_MODELS"):
        return [expanded(given)]
    own = [in_home(".ollama/models")]
    return [*own, *map(Path, _ON_LINUX)] if sys.platform == "linux" else own


def find(places: list[Path], name: OllamaName) -> StoredModel | None:
    """Find the model in the first folder that has it. Raises UserError if it cannot be used or read."""
    for place in places:
        manifest = place / "manifests" / name.host / name.namespace / name.model / name.tag
        try:
            content = _read(manifest)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            raise not_allowed(place, str(name)) from None
        except OSError as error:
            raise UserError(
                f"cannot read `{manifest}`: {error.strerror}", hint="check the disk, or pull the model again"
            ) from None
        return _stored(place, name, content)
    return None


def all_models(place: Path) -> Iterator[StoredModel]:
    """Find every model of one folder. Raises OSError if the folder cannot be read."""
    root = place / "manifests"
    for path in _manifests(root):
        parts = path.relative_to(root).parts
        try:
            name = parse_model_name(f"ollama:{'/'.join(parts[:-1])}:{parts[-1]}")
            if isinstance(name, OllamaName):
                yield _stored(place, name, _read(path))
        except (ValueError, OSError, UserError):
            continue  # not Ollama's, not readable by us, or without a GGUF file


def name_of_blob(path: Path) -> str:
    """Return Ollama's name of the model with this blob (`smollm2:135m`); empty if it is not Ollama's."""
    match = _DIGEST.fullmatch(path.name)
    if match is None or path.parent.name != "blobs":
        return ""
    try:
        for stored in all_models(path.parent.parent):
            if [stored_path.name for stored_path in stored.paths] == [path.name]:
                return stored.name.removeprefix("ollama:")
    except OSError:
        return ""
    return ""


def _manifests(root: Path) -> list[Path]:
    found: list[Path] = []
    waiting = [(root, 1)]
    left = MAX_ENTRIES
    while waiting and left > 0:
        place, level = waiting.pop()
        try:
            entries = sorted(place.iterdir())[:left]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            if level == 1:
                raise
            continue
        left -= len(entries)
        if level == _MANIFEST_DEPTH:
            found += [entry for entry in entries if entry.is_file()]
        else:
            waiting += [(entry, level + 1) for entry in entries if entry.is_dir()]
    return sorted(found)


def _read(manifest: Path) -> bytes:
    with manifest.open("rb") as file:
        return file.read(MAX_MANIFEST_BYTES + 1)


def _stored(place: Path, name: OllamaName, content: bytes) -> StoredModel:
    layer = read_manifest(content, str(name))
    blob = place / "blobs" / f"sha256-{layer.digest}"
    try:
        size = blob.stat().st_size
        problem = "" if size == layer.size else f"short by {in_exact_bytes(layer.size - size)}"
    except FileNotFoundError:
        size = size_of(blob.with_name(f"{blob.name}-partial"))
        problem = "the download is not complete"
    except PermissionError:
        raise not_allowed(place, str(name)) from None
    except OSError as error:
        raise UserError(f"cannot read `{blob}`: {error.strerror}", hint="check the disk") from None
    return StoredModel(str(name), ModelSource.OLLAMA, (blob,), size, problem=problem)


def read_manifest(content: bytes, name: str) -> Layer:
    """Return the GGUF layer that a manifest names. Raises UserError if it is damaged or has none."""
    damaged = UserError(
        f"the manifest of `{name}` is damaged", hint=f"run `ollama pull {name.removeprefix('ollama:')}`"
    )
    # The layers of the manifest.
    try:
        if len(content) > MAX_MANIFEST_BYTES:
            raise ValueError("too large")
        value: object = json.loads(content)
        layers = value["layers"] if isinstance(value, dict) else None
        if not isinstance(layers, list):
            raise ValueError("no layers")
        ours = [
            layer for layer in layers if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER
        ]
    except (ValueError, KeyError, RecursionError):
        raise damaged from None
    if not ours:
        raise UserError(
            f"`{name}` has no GGUF file: Ollama keeps it in another format, or runs it on its servers",
            hint="use the GGUF file of the same model from Hugging Face: `--model hf:ORG/REPO`",
        )
    # The layer of the GGUF file.
    digest, size = ours[0].get("digest"), ours[0].get("size")
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if (
        match is None
        or not isinstance(size, int)
        or isinstance(size, bool)
        or not 0 <= size < MAX_LAYER_BYTES
    ):
        raise damaged
    return Layer(match[1], size)


def not_allowed(place: Path, what: str) -> UserError:
    """Return the error for files of Ollama's service, which runs as another user."""
    return UserError(
        f"not allowed to read `{what}` in `{place}`: it belongs to Ollama's own user",
        hint="join its group (`sudo usermod -aG ollama $USER`, then log in again), or download the model "
        "from Hugging Face: `--model hf:ORG/REPO`",
    )
