"""A hostile worker against the head's side of a lease: whatever it says, the head goes on or gives up."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.head.lease import Lease
from meshd.identity.keys import PeerId
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.lease import LEASE_SERVICE, Acquire, Grant, WorkerOffer

from tests.hostile.draw import Draw, Pool, drawn_seed
from tests.hostile.words import Speech
from tests.sim.loop import run
from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import Bench

LEASES = 1500
ACQUIRE = Acquire(bytes(16), "tiny", "f" * 64, "pin", protocol="mesh 4")
ORDER = ("lease.WorkerOffer", "lease.Grant", "lease.Reached", "lease.Lost")
MOST_WORDS = 8


def _words(rng: random.Random, speech: Speech) -> Iterator[bytes]:
    """Return the words of one lease: often truly offered and granted, for what comes behind that."""
    offer, grant = speech.good("lease.WorkerOffer"), speech.good("lease.Grant")
    assert isinstance(offer, WorkerOffer) and isinstance(grant, Grant)
    if rng.random() < 0.9:
        offer = replace(offer, protocol=ACQUIRE.protocol)
    grant = replace(grant, lease_id=offer.lease_id)
    speech.broken = rng.choice((0.0, 0.1, 0.6))
    for at in range(rng.randrange(MOST_WORDS)):
        if at < 2 and rng.random() < 0.7:
            yield (offer if at == 0 else grant).encode()
        else:
            yield speech.say(ORDER[at] if at < len(ORDER) and rng.random() < 0.7 else speech.of("lease"))


def test_a_head_bears_any_worker(tmp_path: Path) -> None:
    rng = random.Random(drawn_seed())
    speech = Speech(rng, Draw(rng, Pool(blobs=(bytes(16), bytes(32)))))
    ends: Counter[str] = Counter()

    async def worker(stream: Stream) -> None:
        """Its lines in their order or in none, and then silence or the end."""
        messages = MessageStream(stream)
        for word in _words(rng, speech):
            await asyncio.sleep(rng.choice((0.0, 0.0, 1.0)))
            await messages.send(word)
        if rng.random() < 0.8:
            stream.write_eof()
        else:
            stream.reset(rng.randrange(1 << 32), "enough")

    async def lease(bench: Bench, peer: PeerId) -> None:
        client = Lease(
            bench.mesh,
            bench.runtime.tunnels,
            peer=peer,
            name="w",
            on_progress=lambda _text: None,
            mesh_end=bench.mesh_end(),
        )
        stage = "asked"
        try:
            offer = await client.ask(ACQUIRE)
            stage = "offered"
            assert len({device.name for device in offer.devices}) == len(offer.devices)
            await client.reserve(tuple(device.free_bytes for device in offer.devices))
            stage = "reserved"
            await client.until_granted()
            stage = "granted"
            await client.say_loaded()
            async with asyncio.timeout(200):
                await client.until_lost()
            stage = "lost"
        finally:
            ends[stage] += 1
            client.release()

    async def main() -> None:
        async with Owner() as owner:
            net = Net(owner)
            head, hostile = net.mesh("head", "serve"), net.mesh("hostile")
            hostile.handle(LEASE_SERVICE, worker, allow=lambda _member, _metadata: None)
            bench = Bench(head, tmp_path)
            bench.pairs_left = LEASES
            for _ in range(LEASES):
                with suppress(MeshdError, TimeoutError):
                    await lease(bench, hostile.key.peer)
            owner.cancel()

    run(main())
    assert ends.total() == LEASES
    # a quarter ends at each of them
    assert all(ends[stage] > LEASES / 20 for stage in ("asked", "reserved", "lost")), ends
