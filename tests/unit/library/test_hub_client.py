"""Test what the library is told before it is used, and where its cache is by its own account."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import errors
from meshd.base.errors import UserError
from meshd.library import hub_client
from meshd.library.hub_cache import cache_folder


def _ask(code: str, **variables: str) -> str:
    """Return what a fresh interpreter prints: the library reads its variables when it is imported."""
    plain = {"PATH": os.environ["PATH"], "HOME": "/home/somebody", **variables}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/data/hf"},
        {"HF_HUB_CACHE": "/data/hub", "HF_HOME": "/data/hf"},
        {"HUGGINGFACE_HUB_CACHE": "/data/old"},
        {"XDG_CACHE_HOME": "/var/xdg"},
        {"HF_HOME": "~/hf"},
        {"HF_HUB_CACHE": "$ROOT/hub", "ROOT": "/r"},
    ],
)
def test_the_cache_is_where_the_library_has_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = _ask("from huggingface_hub import constants; print(constants.HF_HUB_CACHE)", **variables)
    monkeypatch.setenv("HOME", "/home/somebody")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder(variables) == Path(theirs)


def test_a_mirror_is_the_librarys() -> None:
    code = "from meshd.library import hub_client; print(hub_client.constants.ENDPOINT)"
    assert _ask(code, HF_ENDPOINT="https://mirror.example") == "https://mirror.example"


def test_telemetry_is_off_whatever_is_set() -> None:
    code = "from meshd.library import hub_client; print(hub_client.constants.HF_HUB_DISABLE_TELEMETRY)"
    assert _ask(code, HF_HUB_DISABLE_TELEMETRY="0") == "True"


def test_the_library_is_not_imported_to_look_around() -> None:
    code = (
        "import sys; from pathlib import Path; from meshd.library.resolve import Resolver; "
        "from meshd.library.stores import Stores; Stores.here(Path('/nowhere')).listed(); "
        "print([name for name in ('huggingface_hub', 'httpx2') if name in sys.modules])"
    )
    assert _ask(code) == "[]"


def answered(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.example"))


def unresolved() -> Exception:
    error = httpx2.ConnectError("no")
    error.__cause__ = socket.gaierror("not known")
    return error


@pytest.mark.parametrize(
    ("error", "words", "hint"),
    [
        (errors.GatedRepoError("x", response=answered(403)), "is gated", "accept them"),
        (errors.RepositoryNotFoundError("x", response=answered(404)), "there is no repository", "private"),
        (errors.OfflineModeIsEnabled("x"), "HF_HUB_OFFLINE is set", "unset"),
        (errors.HfHubHTTPError("x", response=answered(401)), "not allowed", "HF_TOKEN"),
        (errors.HfHubHTTPError("x", response=answered(403)), "not allowed", "HF_TOKEN"),
        (errors.HfHubHTTPError("x", response=answered(402)), "HTTP 402", "later"),
        (errors.HfHubHTTPError("x", response=answered(500)), "HTTP 500", "later"),
        (httpx2.ReadTimeout("it took too long\nand more"), "it took too long$", "check the network"),
        (httpx2.ReadTimeout(""), "ReadTimeout", "check the network"),
        (unresolved(), "is this machine online", "check the network"),
        (OSError("cut"), "ended early", "run it again"),
        (KeyError("sha"), "its answer has no 'sha'", "HF_ENDPOINT"),
        (ValueError("x" * 300), "x{200}$", "HF_ENDPOINT"),
    ],
)
def test_an_error_of_the_library_is_explained(error: Exception, words: str, hint: str) -> None:
    with pytest.raises(UserError, match=words) as caught, hub_client.explained("me/T"):
        raise error
    assert hint in caught.value.hint


def test_an_error_of_the_disk_is_not_one_of_the_network() -> None:
    full = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full") as caught, hub_client.explained("me/T"):
        raise full
    assert caught.value is full
    with hub_client.explained("me/T"):
        pass
