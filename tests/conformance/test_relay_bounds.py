"""Test what a relay holds back, and how little a hostile one can do."""

import asyncio
import gc
from dataclasses import replace

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.invite import RelayHint
from meshd.link.interface import DialError
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.secure.tls import dialer_context
from meshd.relay.switchboard import SMALL, WIDE
from meshd.wire.dialable import trusted
from meshd.wire.relay import TICKET_MAGIC

from tests.conformance.relays import LOOPBACK, House, Watched, in_house, redial
from tests.conformance.run import ticks, until
from tests.conformance.wire import tcp_proxy


def test_a_flood_is_held_to_its_rate_and_others_are_not() -> None:
    """The flooding pair gets what its bucket holds; beside it a pair of other keys is as free as before."""
    burst, rate = 256 << 10, 64 << 10

    async def work(home: House) -> None:
        relay = home.start(limits=replace(WIDE, rate=rate, burst=burst))
        ann, bob, cat, dog = await home.parties(4)
        flood, sink = await ann.pair(bob)
        mine, theirs = await cat.pair(dog)
        began = asyncio.get_running_loop().time()

        async def pour() -> None:
            while True:
                await flood.send([bytes(16 << 10)])

        async def swallow() -> int:
            got = 0
            while got < 512 << 10:
                got += len(await sink.receive())
            return got

        async with Owner() as owner:
            owner.start(pour(), name="pour")
            swallowing = owner.start(swallow(), name="swallow")
            for number in range(20):
                await mine.send([b"%2d" % number])
                assert await theirs.receive() == b"%2d" % number
            assert not swallowing.done(), "the other pair waited for the flood"
            got = await swallowing
            spent = asyncio.get_running_loop().time() - began
            assert got <= burst + rate * spent + (64 << 10), "more than the rate went through"
            assert relay.board.counts["rests"] > 0
            owner.cancel()
        await mine.aclose()

    in_house(work)


def test_circuits_to_one_node_are_few_on_a_relay_for_all() -> None:
    async def work(home: House) -> None:
        home.start(limits=SMALL)
        ann, bob = await home.parties(2)
        links = [await ann.pair(bob) for _ in range(SMALL.circuits_of_pair)]
        with pytest.raises(DialError, match="maximum number of circuits"):
            await ann.links.dial(bob.node.peer, ())
        await links[0][0].aclose()
        links.append(await redial(ann, bob))
        for mine, _ in links[1:]:
            await mine.aclose()

    in_house(work)


def test_a_dial_that_is_given_up_leaves_room_for_the_next() -> None:
    """Whenever that is: the relay has heard of the end before it is asked again."""

    async def work(home: House) -> None:
        home.start(limits=SMALL)
        ann, bob = await home.parties(2)
        for turns in range(100):
            dialling = asyncio.get_running_loop().create_task(ann.links.dial(bob.node.peer, ()))
            await ticks(turns)
            await cancel_and_wait(dialling)
            assert dialling.cancelled()
        mine, _ = await ann.pair(bob)
        await mine.aclose()

    in_house(work)


def test_nothing_of_a_circuit_is_kept_when_it_is_over() -> None:
    async def work(home: House) -> None:
        relay = home.start(kind=Watched)
        assert isinstance(relay, Watched)
        ann, bob = await home.parties(2)
        for _ in range(10):
            mine, _ = await ann.pair(bob)
            await mine.send([b"x"])
            await mine.aclose()
        await until(lambda: relay.connections == 2)
        assert relay.made == 22

        def alive() -> int:
            gc.collect()
            return len(relay.kept)

        await until(lambda: alive() == 2)
        assert not relay.circuits

    in_house(work)


def test_a_ticket_that_is_guessed_leads_nowhere() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        pipe = await RelayPipe.open(home.hint, dialer_context(), {}, trusted)
        await pipe.send([TICKET_MAGIC + bytes(16)])
        with pytest.raises(Broken):
            await pipe.receive()
        await pipe.aclose()
        assert relay.board.counts["tickets_refused"] == 1

    in_house(work)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"MESHX", b"\x80\x00\x00", b"\x16" + bytes(9000)]
)
def test_a_client_that_speaks_something_else_is_dropped(words: bytes) -> None:
    async def work(home: House) -> None:
        relay = home.start()
        reader, writer = await asyncio.open_connection(LOOPBACK, relay.port)
        writer.write(words)
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()
        await until(lambda: relay.connections == 0)

    in_house(work)


def test_who_proves_nothing_is_dropped_in_time_and_bounded() -> None:
    async def work(home: House) -> None:
        relay = home.start(limits=replace(WIDE, unproven_of_host=4, unproven_seconds=600.0))
        pairs = [await asyncio.open_connection(LOOPBACK, relay.port) for _ in range(12)]
        await until(lambda: relay.sent_away == 8)
        relay.limits = replace(relay.limits, unproven_seconds=0.1)
        await until(lambda: relay.connections == 0)
        for _, writer in pairs:
            writer.close()

    in_house(work)


def test_messages_come_no_faster_than_their_rate() -> None:
    """A node that writes letters without end is read as fast as its pace allows, and stays connected."""

    async def work(home: House) -> None:
        relay = home.start(limits=replace(WIDE, messages_rate=100.0, messages_burst=5.0))
        ann, bob = await home.parties(2)
        began = asyncio.get_running_loop().time()
        for number in range(25):
            await ann.client.send_mail(bob.node.peer, b"%d" % number)
        spent = asyncio.get_running_loop().time() - began
        assert relay.board.counts["mail"] <= 6 + 100 * spent
        assert [(await bob.client.receive_mail()).blob for _ in range(25)] == [b"%d" % n for n in range(25)]

    in_house(work)


def test_a_flood_of_mail_does_not_cost_its_receiver_the_place() -> None:
    """Letters for a node whose line is stuck are dropped; the node stays, and gets what comes later."""

    async def work(home: House) -> None:
        limits = replace(WIDE, messages_rate=1e9, messages_burst=1e9, control_backlog=64 << 10)
        relay = home.start(kind=Watched, limits=limits)
        assert isinstance(relay, Watched)
        async with tcp_proxy(relay.port) as wire:
            (ann,) = await home.parties(1)
            bob = await home.party(relays=[RelayHint(f"{LOOPBACK}:{wire.port}", home.key.peer)])
            await until(lambda: relay.board.clients == 2)
            wire.stall(up=False)
            while not relay.board.counts["mail_dropped"]:
                await ann.client.send_mail(bob.node.peer, bytes(6000))
            wire.flow()
            assert relay.board.clients == 2
            await until(lambda: not sum(connection.backlog for connection in relay.kept))
            await ann.client.send_mail(bob.node.peer, b"later")
            while (await bob.client.receive_mail()).blob != b"later":
                pass

    in_house(work)
