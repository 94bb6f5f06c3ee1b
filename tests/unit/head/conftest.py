"""Puts the workers of a head's scenes on machines of their own, though all of them are in one process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from meshd.base import local_way


@pytest.fixture(autouse=True)
def no_local_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer no connection past the daemons, which needs one machine: its tests are in worker."""

    @contextmanager
    def none(*, wanted: bool) -> Iterator[None]:
        yield None

    monkeypatch.setattr(local_way, "offered", none)
