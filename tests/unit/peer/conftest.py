"""Keys of simulated nodes: the same in every run, as they decide who leads."""

import itertools

import pytest

from tests.conformance import nodes


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "key_seeds", itertools.count(1))
