"""Write a wheel: the same files give the same bytes, whoever packs them and when."""

import base64
import csv
import hashlib
import io
import stat
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

EARLIEST = 315_532_800  # 1980-01-01: a zip archive knows no earlier time


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the wheel. Programs and libraries are `executable`."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a wheel's file name; `distribution` and `version` without `-`."""

    distribution: str
    version: str
    tag: str

    @property
    def file(self) -> str:
        """The file name."""
        return f"{self.distribution}-{self.version}-{self.tag}.whl"

    @property
    def info(self) -> str:
        """The folder of metadata in the wheel."""
        return f"{self.distribution}-{self.version}.dist-info"


def pack(folder: Path, name: Name, files: Mapping[str, Entry], *, epoch: int = EARLIEST) -> Path:
    """Write the wheel of `files`, by their paths in it, with WHEEL and RECORD; return its path.

    Raises ValueError for a path that leads out of the wheel, or comes from us.
    """
    own = {f"{name.info}/WHEEL": Entry(_wheel_file(name.tag).encode())}
    record = f"{name.info}/RECORD"
    for path in files:
        if path in (*own, record) or path.startswith("/") or "\\" in path or ".." in path.split("/"):
            raise ValueError(f"no path of a wheel: {path}")
    packed = dict(sorted({**files, **own}.items()))
    packed[record] = Entry(_record(packed.items(), record).encode())  # the last, as it has the others
    when = time.gmtime(max(epoch, EARLIEST))[:6]
    place = folder / name.file
    folder.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        for path, entry in packed.items():
            member = zipfile.ZipInfo(path, when)
            member.create_system = 3  # Unix, wherever it is packed: the mode counts
            member.external_attr = (stat.S_IFREG | (0o755 if entry.executable else 0o644)) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, entry.content, compresslevel=9)
    part.replace(place)
    return place


def _wheel_file(tag: str) -> str:
    return f"Wheel-Version: 1.0\nGenerator: meshd\nRoot-Is-Purelib: false\nTag: {tag}\n"


def _record(packed: Iterable[tuple[str, Entry]], record: str) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for path, entry in packed:
        digest = base64.urlsafe_b64encode(hashlib.sha256(entry.content).digest()).rstrip(b"=").decode()
        lines.writerow((path, f"sha256={digest}", len(entry.content)))
    lines.writerow((record, "", ""))
    return text.getvalue()
