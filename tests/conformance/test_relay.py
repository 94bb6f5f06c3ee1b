"""Relays: what they grant, what they hold back, and how little a hostile one can do."""

import asyncio
import contextlib
import gc
import weakref
from dataclasses import replace

import pytest
from meshd.base.errors import Broken, MeshdError, Refused
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.invite import RelayHint, derive
from meshd.identity.proof import Purpose
from meshd.link.interface import DialError, DialFailure, Link
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.relayed.through_relay import dial_join
from meshd.link.secure.tls import dialer_context
from meshd.relay.connection import Connection
from meshd.relay.limits import SMALL, WIDE
from meshd.relay.server import RelayServer
from meshd.wire.dialable import trusted
from meshd.wire.relay import TICKET_MAGIC

from tests.conformance.relays import LOOPBACK, House, Party, in_house, stranger_key
from tests.conformance.run import ticks, until
from tests.conformance.wire import tcp_proxy

KEYS = derive(bytes(16))


# --- who may be here


def test_a_relay_with_another_key_is_refused() -> None:
    async def work(home: House) -> None:
        home.start()
        wrong = RelayHint(home.hint.place, stranger_key().peer)
        party = await home.party(relays=[wrong])
        with pytest.raises(Broken, match="another node"):
            await party.client.reach(wrong)
        assert home.relay is not None
        assert home.relay.board.clients == 0

    in_house(work)


def test_a_relay_that_is_not_there_is_told_soon() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        hint = home.hint
        await home.stop()
        assert relay.connections == 0
        ann = await home.party(relays=[hint])
        with pytest.raises(DialError) as failed:
            await ann.links.dial(home.mesh.node().peer, ())
        assert "refused" in failed.value.what
        (state,) = ann.client.states()
        assert not state.connected
        assert state.why

    in_house(work)


def test_only_members_of_the_named_meshes_are_forwarded() -> None:
    async def work(home: House) -> None:
        from tests.conformance.nodes import TestMesh

        other = TestMesh()
        relay = home.start(meshes=frozenset({home.mesh.mesh}))
        ann, bob = await home.parties(2)
        mine, _ = await ann.pair(bob)
        cat, dog = await home.party(other.node()), await home.party(other.node())
        await until(lambda: relay.board.clients == 4)
        with pytest.raises(DialError, match="only members"):
            await cat.links.dial(dog.node.peer, ())
        with pytest.raises(Broken, match="only members"):
            await cat.client.send_mail(dog.node.peer, b"x")
        await mine.aclose()

    in_house(work)


def test_a_peer_that_is_not_connected_is_unreachable() -> None:
    async def work(home: House) -> None:
        home.start()
        (ann,) = await home.parties(1)
        with pytest.raises(DialError, match="not connected to this relay") as failed:
            await ann.links.dial(home.mesh.node().peer, ())
        assert failed.value.failure is DialFailure.UNREACHABLE

    in_house(work)


def test_a_relay_of_the_peer_alone_is_visited() -> None:
    async def work(home: House) -> None:
        home.start()
        (bob,) = await home.parties(1)
        ann = await home.party(relays=[])
        ann.client._relays_of = lambda peer: (home.hint,)
        mine, theirs = await ann.pair(bob)
        await mine.send([b"through a relay of yours"])
        assert await theirs.receive() == b"through a relay of yours"
        assert mine.info.path == theirs.info.path == "relayed"
        await mine.aclose()

    in_house(work)


def test_a_banned_peer_is_told_why() -> None:
    async def work(home: House) -> None:
        home.start()
        ann, bob = await home.parties(2)
        bob.node.ban(ann.node.peer)
        with pytest.raises(Refused, match="banned by a test"):
            await ann.links.dial(bob.node.peer, ())

    in_house(work)


def test_the_name_of_a_relay_is_said_to_the_network() -> None:
    """As browsers do; some networks let nothing else pass."""

    async def work(home: House) -> None:
        relay = home.start()
        names: list[str] = []
        relay._context.sni_callback = lambda _tls, name, _context: names.append(name)
        named = RelayHint(f"localhost:{relay.port}", home.key.peer)
        plain = await home.party()
        await plain.client.reach(home.hint)
        assert names == [None]
        party = await home.party(relays=[named])
        await party.client.reach(named)
        assert names[1:] == ["localhost"]

    in_house(work)


def test_all_goes_through_the_proxy_where_there_is_one() -> None:
    """A network that lets nothing out but CONNECT, and knows the relay's name where the node does not."""

    async def work(home: House) -> None:
        relay = home.start()
        asked: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, relay.port)
            async with Owner() as owner:
                owner.start(copy(reader, far_writer), name="up")
                owner.start(copy(far_reader, writer), name="down")

        server = await asyncio.start_server(serve, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        try:
            hidden = RelayHint("relay.test:443", home.key.peer)
            ann = await home.party(relays=[hidden], environ={"https_proxy": f"http://{LOOPBACK}:{port}"})
            (bob,) = await home.parties(1)
            mine, theirs = await ann.pair(bob)
            await mine.send([b"out"])
            assert await theirs.receive() == b"out"
            await mine.aclose()
            assert len(asked) == 2, "control and data"
            assert all(one.startswith(b"CONNECT relay.test:443 HTTP/1.1\r\n") for one in asked)
        finally:
            await home.close()
            server.close()
            await server.wait_closed()

    in_house(work)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()
    writer.close()


# --- joining


def test_a_joiner_reaches_the_inviter_through_its_mailbox() -> None:
    async def work(home: House) -> None:
        relay = home.start(meshes=frozenset({home.mesh.mesh}))
        (ann,) = await home.parties(1)
        ann.node.invite(KEYS)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        joiner = home.mesh.stranger()
        pipe = await dial_join(
            [home.hint], standing=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={}
        )
        there = await ann.joiners.get()
        who = there.proven
        assert (who.peer, who.purpose, who.invite_id) == (joiner.peer, Purpose.JOIN, KEYS.invite_id)
        assert pipe.peer == ann.node.peer
        await pipe.send([b"let me in"])
        assert await there.receive() == b"let me in"
        await there.send([b"welcome"])
        assert await pipe.receive() == b"welcome"
        await pipe.aclose()

    in_house(work)


def test_boxes_are_opened_again_after_a_restart_and_shut_when_not_wanted() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        (ann,) = await home.parties(1)
        await ann.client.set_boxes({KEYS.mailbox: 60, bytes(16): 60})
        await until(lambda: relay.board.boxes == 2)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        await home.stop()
        again = home.start(port=relay.port)
        await until(lambda: again.board.boxes == 1)

    in_house(work)


def test_without_an_open_mailbox_nobody_joins() -> None:
    async def work(home: House) -> None:
        home.start()
        (ann,) = await home.parties(1)
        joiner = home.mesh.stranger()
        with pytest.raises(DialError, match="no such mailbox"):
            await dial_join([home.hint], standing=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={})
        with pytest.raises(DialError, match="names no relay"):
            await dial_join([], standing=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={})

    in_house(work)


def test_a_joining_circuit_carries_little() -> None:
    async def work(home: House) -> None:
        relay = home.start(limits=replace(WIDE, join_bytes=32 << 10))
        (ann,) = await home.parties(1)
        ann.node.invite(KEYS)
        await ann.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        joiner = home.mesh.stranger()
        pipe = await dial_join(
            [home.hint], standing=joiner.now(), inviter=ann.node.peer, join=KEYS, environ={}
        )
        there = await ann.joiners.get()
        with pytest.raises(Broken):
            while True:
                await pipe.send([bytes(4096)])
        with pytest.raises(MeshdError):
            while True:
                await there.receive()
        await pipe.aclose()

    in_house(work)


# --- mail


def test_mail_comes_at_once_or_waits() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        (ann,) = await home.parties(1)
        node = home.mesh.node()
        await ann.client.send_mail(node.peer, b"first")
        bob = await home.party(node)
        letter = await bob.client.receive_mail()
        assert (letter.sender, letter.box, letter.blob) == (ann.node.peer, b"", b"first")
        await ann.client.send_mail(node.peer, b"second")
        assert (await bob.client.receive_mail()).blob == b"second"
        await bob.client.set_boxes({KEYS.mailbox: 60})
        await until(lambda: relay.board.boxes == 1)
        await ann.client.send_mail(KEYS.mailbox, b"third")
        letter = await bob.client.receive_mail()
        assert (letter.box, letter.blob, letter.relay) == (KEYS.mailbox, b"third", home.hint)

    in_house(work)


def test_mail_that_nobody_takes_is_broken() -> None:
    async def work(home: House) -> None:
        home.start()
        (ann,) = await home.parties(1)
        with pytest.raises(Broken, match="no such mailbox"):
            await ann.client.send_mail(KEYS.mailbox, b"x")
        with pytest.raises(Broken, match="no relay is known"):
            await ann.client.send_mail(KEYS.mailbox, b"x", relays=[])
        with pytest.raises(Broken, match="at most"):
            await ann.client.send_mail(ann.node.peer, bytes(7000))

    in_house(work)


def test_a_relay_that_restarts_is_found_again() -> None:
    async def work(home: House) -> None:
        relay = home.start()
        ann, bob = await home.parties(2)
        mine, theirs = await ann.pair(bob)
        await home.stop()
        for link in (mine, theirs):
            with pytest.raises(Broken):
                await link.receive()
        home.start(port=relay.port)
        mine, theirs = await redial(ann, bob)
        await mine.send([b"again"])
        assert await theirs.receive() == b"again"
        await mine.aclose()

    in_house(work)


async def redial(ann: Party, bob: Party) -> tuple[Link, Link]:
    """As the connector does it: again until it works."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await ann.pair(bob)
            except DialError:
                await asyncio.sleep(0.05)


def test_a_relay_that_falls_silent_is_given_up() -> None:
    """Both ways of noticing: by itself, and at once when addresses have changed."""

    async def work(home: House) -> None:
        relay = home.start()
        async with tcp_proxy(relay.port) as wire:
            hint = RelayHint(f"{LOOPBACK}:{wire.port}", home.key.peer)
            party = await home.party(relays=[hint])
            for hurry in (True, False):
                await until(lambda: party.client.states()[0].connected)
                wire.stall()
                if hurry:
                    party.client.addresses_changed()
                await until(lambda: not party.client.states()[0].connected, seconds=20)
                assert "does not answer" in party.client.states()[0].why
                wire.cut()
                wire.flow()
            await until(lambda: party.client.states()[0].connected, seconds=20)

    in_house(work)


def test_two_that_have_one_key_do_not_fight() -> None:
    async def work(home: House) -> None:
        home.start()
        node = home.mesh.node()
        first = await home.party(node)
        await until(lambda: first.client.states()[0].connected)
        second = await home.party(node)
        await until(lambda: second.client.states()[0].connected)
        await until(lambda: not first.client.states()[0].connected)
        assert "newer connection" in first.client.states()[0].why
        assert second.client.states()[0].connected

    in_house(work)


# --- bounds


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
    made: list[weakref.ref[Connection]] = []

    class Watched(RelayServer):
        def _fresh(self) -> Connection:
            connection = super()._fresh()
            made.append(weakref.ref(connection))
            return connection

    async def work(home: House) -> None:
        relay = home.start(kind=Watched)
        ann, bob = await home.parties(2)
        for _ in range(10):
            mine, _ = await ann.pair(bob)
            await mine.send([b"x"])
            await mine.aclose()
        await until(lambda: relay.connections == 2)
        assert len(made) == 22

        def alive() -> int:
            gc.collect()
            return sum(one() is not None for one in made)

        await until(lambda: alive() == 2)
        assert not relay._circuits

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
def test_whoever_speaks_something_else_is_dropped(words: bytes) -> None:
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
        relay = home.start(limits=replace(WIDE, unproven_of_host=4, unproven_seconds=0.1))
        pairs = [await asyncio.open_connection(LOOPBACK, relay.port) for _ in range(12)]
        await until(lambda: relay.connections == 0)
        assert relay.sent_away >= 8
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
        relay = home.start(limits=limits)
        async with tcp_proxy(relay.port) as wire:
            (ann,) = await home.parties(1)
            bob = await home.party(relays=[RelayHint(f"{LOOPBACK}:{wire.port}", home.key.peer)])
            await until(lambda: relay.board.clients == 2)
            wire.stall(up=False)
            while not relay.board.counts["mail_dropped"]:
                await ann.client.send_mail(bob.node.peer, bytes(6000))
            wire.flow()
            assert relay.board.clients == 2
            await until(lambda: not relay_backlog(relay))
            await ann.client.send_mail(bob.node.peer, b"later")
            while (await bob.client.receive_mail()).blob != b"later":
                pass

    in_house(work)


def relay_backlog(relay: RelayServer) -> int:
    return sum(connection.backlog for connection in relay._connections.values())
