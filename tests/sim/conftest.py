"""Worlds of simulated nodes: the same in every run, other ones where there is time to look longer."""

import itertools
import secrets

import pytest

from tests.conformance import nodes
from tests.soak import SOAK


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys decide who leads, and who is next to whom in a large mesh."""
    first = secrets.randbits(200) if SOAK else 1
    monkeypatch.setattr(nodes, "key_seeds", itertools.count(first))
