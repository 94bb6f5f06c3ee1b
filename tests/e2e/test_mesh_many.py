"""Many daemons in one mesh: all see each other, and none has a session with all."""

from pathlib import Path

import pytest

from tests.e2e.crowd import all_seen, gather, sessions
from tests.e2e.nodes import Fleet, play
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(1800)]

MANY = counts(14, 50)
STANDING = 8  # sessions that a node keeps in a large mesh
SLACK = 4  # that are just ending, or are tried because somebody was away


def test_each_sees_all_and_is_connected_with_a_few(tmp_path: Path) -> None:
    async def work() -> None:
        async with Fleet(tmp_path) as fleet:
            nodes = await gather(fleet, MANY)
            await all_seen(nodes)
            few = [await node.until(lambda status: sessions(status) <= STANDING + SLACK) for node in nodes]
            assert all(sessions(status) >= 1 for status in few)

    play(work(), seconds=1700)
