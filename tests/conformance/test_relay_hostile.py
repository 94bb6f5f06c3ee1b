"""Test that a hostile relay can break a link, and do nothing else."""

import asyncio
import random
from typing import Any

import pytest
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.identity.proof import Credentials
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.interface import DialError, DialFailure
from meshd.link.relayed.control_connection import ControlConnection
from meshd.link.relayed.relay_pipe import RelayPipe
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.relay.connection import RelayStage
from meshd.relay.switchboard import Action, NodeIdentity
from meshd.wire.dialable import trusted
from meshd.wire.relay import Mail, Ring

from tests.conformance.relays import House, Party, Tampering, Watched, in_house, read_exactly
from tests.conformance.run import until


def test_nothing_plain_passes_the_relay() -> None:
    secret = b"the quick brown fox " * 10

    class Sniffing(Tampering):
        def tamper(self, number: int, data: bytes) -> list[bytes]:
            type(self).seen += data
            return [data]

    async def work(home: House) -> None:
        home.start(kind=Sniffing)
        ann, bob = await home.parties(2)
        mine, theirs = await ann.pair(bob)
        await mine.send([secret])
        assert await read_exactly(theirs, len(secret)) == secret
        assert len(Sniffing.seen) > len(secret)
        assert b"fox" not in Sniffing.seen
        assert ann.node.peer.raw not in Sniffing.seen, "not even who proves what to whom"
        await mine.aclose()

    in_house(work)


class Dropping(Tampering):
    """Leaves a piece out, once the link stands."""

    def tamper(self, number: int, data: bytes) -> list[bytes]:
        return [] if number == 6 else [data]


class Replaying(Tampering):
    def tamper(self, number: int, data: bytes) -> list[bytes]:
        return [data, data] if number == 6 else [data]


class Reordering(Tampering):
    held = b""

    def tamper(self, number: int, data: bytes) -> list[bytes]:
        if number == 6:
            self.held = data
            return []
        return [data, self.held] if number == 7 else [data]


class Flipping(Tampering):
    def tamper(self, number: int, data: bytes) -> list[bytes]:
        return [data[:-1] + bytes([data[-1] ^ 1])] if number == 6 else [data]


class Inventing(Tampering):
    def tamper(self, number: int, data: bytes) -> list[bytes]:
        return [b"\x17\x03\x03\x00\x20" + bytes(32), data] if number == 6 else [data]


@pytest.mark.parametrize("kind", [Dropping, Replaying, Reordering, Flipping, Inventing])
def test_whatever_a_relay_does_to_the_bytes_breaks_the_link(kind: type[Tampering]) -> None:
    """Test that what was read before is right and in order; then Broken, never wrong bytes or a clean end."""

    async def work(home: House) -> None:
        relay = home.start(kind=kind)
        assert isinstance(relay, Tampering)
        ann, bob = await home.parties(2)
        mine, theirs = await ann.pair(bob)
        sent, got = random.Random(3).randbytes(20 * 1000), bytearray()
        with pytest.raises(Broken):
            for at in range(0, len(sent), 1000):
                before = relay.pieces
                await mine.send([sent[at : at + 1000]])
                await until(lambda before=before: relay.pieces > before or not relay.board.circuits)  # type: ignore[misc]
            while True:
                got += await theirs.receive()
        assert sent.startswith(got)
        assert len(got) < len(sent)
        await mine.aclose()
        await theirs.aclose()

    in_house(work)


def test_a_relay_that_cuts_cannot_pretend_a_goodbye() -> None:
    async def work(home: House) -> None:
        relay = home.start(kind=Watched)
        assert isinstance(relay, Watched)
        ann, bob = await home.parties(2)
        mine, theirs = await ann.pair(bob)
        await mine.send([b"begin"])
        assert await theirs.receive() == b"begin"
        joined = [connection for connection in relay.kept if connection.stage is RelayStage.JOINED]
        assert len(joined) == 2
        for connection in joined:
            connection.other = None
            connection.close()  # a goodbye of the outer TLS, as clean as it can be
        for link in (mine, theirs):
            with pytest.raises(Broken):
                await link.receive()

    in_house(work)


class Swapping(Tampering):
    """Rings somebody else than the one that was called."""

    def __init__(self, credentials: Credentials, **options: Any) -> None:
        super().__init__(credentials, **options)
        self.instead = 0
        self.numbers: dict[bytes, int] = {}  # of the control connection, by the node's key
        enter = self.board.enter

        def note(client: int, who: NodeIdentity, **more: Any) -> list[Action]:
            self.numbers[who.peer] = client
            return enter(client, who, **more)

        self.board.enter = note  # type: ignore[method-assign]

    def _tell(self, client: int, data: bytes, *, may_drop: bool) -> None:
        if b"ring" in data and self.instead:
            client = self.instead
        super()._tell(client, data, may_drop=may_drop)


def test_a_relay_that_swaps_peers_gets_no_link() -> None:
    async def work(home: House) -> None:
        relay = home.start(kind=Swapping)
        assert isinstance(relay, Swapping)
        ann, bob, cat = await home.parties(3)
        relay.instead = relay.numbers[cat.node.peer.raw]
        with pytest.raises(DialError, match="another node") as failed:
            await ann.links.dial(bob.node.peer, ())
        assert failed.value.failure is DialFailure.WRONG_PEER
        assert cat.accepted.empty()
        assert bob.accepted.empty()

    in_house(work)


class _Silent:
    """A man in the middle, who keeps the rings of a relay."""

    def __init__(self) -> None:
        self.rings: asyncio.Queue[Ring] = asyncio.Queue(8)

    def rung(self, control: ControlConnection, ring: Ring) -> None:
        self.rings.put_nowait(ring)

    def mail(self, control: ControlConnection, mail: Mail) -> None:
        raise AssertionError


def test_a_man_in_the_middle_cannot_pass_a_proof_on() -> None:
    """The relay rings an accomplice, who speaks TLS with both and hands every message on."""

    async def work(home: House) -> None:
        relay = home.start(kind=Swapping)
        assert isinstance(relay, Swapping)
        ann, bob = await home.parties(2)
        middle, handler = home.mesh.node(), _Silent()
        context = dialer_context()
        control = await ControlConnection.open(
            home.hint, middle.now(), handler, context=context, environ={}, allow=trusted
        )
        async with Owner() as owner:
            owner.start(control.run(), name="middle")
            relay.instead = relay.numbers[middle.peer.raw]
            dialling = owner.start(failure(ann, bob), name="dial")
            ring = await handler.rings.get()
            relay.instead = 0
            certificate = make_link_certificate()
            to_ann = await RelayPipe.open(home.hint, context, {}, trusted)
            await to_ann.enter(
                ring.ticket,
                listener_context(certificate),
                server_side=True,
                relay_binding=control.binding,
            )
            to_bob = await RelayPipe.open(home.hint, context, {}, trusted)
            ticket = await control.call(bob.node.peer.raw)
            await to_bob.enter(ticket, context, server_side=False, relay_binding=control.binding)
            for pipe in (to_ann, to_bob):
                pipe.widen()
            owner.start(hand_on(to_ann, to_bob), name="there")
            owner.start(hand_on(to_bob, to_ann), name="back")
            error = await dialling
            assert isinstance(error, Refused | DialError)
            assert "signature does not match this connection" in error.what
            assert bob.accepted.empty()
            await to_ann.aclose()
            await to_bob.aclose()
            owner.cancel()

    in_house(work)


async def failure(ann: Party, bob: Party) -> Exception:
    try:
        await ann.links.dial(bob.node.peer, ())
    except MeshdError as error:
        return error
    raise AssertionError("a link through a man in the middle")


async def hand_on(source: RelayPipe, sink: RelayPipe) -> None:
    try:
        while True:
            await sink.send([await source.receive()])
    except (MeshdError, EndOfStream):
        return
