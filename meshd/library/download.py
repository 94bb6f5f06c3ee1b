"""Download a model into Hugging Face's cache: resumable, checked by its hash, and put in place only if right.

A file grows as `blobs/HASH.incomplete` and stays there when the download is cut or interrupted, so that the
next one continues. The hub library's own download begins again each time, which hurts with 20 GB on a home
connection. This one takes the same lock and leaves the same layout, so both can work on one cache. A plan
needs only the headers of a model's files, which are fetched by ranges.
"""

import errno
import fcntl
import functools
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from meshd.base.errors import LocalProtocolError, UserError
from meshd.base.units import in_bytes
from meshd.library.disk import RESERVED_BYTES as RESERVED_BYTES
from meshd.library.disk import cannot_write, check_space, no_space, size_of
from meshd.library.facts import Meter, hash_of, read_beginning
from meshd.library.hub_cache import PART_SUFFIX, PREFIX, folder_of
from meshd.library.hub_client import (
    MOST_PLAIN_BYTES,
    HubFile,
    HubListing,
    closed_afterwards,
    fetch,
    fetch_beginning,
    fetch_by_xet,
    is_inside,
    list_repository,
)
from meshd.library.interface import NotTheSame, ReportProgress, TransferProgress
from meshd.model.gguf import MAX_HEADER_BYTES
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX, SHARD, GgufFile, GgufModel, choose, models_in
from meshd.model.model_name import HubName
from meshd.model.short_names import short_model_of

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK)  # files are copied there
_FETCHES = 2  # a file that arrives with a wrong hash is fetched once more
_LOOK_SECONDS = 0.2  # how often a waiting download checks whether the other one is done
_SPACE_CHECK_BYTES = 16 << 20
_SPACE_HINT = (
    "free some (`meshd model ls`, `meshd model rm NAME`), or set HF_HUB_CACHE to a directory on "
    "another disk; a download continues where it stopped"
)
_FIRST_BYTES = 8 << 20  # vocabularies of 150,000 tokens with their merges take about 6 MB


@closed_afterwards()
def check_download(name: HubName, cache: Path, report: ReportProgress) -> None:
    """Raise UserError unless the hub has the model of this name, and it fits on the disk."""
    listing = list_repository(name.repository, report)
    _, wanted = _files_of(name, listing, report)
    with _explained(cache):
        Repository(name, cache).check_space(wanted)


def _files_of(name: HubName, listing: HubListing, report: ReportProgress) -> tuple[GgufModel, list[HubFile]]:
    """Return the model of this name, and its files; report a size that is not the listed one.

    Raises UserError.
    """
    model = chosen_model(name, listing)
    short = short_model_of(name)
    if short is not None and short.differs_from(model.size):
        listed = f"not about {in_bytes(short.bytes)}, as `meshd model ls --fits` says"
        report(TransferProgress(f"{name} is {in_bytes(model.size)}, {listed}", is_asking=True))
    by_path = {file.path: file for file in listing.files}
    return model, [by_path[file.path] for file in model.files]


@closed_afterwards()
def download(name: HubName, cache: Path, report: ReportProgress) -> tuple[GgufModel, list[Path]]:
    """Return the model of this name, and its files in the cache. Raises UserError."""
    listing = list_repository(name.repository, report)
    model, wanted = _files_of(name, listing, report)
    store = Repository(name, cache)
    with _explained(cache):
        store.check_space(wanted)
        paths = [store.get(file, listing.commit, report) for file in wanted]
        store.set_main(listing.commit)
    return model, paths


@closed_afterwards()
def adopt_files(name: HubName, paths: Sequence[Path], cache: Path, report: ReportProgress) -> list[Path]:
    """Link files from elsewhere into the cache if they equal the repository's files.

    Raises NotTheSame if they differ, UserError if the hub cannot be reached.
    """
    listing = list_repository(name.repository, report)
    stem = SHARD.sub(r"\g<stem>.gguf", paths[0].name)
    models = choose(list(models_in(GgufFile(file.path, file.size) for file in listing.files)), stem)
    by_path = {file.path: file for file in listing.files}
    wanted = [by_path[file.path] for model in models[:1] for file in model.files]
    store = Repository(name, cache)
    with _explained(cache):
        if not store.are_the_same(wanted, paths, report):
            raise NotTheSame(
                f"what members have as `{name}` is not the file that Hugging Face has under that name",
                hint="`meshd model ls` shows whose file it is",
            )
        adopted = [store.adopt(file, path, listing.commit) for file, path in zip(wanted, paths, strict=True)]
        store.set_main(listing.commit)
    return adopted


def chosen_model(name: HubName, listing: HubListing) -> GgufModel:
    """Return the one complete model that the name means. Raises UserError."""
    models = models_in(GgufFile(file.path, file.size) for file in listing.files)
    if not models:
        raise UserError(
            f"`{name.repository}` has no GGUF file",
            hint="look for a repository of the same model whose name ends in `-GGUF`",
        )
    fitting = choose(models, name.choice)
    if not fitting:
        raise UserError(
            f"`{name.repository}` has no `{name.choice}`, but {_listed(models)}",
            hint=f"choose one: `hf:{name.repository}:{models[0].quant or models[0].files[0].path}`",
        )
    if len(fitting) > 1:
        raise UserError(
            f"`{name}` fits several models: {', '.join(f'`{model.files[0].path}`' for model in fitting[:8])}",
            hint=f"name the file: `hf:{name.repository}:{fitting[0].files[0].path}`",
        )
    if not fitting[0].complete:
        raise UserError(
            f"`{name.repository}` lacks parts of `{fitting[0].name}`: {', '.join(fitting[0].missing[:3])}",
            hint="choose another repository, or ask its authors",
        )
    return fitting[0]


def _listed(models: Sequence[GgufModel]) -> str:
    names = [f"`{model.quant or model.name}` ({in_bytes(model.size)})" for model in models]
    return ", ".join(names[:24]) + (f" and {len(names) - 24} more" if len(names) > 24 else "")


class Repository:
    """A repository's folder in the cache."""

    def __init__(self, name: HubName, cache: Path) -> None:
        self._name = name
        self._cache = cache
        self._folder = folder_of(cache, name)
        self._locks = cache / ".locks" / f"{PREFIX}{name.org}--{name.repo}"

    def check_space(self, files: Sequence[HubFile]) -> None:
        """Raise UserError unless the missing bytes of these files fit on the disk."""
        lacking = sum(max(0, file.size - self._present(file)) for file in files)
        check_space(self._cache, lacking, hint=_SPACE_HINT)

    def get(self, file: HubFile, commit: str, report: ReportProgress) -> Path:
        """Return the file's path in the snapshot of this commit; download the file if necessary."""
        blob = self._blob(file)
        if not blob.exists() and file.size > MOST_PLAIN_BYTES:
            report(TransferProgress(f"downloading {_short(file)} ({in_bytes(file.size)})"))
            path = fetch_by_xet(self._name.repository, commit, file, self._cache)
            self._check(blob, file, report)
            return path
        blob.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self._locks / f"{file.blob}.lock", f"{_short(file)}", report):
            if not blob.exists():
                self._fetch(file, commit, report)
        return self._link(file, commit)

    def are_the_same(self, files: Sequence[HubFile], paths: Sequence[Path], report: ReportProgress) -> bool:
        """Say whether these files have the bytes of the repository's files."""
        return len(files) == len(paths) and all(
            self._is_right(path, file, report) for file, path in zip(files, paths, strict=True)
        )

    def adopt(self, file: HubFile, path: Path, commit: str) -> Path:
        """Link a file with the right hash to its place, and return its path in this commit's snapshot."""
        blob = self._blob(file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        if not blob.exists():
            try:
                blob.hardlink_to(path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self.check_space([file])
                shutil.copyfile(path, _part_of(blob))
                _part_of(blob).replace(blob)
        return self._link(file, commit)

    def set_main(self, commit: str) -> None:
        """Note the commit of the branch `main`, as the hub library does."""
        place = self._folder / "refs" / "main"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(commit, "ascii")

    def _present(self, file: HubFile) -> int:
        blob = self._blob(file)
        return size_of(blob) or size_of(_part_of(blob))

    def _blob(self, file: HubFile) -> Path:
        return self._folder / "blobs" / file.blob

    def _fetch(self, file: HubFile, commit: str, report: ReportProgress) -> None:
        part = _part_of(self._blob(file))
        for attempt in range(_FETCHES):
            # Continue what is there.
            at = size_of(part)
            if at > file.size:
                part.unlink()
                at = 0
            what = f"downloading {_short(file)}" + (" again" if attempt else "")
            with _Growing(part, file.size, Meter(report, what, file.size, begin_at=at)) as into:
                into.seek(at)
                fetch(self._name.repository, commit, file, into, at=at)
            # Keep the file only if its hash is right.
            if self._is_right(part, file, report):
                part.replace(self._blob(file))
                return
            part.unlink()
        raise UserError(
            f"`{file.path}` of `{self._name.repository}` arrived damaged, twice: its hash is not {file.blob}",
            hint="run it again later, or check the proxy or mirror (HF_ENDPOINT) that delivers it",
        )

    def _check(self, blob: Path, file: HubFile, report: ReportProgress) -> None:
        if blob.exists() and not self._is_right(blob, file, report):
            blob.unlink()
            raise UserError(
                f"`{file.path}` of `{self._name.repository}` arrived damaged: its hash is not {file.blob}",
                hint="run it again",
            )

    @staticmethod
    def _is_right(path: Path, file: HubFile, report: ReportProgress) -> bool:
        if path.stat().st_size != file.size:
            return False
        meter = Meter(report, f"checking {_short(file)}", file.size)
        return hash_of(path, file.blob, meter.add) == file.blob

    def _link(self, file: HubFile, commit: str) -> Path:
        if not is_inside(file.path):
            raise LocalProtocolError(f"a link would lie outside the cache: `{file.path}`")
        pointer = self._folder / "snapshots" / commit / file.path
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if not pointer.exists():
            pointer.unlink(missing_ok=True)  # a dangling link, for example into a cache that was moved
            pointer.symlink_to(os.path.relpath(self._blob(file), pointer.parent))
        return pointer


class _Growing(io.BufferedWriter):
    """A growing file; refuses more bytes than announced, and to fill the disk."""

    def __init__(self, path: Path, size: int, meter: Meter) -> None:
        self._raw_file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
        super().__init__(self._raw_file)
        self._path = path
        self._size = size
        self._meter = meter
        self._unchecked = _SPACE_CHECK_BYTES  # so the first bytes are checked

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        """Write data as any file does. Raises UserError if it would not fit."""
        count = len(data)
        if self.tell() + count > self._size:
            raise UserError(
                f"the server sends more than the {self._size} bytes that it announced for a file",
                hint="check HF_ENDPOINT, or run it again later",
            )
        self._unchecked += count
        if self._unchecked >= _SPACE_CHECK_BYTES:
            self._unchecked = 0
            free = shutil.disk_usage(self._path.parent).free
            if free < RESERVED_BYTES + count:
                raise no_space(self._path.parent, f"only {in_bytes(free)} are free", hint=_SPACE_HINT)
        written = super().write(data)
        self._meter.add(written)
        return written

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file, when the server sends it from the beginning instead."""
        at = super().truncate(size)
        self._meter.add(at - self._meter.done)
        return at

    def close(self) -> None:
        """Close the file. A failed write was reported before, or shows in the size."""
        with suppress(OSError):
            self.flush()
        with suppress(OSError):
            super().close()
        self._raw_file.close()


def _part_of(blob: Path) -> Path:
    return blob.with_name(blob.name + PART_SUFFIX)


def _short(file: HubFile) -> str:
    return file.path.rpartition("/")[2]


@contextmanager
def _locked(place: Path, what: str, report: ReportProgress) -> Iterator[None]:
    """Hold the lock of this file, which the hub library's downloads take as well."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # reported on every turn, as a report is where a stop takes effect
                report(TransferProgress(f"another program is downloading {what}; waiting for it"))
                time.sleep(_LOOK_SECONDS)
        yield


@contextmanager
def _explained(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(cache, error, space_hint=_SPACE_HINT, variable="HF_HUB_CACHE") from None


@closed_afterwards()
def fetch_headers(name: HubName, folder: Path, report: ReportProgress) -> list[Path]:
    """Return files in `folder` that have the headers and the full lengths, with holes for the rest.

    Their names end in HEADER_SUFFIX, so that nobody treats them as models. Raises UserError.
    """
    listing = list_repository(name.repository, report)
    _, files = _files_of(name, listing, report)
    paths = []
    for number, file in enumerate(files, start=1):
        of = f" ({number} of {len(files)})" if len(files) > 1 else ""
        report(TransferProgress(f"reading the header of {name}{of}"))
        fetch = functools.partial(fetch_beginning, name.repository, listing.commit, file)
        beginning = _header_of(file, fetch)
        paths.append(_keep(folder, file, beginning))
    return paths


def _header_of(file: HubFile, fetch: Callable[[int], bytes]) -> bytes:
    """Return the file up to the end of its header. Its length is unknown, so more may be fetched."""
    count, most = _FIRST_BYTES, min(file.size, MAX_HEADER_BYTES)
    while True:
        data = fetch(min(count, file.size))
        header = read_beginning(
            functools.partial(_slice_of, data),
            end=len(data),
            size=file.size,
            label=file.path,
            may_grow=count < most,
        )
        if header is not None:
            return data[: header.data_offset]
        count *= 4


def _slice_of(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


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
