"""Fixtures of the bench; without root, iproute2 or nftables its tests are left out, with the reason."""

from collections.abc import Iterator

import pytest

from tests.netns.space import skip_reason
from tests.netns.world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder (the hook sees those of the whole run)."""
    here = [item for item in items if "tests/netns/" in item.nodeid]
    if not here:
        return
    reason = skip_reason()
    for item in here:
        item.add_marker(pytest.mark.root)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def world() -> Iterator[World]:
    """An empty one: a core."""
    with World() as made:
        yield made
