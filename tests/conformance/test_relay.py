"""Relays: who may use one, and what becomes of it when it goes away."""

import asyncio
import contextlib
from typing import Any

import pytest
from meshd.base.errors import Broken, Refused
from meshd.base.tasks import Owner
from meshd.identity.invite import RelayHint
from meshd.identity.proof import Credentials
from meshd.link.interface import DialError, DialFailure
from meshd.relay.server import RelayServer

from tests.conformance.relays import LOOPBACK, House, in_house, redial, stranger_key
from tests.conformance.run import until
from tests.conformance.wire import tcp_proxy


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
        ann = await home.party(relays=[], relays_of=lambda peer: (home.hint,))
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


class Named(RelayServer):
    """Notes by which name each TLS connection asks for it."""

    def __init__(self, credentials: Credentials, **options: Any) -> None:
        super().__init__(credentials, **options)
        self.names: list[str | None] = []
        self._context.sni_callback = lambda _tls, name, _context: self.names.append(name)


def test_the_name_of_a_relay_is_said_to_the_network() -> None:
    """As browsers do; some networks let nothing else pass."""

    async def work(home: House) -> None:
        relay = home.start(kind=Named)
        assert isinstance(relay, Named)
        names = relay.names
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
