"""Who takes a connection owns it, and leaves none open."""

import asyncio
import socket

import pytest
from meshd.base.accepted_socket import adopt
from meshd.base.errors import Broken


@pytest.mark.parametrize(
    ("raised", "seen"), [(OSError("gone"), Broken), (asyncio.CancelledError(), asyncio.CancelledError)]
)
def test_a_connection_that_cannot_be_taken_is_closed(
    raised: BaseException, seen: type[BaseException]
) -> None:
    def make() -> asyncio.Protocol:
        raise raised

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, pytest.raises(seen):
        asyncio.run(adopt(ours, make))
    assert ours.fileno() == -1
