"""Takes of a model on Hugging Face only the headers of its files, by ranges: a plan needs no more."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.download import chosen_model
from meshd.library.hub_client import HubFile, fetch_beginning, list_repository
from meshd.library.interface import ReportProgress, TransferProgress
from meshd.model.cursor import MAX_HEADER_BYTES
from meshd.model.gguf import read_header
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.model_name import HubName

_FIRST_BYTES = 8 << 20  # vocabularies of 150,000 tokens with their merges take about 6 MB


def fetch_headers(name: HubName, folder: Path, report: ReportProgress) -> list[Path]:
    """Files in `folder` with their headers, as long as the whole ones, but with holes for the rest.

    They end in HEADER_SUFFIX, so that nobody takes them for a model. Raises UserError.
    """
    listing = list_repository(name.repository)
    model = chosen_model(name, listing)
    by_path = {file.path: file for file in listing.files}
    paths = []
    for number, part in enumerate(model.files, start=1):
        of = f" ({number} of {len(model.files)})" if len(model.files) > 1 else ""
        report(TransferProgress(f"reading the header of {name}{of}"))
        file = by_path[part.path]
        fetch = functools.partial(fetch_beginning, name.repository, listing.commit, file)
        beginning = _header_of(file, fetch)
        paths.append(_keep(folder, file, beginning))
    return paths


def _header_of(file: HubFile, fetch: Callable[[int], bytes]) -> bytes:
    """A file up to the end of its header. How long that is nobody says, so more may be asked for."""
    count = _FIRST_BYTES
    while True:
        count = min(count, file.size)
        data = fetch(count)
        beginning = _BytesSoFar(data)
        try:
            header = read_header(beginning.pread, size=file.size, label=file.path)
        except UserError:
            if not beginning.was_short or count >= min(file.size, MAX_HEADER_BYTES):
                raise
            count *= 4
            continue
        return data[: header.data_offset]


class _BytesSoFar:
    """Of a file; `was_short`: more was read than is there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.was_short = False

    def pread(self, offset: int, length: int) -> bytes:
        self.was_short = self.was_short or offset + length > len(self._data)
        return self._data[offset : offset + length]


def _keep(folder: Path, file: HubFile, beginning: bytes) -> Path:
    path = folder / (file.path.rpartition("/")[2].removesuffix(GGUF_SUFFIX) + HEADER_SUFFIX)
    try:
        path.write_bytes(beginning)
        os.truncate(path, file.size)
    except OSError as error:
        raise UserError(
            f"cannot write `{path}`: {(error.strerror or str(error)).lower()}",
            hint="fix the cause, or set MESHD_CACHE to a directory that you can write to",
        ) from None
    return path
