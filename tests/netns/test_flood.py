"""Strangers open 1000 TCP connections a second: joins and links from 100 ms away succeed all the same."""

import pytest

from tests.netns.flood import SOURCES, TRIES, under_flood
from tests.netns.space import skip_reason

RATE = 1000.0

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "-")]


@pytest.mark.parametrize(("words", "networks"), [("silent", 1), ("hello", SOURCES)])
def test_joins_and_links_succeed_under_a_flood_of_strangers(words: str, networks: int) -> None:
    reached = under_flood(1.1 * RATE, words, networks)
    assert min(reached.joins, reached.links) >= TRIES - 1, reached
    if reached.flood < RATE:
        pytest.skip(f"this machine made {reached.flood:.0f} connections a second, not {RATE:.0f}")
