"""Every test has a home of its own without any model, and no hub but one on loopback."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.library.stores import Stores

from tests.hub_server import Hub, taken_for_hub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `~` leads; no variable of the person who runs the tests counts."""
    for name in os.environ:
        if name.startswith(("MESHD_", "HF_", "HUGGINGFACE_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def stores(home: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """Return the stores of that home; Ollama's service has none there."""
    monkeypatch.setenv("OLLAMA_MODELS", str(home / ".ollama/models"))
    return Stores.here(home / "cache")


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, which the library takes for Hugging Face's."""
    with taken_for_hub(Hub(), home / "token", monkeypatch) as server:
        yield server
