"""A joiner that was let in goes on as a member over the same pipe, on every kind of link that can join."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from meshd.base.errors import EndOfStream, MeshdError, Refused
from meshd.base.peer_limits import JOINING
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.invite import derive
from meshd.identity.proof import Credentials
from meshd.link.interface import Link, LinkKind
from meshd.link.quic import links as quic
from meshd.link.quic.links import QuicListener
from meshd.link.relayed import through_relay
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.secure import joining as joining_module
from meshd.link.secure.joining import Joining, OnJoiner
from meshd.link.tcp import links as tcp
from meshd.link.tcp.links import TcpListener
from meshd.relay.server import RelayServer
from meshd.relay.switchboard import WIDE
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh, fresh_key
from tests.conformance.run import until

LOOPBACK = "127.0.0.1"
KEYS = derive(bytes(range(16)))
KINDS = [LinkKind.TCP, LinkKind.QUIC, LinkKind.RELAY]
Dial = Callable[[Node], Awaitable[Joining]]


@contextlib.asynccontextmanager
async def inviting(
    kind: LinkKind, far: Node, on_joiner: OnJoiner
) -> AsyncIterator[tuple[Dial, asyncio.Queue[Link]]]:
    """`far` takes joiners; gives a way to it, and the links that it accepts."""
    if kind is LinkKind.RELAY:
        async with _by_relay(far, on_joiner) as both:
            yield both
        return
    make = TcpListener if kind is LinkKind.TCP else QuicListener
    dial = tcp.dial_join if kind is LinkKind.TCP else quic.dial_join
    listener = make(far.now, host=LOOPBACK, on_joiner=on_joiner)
    listener.open()
    try:
        async with serving(listener) as (accepted, _):
            place = Candidate(LOOPBACK, listener.port, "tcp" if kind is LinkKind.TCP else "udp")
            yield (
                lambda guest: dial(trusted([place]), handshake=guest.now(), inviter=far.peer, join=KEYS),
                accepted,
            )
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def _by_relay(far: Node, on_joiner: OnJoiner) -> AsyncIterator[tuple[Dial, asyncio.Queue[Link]]]:
    server = RelayServer(Credentials(fresh_key(), None), host=LOOPBACK, limits=WIDE)
    server.open()
    hint = server.hint(LOOPBACK)
    client = RelayClient([hint], far.now, environ={})
    async with Owner() as owner:
        owner.start(server.serve(), name="relay")
        owner.start(client.serve(), name="client")
        try:
            async with serving(RelayLinks(client, far.now, on_joiner=on_joiner)) as (accepted, _):
                await client.set_boxes({KEYS.mailbox: 60})
                await until(lambda: server.board.boxes == 1)
                yield (
                    lambda guest: through_relay.dial_join(
                        [hint], handshake=guest.now(), inviter=far.peer, join=KEYS, environ={}
                    ),
                    accepted,
                )
        finally:
            owner.cancel()
            server.close()


def scene() -> tuple[TestMesh, Node, Node]:
    """A mesh, a member that invites, and a guest that holds the token."""
    mesh = TestMesh()
    far, guest = mesh.node(), mesh.stranger()
    far.invite(KEYS)
    return mesh, far, guest


async def admitted(joining: Joining) -> bool:
    """The inviter's side of a very short conversation."""
    known = await joining.receive() == b"let me in"
    await joining.send([b"welcome"])
    return known


async def asks(pipe: Joining) -> Joining:
    """The joiner's side of it."""
    await pipe.send([b"let me in"])
    assert await pipe.receive() == b"welcome"
    return pipe


@pytest.mark.parametrize("kind", KINDS)
async def test_a_joiner_stays(kind: LinkKind) -> None:
    mesh, far, guest = scene()
    async with inviting(kind, far, admitted) as (dial, accepted):
        pipe = await asks(await dial(guest))
        mesh.admit(guest)
        link = await pipe.stay(guest.now(), dialled=True)
        await link.send([b"the first words ", b"of a member"])  # right behind the proof
        theirs = await accepted.get()
        heard = b""
        while len(heard) < 27:
            heard += await theirs.receive()
        assert heard == b"the first words of a member"
        await theirs.send([b"welcome"])
        assert await link.receive() == b"welcome"
        assert (link.info.peer, theirs.info.peer) == (far.peer, guest.peer)
        assert (link.info.kind, theirs.info.kind) == (kind, kind)
        assert (link.info.dialled, theirs.info.dialled) == (True, False)
        assert link.info.passing is theirs.info.passing is (kind is LinkKind.RELAY)
        await link.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("let_in", [True, False])
async def test_who_does_not_stay_costs_nothing(kind: LinkKind, let_in: bool) -> None:
    _, far, guest = scene()
    seen: list[Joining] = []

    async def decide(joining: Joining) -> bool:
        seen.append(joining)
        return await admitted(joining) and let_in

    async with inviting(kind, far, decide) as (dial, accepted):
        for _ in range(JOINING.most + 1):  # no place at the desk is lost
            pipe = await asks(await dial(guest))
            if not let_in:
                with pytest.raises((EndOfStream, MeshdError)):
                    await pipe.receive()
            await pipe.aclose()
        await until(lambda: len(seen) == JOINING.most + 1)
        assert accepted.empty()


@pytest.mark.parametrize("kind", KINDS)
async def test_who_has_no_membership_to_show_does_not_stay(kind: LinkKind) -> None:
    mesh, far, guest = scene()
    async with inviting(kind, far, admitted) as (dial, accepted):
        pipe = await asks(await dial(guest))
        with pytest.raises(MeshdError):
            await pipe.stay(guest.now(), dialled=True)
        await pipe.aclose()
        # nor does another member in its place
        pipe = await asks(await dial(guest))
        with pytest.raises((EndOfStream, MeshdError)):
            await (await pipe.stay(mesh.node().now(), dialled=True)).receive()
        await pipe.aclose()
        assert accepted.empty()


async def test_a_passing_link_takes_less_than_the_relay_gives_and_then_nothing() -> None:
    mesh, far, guest = scene()
    async with inviting(LinkKind.RELAY, far, admitted) as (dial, accepted):
        pipe = await asks(await dial(guest))
        mesh.admit(guest)
        link = await pipe.stay(guest.now(), dialled=True)
        theirs = await accepted.get()
        sent = heard = 0
        while link.try_send([bytes(4096)]):
            sent += 4096
            while heard < sent:
                heard += len(await theirs.receive())
        assert sent == heard == through_relay.PASSING_BYTES
        assert link.try_send([bytes(4096)]) is False
        waiting = asyncio.get_running_loop().create_task(link.send([b"never"]))
        await theirs.send([b"the other way is as it was"])
        assert await link.receive() == b"the other way is as it was"
        assert not waiting.done()
        await cancel_and_wait(waiting)
        await link.aclose()


async def test_a_member_that_was_banned_meanwhile_does_not_stay() -> None:
    mesh, far, guest = scene()

    async def then_banned(joining: Joining) -> bool:
        answer = await admitted(joining)
        far.ban(joining.peer)
        return answer

    async with inviting(LinkKind.TCP, far, then_banned) as (dial, accepted):
        pipe = await asks(await dial(guest))
        mesh.admit(guest)
        with pytest.raises(Refused) as caught:
            await pipe.stay(guest.now(), dialled=True)
        assert caught.value.code == "banned"
        await pipe.aclose()
        assert accepted.empty()


async def test_a_joiner_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    _, far, guest = scene()
    monkeypatch.setattr(joining_module, "_JOIN_SECONDS", 2.0)
    async with inviting(LinkKind.TCP, far, admitted) as (dial, _):
        pipe = await asks(await dial(guest))
        with pytest.raises((EndOfStream, MeshdError)):
            await pipe.receive()
        await pipe.aclose()
