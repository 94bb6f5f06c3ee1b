"""Every test of a verb has a home of its own, and no variable of the person who runs it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.admin.fake import FakeControl
from tests.unit.admin.fake_server import running


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; nothing exists in it."""
    for name in os.environ:
        if name.startswith("MESHD_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("MESHD_HOME", str(folder))
    monkeypatch.setenv("MESHD_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def daemon(home: Path) -> Iterator[FakeControl]:
    """A daemon of this home that answers."""
    control = FakeControl()
    with running(home, control):
        yield control
