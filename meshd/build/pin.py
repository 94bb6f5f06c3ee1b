"""The pin: which upstream commit, from which archive, and the sources of our programs beside it."""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (_PACKAGE / "native", _PACKAGE.parent / "native")  # in a wheel, in a checkout


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file of a package: what to ask pip for, and the file's name and SHA-256. If it is no wheel, it is the
    package's source archive, of which the tree under `folder` is wanted.
    """

    requirement: str
    file: str
    sha256: str
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """Upstream and our sources; `files` maps paths to the SHA-256 they have at this commit.

    `version` is that of ggml, `release` that of llama.cpp.
    """

    name: str
    version: str
    release: str
    commit: str
    rpc_protocol: str
    license: str
    sdist: PinnedFile
    files: Mapping[str, str]
    sources_sha256: str  # of native/mesh


def native_folder() -> Path:
    """Return the folder of pin and sources: package data of an installed meshd, or the checkout. Raises
    UserError.
    """
    for folder in _FOLDERS:
        if (folder / "UPSTREAM.toml").is_file():
            return folder
    raise UserError(
        "the pin of llama.cpp is missing: there is no `native/UPSTREAM.toml` next to meshd",
        hint="reinstall meshd, or build from a checkout",
    )


def mesh_sources(folder: Path | None = None) -> Path:
    """Return the sources of our programs, in `folder` (default: native_folder()). Raises UserError."""
    sources = (native_folder() if folder is None else folder) / "mesh"
    if not (sources / "inject.cmake").is_file():
        raise UserError(f"the sources of meshd's backend are missing: `{sources}`", hint="reinstall meshd")
    return sources


def read_pin(folder: Path | None = None) -> Pin:
    """Read the pin in `folder` (default: native_folder()). Raises UserError that names the file."""
    folder = native_folder() if folder is None else folder
    path = folder / "UPSTREAM.toml"
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        sdist = table["sdist"]
        return Pin(
            name=str(table["name"]),
            version=str(table["version"]),
            release=str(table["release"]),
            commit=str(table["commit"]),
            rpc_protocol=str(table["rpc_protocol"]),
            license=str(table["license"]),
            sdist=PinnedFile(*(str(sdist[key]) for key in ("requirement", "file", "sha256", "folder"))),
            files={str(name): str(digest) for name, digest in table["files"].items()},
            sources_sha256=_digest(mesh_sources(folder)),
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise UserError(f"cannot read the pin `{path}`: {error!r}", hint="reinstall meshd") from error


def _digest(folder: Path) -> str:
    """Return the SHA-256 over names, lengths and bytes, in order: the same value means the same files."""
    digest = hashlib.sha256()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(files):
        content = files[name].read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
