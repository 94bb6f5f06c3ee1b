"""A network of multicast DNS that is left again, at any moment of joining it."""

import asyncio
import sys

import pytest
from meshd.base.tasks import cancel_and_wait
from meshd.rendezvous.mdns import Network
from meshd.rendezvous.mdns_records import Neighbours, Place

from tests.conformance.run import run, ticks
from tests.unit.identity.cast import MESH, WORKER

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the loopback interface is not `lo`"
)


def test_cancelled_anywhere_it_leaves_no_socket() -> None:
    async def work() -> None:
        turns, was_up = 0, False
        while not was_up:
            neighbours = Neighbours(mesh=MESH, me=WORKER.peer)
            network = Network(
                Place("lo", ("127.0.0.1",), 7),
                neighbours=neighbours,
                news=asyncio.Event(),
                sign=None,
                random=bytes,
            )
            serving = asyncio.create_task(network.serve())
            await ticks(turns)
            was_up = network.is_up
            await cancel_and_wait(serving)
            assert not network.failure
            turns += 1
        assert turns > 3, "it was never cancelled on its way"

    run(work())
