"""The pin: which upstream commit, from which archive, with which patches."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.patch import FilePatch, parse_patch

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "native", _PACKAGE.parent / "native")  # in a wheel, in a checkout


@dataclass(frozen=True, slots=True)
class Sdist:
    """The package whose source archive carries upstream's tree under `folder`."""

    requirement: str
    file: str
    sha256: str
    folder: str


@dataclass(frozen=True, slots=True)
class Pin:
    """Upstream and our patches; `files` maps paths to the SHA-256 they have at this commit.

    `version` is that of ggml, `release` that of llama.cpp.
    """

    name: str
    version: str
    release: str
    commit: str
    rpc_protocol: str
    license: str
    sdist: Sdist
    files: Mapping[str, str]
    texts: tuple[tuple[str, bytes], ...]  # names and contents of the patches, in their order
    patches_sha256: str

    @property
    def patches(self) -> tuple[FilePatch, ...]:
        """Of all patches, parsed anew: a daemon needs none of them. Raises UserError."""
        return tuple(
            part for name, text in self.texts for part in parse_patch(_decoded(name, text), name=name)
        )


def native_folder() -> Path:
    """Where pin and patches lie: package data of an installed meshd, or the checkout. Raises UserError."""
    for folder in _FOLDERS:
        if (folder / "UPSTREAM.toml").is_file():
            return folder
    raise UserError(
        "the pin of llama.cpp is missing: there is no `native/UPSTREAM.toml` next to meshd",
        hint="reinstall meshd, or build from a checkout",
    )


def read_pin(folder: Path | None = None) -> Pin:
    """Read pin and patches from `folder` (default: native_folder()). Raises UserError that names the file."""
    folder = native_folder() if folder is None else folder
    path = folder / "UPSTREAM.toml"
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        sdist = table["sdist"]
        texts = [(file.name, file.read_bytes()) for file in sorted((folder / "patches").glob("*.patch"))]
        return Pin(
            name=str(table["name"]),
            version=str(table["version"]),
            release=str(table["release"]),
            commit=str(table["commit"]),
            rpc_protocol=str(table["rpc_protocol"]),
            license=str(table["license"]),
            sdist=Sdist(
                requirement=str(sdist["requirement"]),
                file=str(sdist["file"]),
                sha256=str(sdist["sha256"]),
                folder=str(sdist["folder"]),
            ),
            files={str(name): str(digest) for name, digest in table["files"].items()},
            texts=tuple(texts),
            patches_sha256=patches_digest(texts),
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise UserError(f"cannot read the pin `{path}`: {error!r}", hint="reinstall meshd") from error


def _decoded(name: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"the patch `{name}` is not UTF-8 text: {error!r}", hint="reinstall meshd") from error


def patches_digest(texts: list[tuple[str, bytes]]) -> str:
    """SHA-256 over names, lengths and bytes, in order: the same value means the same patches."""
    digest = hashlib.sha256()
    for name, text in texts:
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()
