"""A relay that has the key it should have, and says and passes on anything."""

import asyncio
import contextlib
import random

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.peer_limits import MAIL_WAITING
from meshd.link.interface import Link
from meshd.wire.message import framed

from tests.conformance.relays import House, Party, Tampering, in_house, read_exactly
from tests.conformance.run import until
from tests.fuzz.mutate import flip
from tests.hostile.damage import Lines
from tests.hostile.draw import Draw, Pool, drawn_seed
from tests.hostile.words import Speech

MESSAGES = (1000, 3000)  # said in lies
VOLLEY = 12
DIALS = 6
TRUE_SECONDS = 60.0  # to be back at a relay that lies no more: some waits of its client


class Lying(Tampering):
    """The real server, whose every answer is followed, and at times replaced, by whatever it can say.

    Until `lies` is taken back: then it is the real one.
    """

    lies = True
    rng = random.Random(1)
    speech: Speech
    said = 0

    def _tell(self, client: int, data: bytes, *, may_drop: bool) -> None:
        if not self.lies:
            super()._tell(client, data, may_drop=may_drop)
            return
        words = [framed(self.speech.say(self.speech.of("relay"))) for _ in range(self.rng.randrange(VOLLEY))]
        if b"ready" in data or self.rng.random() < 0.5:
            words.insert(0, data)
        if self.rng.random() < 0.05:
            words.append(flip(self.rng, data, words))
        type(self).said += len(words)
        super()._tell(client, b"".join(words), may_drop=may_drop)

    def tamper(self, number: int, data: bytes) -> list[bytes]:
        return [flip(self.rng, data, ())] if self.lies and self.rng.random() < 0.2 else [data]


async def _use(one: Party, other: Party) -> None:
    """As the daemon does: letters, boxes, calls; no answer is a surprise."""
    for number in range(DIALS):
        try:
            async with asyncio.timeout(1.0):
                await one.client.send_mail(other.node.peer, b"letter" * number)
                await one.client.set_boxes({number.to_bytes(16, "big"): 60.0})
                link = await one.links.dial(other.node.peer, ())
                await link.aclose()
        except (MeshdError, TimeoutError):
            continue


async def _pair(one: Party, other: Party) -> None:
    """A link that takes messages both ways; circuits from before may be lost on the way there."""
    while True:
        with contextlib.suppress(MeshdError):
            mine, theirs = await one.pair(other)
            for near, far in ((mine, theirs), (theirs, mine)):
                await near.send([b"a message"])
                assert await read_exactly(far, 9) == b"a message"
            assert (mine.info.peer, theirs.info.peer) == (other.node.peer, one.node.peer)
            await mine.aclose()
            return


def test_what_a_relay_says_ends_its_line_at_most() -> None:
    Lying.rng = random.Random(drawn_seed())
    Lying.lies, Lying.said = True, 0
    messages = Lying.rng.randint(*MESSAGES)
    lines = Lines()

    async def work(home: House) -> None:
        peers = tuple(home.mesh.node() for _ in range(2))
        pool = Pool(blobs=(*(one.peer.raw for one in peers), bytes(16)))
        Lying.speech = Speech(Lying.rng, Draw(Lying.rng, pool))
        home.start(kind=Lying)
        one, other = [await home.party(node) for node in peers]
        strange: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: strange.append(str(context)))
        while Lying.said < messages:
            await until(lambda: one.client.in_use and other.client.in_use)
            await asyncio.gather(_use(one, other), _use(other, one))
            one.client.addresses_changed()
            other.client.addresses_changed()
        # nobody came in who has not proven to be the one
        assert all(link.info.peer == other.node.peer for link in _accepted(one))
        assert all(link.info.peer == one.node.peer for link in _accepted(other))
        assert all(len(party.client._mail) <= MAIL_WAITING.most for party in (one, other))
        # and where it lies no more, it is used as any other
        Lying.lies = False
        for near, far in ((one, other), (other, one)):
            async with asyncio.timeout(TRUE_SECONDS):
                await _pair(near, far)
        assert not strange
        assert not lines.failures

    log.set_up(level="info", stream=lines)
    try:
        in_house(work)
    finally:
        log.set_up(level="warning")


def _accepted(party: Party) -> list[Link]:
    return [party.accepted.get_nowait() for _ in range(party.accepted.qsize())]
