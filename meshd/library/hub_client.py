"""Access Hugging Face's hub through its own library; only this module imports it.

The import takes half a second, so this module is imported only for downloads. Token (HF_TOKEN, or its own
login), mirror (HF_ENDPOINT), proxy and offline mode are the library's. Its telemetry is off: otherwise its
user agent describes this machine, and it first asks the hub for a list of programs.
"""

import functools
import io
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from huggingface_hub import HfApi, close_session, constants, errors, hf_hub_download, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import logging as library_logging
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils.tqdm import tqdm

from meshd import __version__
from meshd.base.errors import UserError
from meshd.library.interface import ReportProgress, TransferProgress

constants.HF_HUB_DISABLE_TELEMETRY = True
constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # the steps of progress, and what a cut loses; the default is 10 MiB
library_logging.set_verbosity(logging.CRITICAL)  # its warnings repeat signed URLs
library_logging.get_logger().handlers.clear()  # the default handler writes to stderr at once
# Strict, as both become parts of paths.
_COMMIT, _BLOB = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
MAX_FILES = 20_000  # per repository; the largest of quantised models have a few hundred
MOST_PLAIN_BYTES = constants.MAX_HTTP_DOWNLOAD_SIZE  # larger files come in pieces, only by Xet
_TOKEN_HINT = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `blob`, its name in the cache, is the SHA-256 of its bytes, or git's hash."""

    path: str
    size: int
    blob: str


@dataclass(frozen=True, slots=True)
class HubListing:
    """A repository at one commit."""

    commit: str
    files: tuple[HubFile, ...]


class _Users:
    """The blocks that use the library's client now. It has one per process, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def enter(self) -> None:
        """Count one more."""
        with self._lock:
            self._count += 1

    def leave(self) -> None:
        """Count one less; the last one closes the client."""
        with self._lock:  # else the next one could get the client that is being closed
            self._count -= 1
            if not self._count:
                close_session()


_users = _Users()


@contextmanager
def closed_afterwards() -> Iterator[None]:
    """Close the library's pooled connections once the last such block is left: a daemon runs for months."""
    _users.enter()
    try:
        yield
    finally:
        _users.leave()


def list_repository(repository: str, report: ReportProgress) -> HubListing:
    """List the files on the branch `main` of `ORG/REPO`, except paths that lead elsewhere.

    Raises UserError.
    """
    # Ask the hub.
    asking = f"asking {constants.ENDPOINT} for the files of `{repository}`"
    report(TransferProgress(asking, is_asking=True))
    with explained(repository):
        api = HfApi(library_name="meshd", library_version=__version__)
        about = api.model_info(repository, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
        siblings = about.siblings or []
        if not isinstance(about.sha, str) or not _COMMIT.fullmatch(about.sha) or len(siblings) > MAX_FILES:
            raise ValueError(f"commit {str(about.sha)[:64]!r}, {len(siblings)} files")
        # Keep valid entries.
        files = []
        for sibling in siblings:
            blob = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
            if (
                is_inside(str(sibling.rfilename))
                and isinstance(sibling.size, int)
                and sibling.size >= 0
                and isinstance(blob, str)
                and _BLOB.fullmatch(blob)
            ):
                files.append(HubFile(str(sibling.rfilename), sibling.size, blob))
        return HubListing(about.sha, tuple(files))


def is_inside(path: str) -> bool:
    """Say whether a path stays in its folder: a mirror may send any name."""
    parts = path.split("/")
    return all(part not in ("", ".", "..") for part in parts) and path.isprintable() and "\\" not in path


def fetch(repository: str, commit: str, file: HubFile, into: BinaryIO, *, at: int) -> None:
    """Append the file's bytes from `at` on; bytes lost with a connection are requested again, five times.

    Raises UserError, and OSError as `into` raises it.
    """
    url = hf_hub_url(repository, file.path, revision=commit)
    headers = build_hf_headers(library_name="meshd", library_version=__version__)
    headers["Accept-Encoding"] = "identity"  # else a position in the file means nothing
    with explained(repository):
        http_get(
            url, into, resume_size=at, headers=headers, expected_size=file.size, tqdm_class=_silent_class()
        )


class _Enough(Exception):
    """Raised when all requested bytes are there; a server without ranges would send the rest."""


class _FirstBytes(io.BytesIO):
    """A buffer that takes a limited number of bytes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        given = memoryview(data)
        room = self._count - self.tell()
        super().write(given[:room])
        if len(given) > room:
            raise _Enough
        return len(given)


def fetch_beginning(repository: str, commit: str, file: HubFile, count: int) -> bytes:
    """Return the first `count` bytes of the file. Raises UserError."""
    url = hf_hub_url(repository, file.path, revision=commit)
    headers = build_hf_headers(library_name="meshd", library_version=__version__)
    headers |= {"Accept-Encoding": "identity", "Range": f"bytes=0-{count - 1}"}
    into = _FirstBytes(count)
    with explained(repository), suppress(_Enough):
        http_get(url, into, headers=headers, expected_size=count, tqdm_class=_silent_class())
    return into.getvalue()


def fetch_by_xet(repository: str, commit: str, file: HubFile, cache: Path) -> Path:
    """Download a file too large for plain HTTP through the library, with the library's progress bar."""
    with explained(repository):
        found = hf_hub_download(repository, file.path, revision=commit, cache_dir=cache)
        return Path(str(found))


@functools.cache
def _silent_class() -> type[tqdm]:
    class SilentBar(tqdm):  # type: ignore[misc,unused-ignore]
        """A progress bar that counts and shows nothing: the written file reports progress."""

        def __init__(self, *args: object, **words: object) -> None:
            words["disable"] = True
            make: Callable[..., None] = super().__init__
            make(*args, **words)

    return SilentBar


@contextmanager
def explained(repository: str) -> Iterator[None]:
    """Turn the library's errors into a UserError that says what to do."""
    where = f"`{repository}` from {constants.ENDPOINT}"
    # Access.
    try:
        yield
    except errors.GatedRepoError:
        raise UserError(
            f"`{repository}` is gated: its authors want you to accept their terms",
            hint=f"accept them at {constants.ENDPOINT}/{repository}, then {_TOKEN_HINT}",
        ) from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"there is no repository `{repository}` at {constants.ENDPOINT}, or it is private",
            hint=f"check the name; if it is private, {_TOKEN_HINT}",
        ) from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError):
        raise UserError(
            f"cannot download {where}: HF_HUB_OFFLINE is set, and the cache lacks it",
            hint="unset HF_HUB_OFFLINE, or name a model that `meshd model ls` lists",
        ) from None
    # The network.
    except errors.HfHubHTTPError as error:
        raise _refused(where, error.response.status_code) from None
    except httpx2.HTTPError as error:
        raise UserError(
            f"cannot download {where}: {_reason(error)}",
            hint="check the network and HF_ENDPOINT, and run it again: a download continues where it stopped",
        ) from None
    except OSError as error:
        if error.errno is not None:  # of the written file, not of the network
            raise
        raise UserError(
            f"cannot download {where}: the connection ended early",
            hint="run it again: a download continues where it stopped",
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # the JSON is not the hub's
        raise UserError(
            f"{constants.ENDPOINT} does not answer as Hugging Face does: {_reason(error)}",
            hint="check HF_ENDPOINT; a proxy or a login page may answer in its place",
        ) from None


def _refused(where: str, status: int) -> UserError:
    if status in (401, 403):
        return UserError(f"not allowed to download {where} (HTTP {status})", hint=_TOKEN_HINT)
    return UserError(
        f"cannot download {where}: the server answered with HTTP {status}",
        hint="run it again later: a download continues where it stopped",
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"its answer has no {error}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "its name cannot be resolved: is this machine online?"
        cause = cause.__cause__ or cause.__context__
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
