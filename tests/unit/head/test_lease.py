"""The head's side of a lease, with a worker that a test plays."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.peer_limits import LEASE_MESSAGES
from meshd.base.tasks import Owner
from meshd.head.lease import Lease
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.lease import LEASE_SERVICE, Grant, Lost, OfferedDevice, Progress, WorkerOffer

from tests.unit.head.calls import ACQUIRE
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import Bench

pytestmark = pytest.mark.virtual

LEASE = bytes(16)
FLOOD = 2 * int(LEASE_MESSAGES.burst)
OFFER = WorkerOffer(
    (OfferedDevice("CPU", "cpu", "", 1 << 30, 1 << 30),),
    has_model=False,
    machine="m",
    lease_id=LEASE,
    protocol=ACQUIRE.protocol,
)


@pytest.mark.parametrize("granted", [False, True], ids=["before the grant", "after it"])
async def test_a_worker_that_floods_its_lease_is_read_at_the_rate_of_its_messages(
    tmp_path: Path, granted: bool
) -> None:
    async def worker(stream: Stream) -> None:
        messages = MessageStream(stream)
        flood = [Progress("busy").encode()] * FLOOD
        grant = Grant(LEASE).encode()
        for word in (OFFER.encode(), *((grant, *flood) if granted else (*flood, grant))):
            await messages.send(word)
        await messages.send(Lost("failed", "enough").encode())

    async with Owner() as owner:
        net = Net(owner)
        head, flooding = net.mesh("head", "serve"), net.mesh("flooding")
        flooding.handle(LEASE_SERVICE, worker, allow=lambda _member, _metadata: None)
        bench = Bench(head, tmp_path)
        client = Lease(
            head,
            bench.runtime.tunnels,
            peer=flooding.key.peer,
            name="flooding",
            on_progress=lambda _text: None,
            mesh_end=bench.mesh_end(),
        )
        began = asyncio.get_running_loop().time()
        await client.ask(ACQUIRE)
        await client.until_granted()
        assert (await client.until_lost()).text == "enough"
        took = asyncio.get_running_loop().time() - began
        assert took > 0.9 * LEASE_MESSAGES.burst / LEASE_MESSAGES.per_second
        client.release()
        owner.cancel()
