"""Routes of a signal at the moment when a node stops: what sends beside it gets an error that it handles."""

import asyncio

import pytest
from meshd.base.errors import Broken
from meshd.identity.keys import PeerId
from meshd.peer.signals import SignalRoutes

from tests.conformance.run import ticks

PEER = PeerId(bytes(range(32)))


class Letterbox:
    """A relay's mailbox that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_mail(self, _to: PeerId, blob: bytes) -> None:
        self.sent.append(blob)

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        raise AssertionError("nobody reads it here")


async def test_a_signal_is_refused_while_the_node_stops() -> None:
    mail = Letterbox()
    routes = SignalRoutes(mail, lambda: 0.5)
    ending, told = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await told.wait()

    serving = asyncio.get_running_loop().create_task(routes.serve([slow_to_end]))
    await ticks(3)
    await routes.hand(PEER, b"before")
    serving.cancel()
    await ending.wait()
    with pytest.raises(Broken, match="cannot send a signal"):
        await routes.hand(PEER, b"while it stops")
    routes.start(slow_to_end, PEER)  # what nobody waits for is dropped
    told.set()
    await asyncio.wait([serving])
    assert serving.cancelled()
    assert mail.sent == [b"before"]
