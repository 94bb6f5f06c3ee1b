"""Test what the library is told before it is used, and where its cache is by its own account."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
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
