"""Read what a release of llama.cpp says of itself, from the sources that llama-cpp-python carries."""

import hashlib
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError

_NAME = re.compile(r"(llama_cpp_python-(\d[\w.]*))\.tar\.gz")
_UPDATED = re.compile(r"update llama\.cpp to ggml-org/llama\.cpp@([0-9a-f]{7,40})", re.IGNORECASE)
_VERSION_FILES = (CMAKE, TOP_CMAKE, RPC_HEADER) = (
    "ggml/CMakeLists.txt",
    "CMakeLists.txt",
    "ggml/include/ggml-rpc.h",
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """One release: of the archive `file`, with the contents of those of its files that were asked for."""

    file: str
    sha256: str
    package: str  # version of the package
    folder: str  # of llama.cpp in the archive
    commit: str  # as far as the package's changelog gives it, "" if it does not
    texts: dict[str, bytes]

    def text(self, path: str) -> str:
        """Return the text of a file, empty if it is missing there."""
        return self.texts.get(path, b"").decode("utf-8", "replace")

    @property
    def version(self) -> str:
        """Return the version of ggml."""
        return _numbers(self.text(CMAKE), r"GGML_VERSION_{}\s+(\d+)")

    @property
    def release(self) -> str:
        """Return the release of llama.cpp."""
        return _numbers(self.text(TOP_CMAKE), r"LLAMA_VERSION_{}\s+(\d+)")

    @property
    def rpc_protocol(self) -> str:
        return _numbers(self.text(RPC_HEADER), r"RPC_PROTO_{}_VERSION\s+(\d+)")


def read_upstream(archive: Path, wanted: Iterable[str]) -> Upstream:
    """With the files `wanted` of llama.cpp, as far as they are there. Raises UserError."""
    match = _NAME.fullmatch(archive.name)
    if match is None:
        raise UserError(f"`{archive.name}` is no source archive of llama-cpp-python")
    top, package = match[1], match[2]
    folder = f"{top}/vendor/llama.cpp"
    paths = {f"{folder}/{path}": path for path in (*wanted, *_VERSION_FILES)}
    texts, changes = {}, ""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.name not in paths and member.name != f"{top}/CHANGELOG.md":
                    continue
                content = tar.extractfile(member)
                data = content.read() if content is not None else b""
                if member.name in paths:
                    texts[paths[member.name]] = data
                else:
                    changes = data.decode("utf-8", "replace")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"cannot read `{archive}`: {error}") from error
    section = changes.partition(f"## [{package}]")[2].partition("\n## [")[0]
    updated = _UPDATED.search(section)
    return Upstream(archive.name, digest, package, folder, updated[1] if updated else "", texts)


def _numbers(text: str, pattern: str) -> str:
    parts = [re.search(pattern.format(part), text) for part in ("MAJOR", "MINOR", "PATCH")]
    if not all(parts):
        raise UserError("the archive does not say its versions where earlier ones did")
    return ".".join(part[1] for part in parts if part is not None)
