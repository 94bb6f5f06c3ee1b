"""Factories of links: add a rig here for a new kind of link, and the whole suite runs on it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import pytest
from meshd.base.errors import Broken, EndOfStream
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.invite import RelayHint
from meshd.identity.proof import Credentials
from meshd.link.interface import Dialer, Link, Listener
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.quic.over_ice import QuicOverIce
from meshd.link.relayed.relay_client import RelayClient
from meshd.link.relayed.through_member import MemberRelayLinks
from meshd.link.relayed.through_relay import RelayLinks
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.webrtc.links import WebRtcLinks
from meshd.relay.server import RelayServer
from meshd.relay.switchboard import WIDE
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.member_streams import StarMesh
from tests.conformance.memory_link import MemoryDialer, MemoryListener, MemoryNet
from tests.conformance.nodes import Node, TestMesh, fresh_key
from tests.conformance.post import Post
from tests.conformance.punched import Proxies, ThroughProxies, punching
from tests.conformance.run import ticks, until
from tests.conformance.udp_proxy import udp_proxy
from tests.conformance.udp_wire import UdpWire
from tests.conformance.wire import Wire, tcp_proxy

QUIC_IDLE_SECONDS = 3.0


@dataclass
class Ends:
    """Two nodes that can reach each other by one kind of link."""

    near: Node
    far: Node
    dialer: Dialer
    listener: Listener
    candidates: Sequence[Candidate]
    wire: Wire
    accepted: asyncio.Queue[Link]
    stop_listening: Callable[[], Awaitable[None]]

    async def dial(self) -> Link:
        """A link from near to far; its other end goes to `accepted`."""
        return await self.dialer.dial(self.far.peer, trusted(self.candidates))

    async def pair(self) -> tuple[Link, Link]:
        """Both ends of a new link: the dialled one first."""
        dialled = await self.dial()
        return dialled, await self.accepted.get()

    async def pair_after_noise(self) -> tuple[Link, Link]:
        """As `pair`, when earlier dials may have left ends in `accepted` that nobody has asked for."""
        dialled = await self.dial()
        await dialled.send([b"noise"])
        while True:
            accepted = await self.accepted.get()
            try:
                assert await accepted.receive() == b"noise"
            except (Broken, EndOfStream):
                continue
            return dialled, accepted


class Rig(Protocol):
    """One kind of link under test. `ends` lets the listener serve as long as the block lasts."""

    name: str

    def ends(self) -> AbstractAsyncContextManager[Ends]: ...


@contextlib.asynccontextmanager
async def serving(
    listener: Listener,
) -> AsyncIterator[tuple[asyncio.Queue[Link], Callable[[], Awaitable[None]]]]:
    """The listener serves; accepted links go to the queue and live until the block ends, or it is stopped."""
    accepted: asyncio.Queue[Link] = asyncio.Queue(64)

    async def accept(link: Link) -> None:
        accepted.put_nowait(link)
        await asyncio.Event().wait()

    async with Owner() as owner:
        task = owner.start(listener.serve(accept), name="serve")
        try:
            yield accepted, lambda: cancel_and_wait(task)
        finally:
            owner.cancel()


class TcpRig:
    """TCP over the loopback of one family, through a proxy."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh = TestMesh()
        near, far = mesh.node(), mesh.node()
        listener = TcpListener(far.now, host=self.host)
        listener.open()
        async with serving(listener) as (accepted, stop), tcp_proxy(listener.port, host=self.host) as wire:
            candidates = [Candidate(self.host, wire.port)]
            yield Ends(near, far, TcpDialer(near.now), listener, candidates, wire, accepted, stop)


class QuicRig:
    """QUIC over UDP on loopback, through a proxy; a cut is noticed by silence only."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh = TestMesh()
        near, far = mesh.node(), mesh.node()
        listener = QuicListener(far.now, host=self.host, idle_seconds=QUIC_IDLE_SECONDS)
        listener.open()
        async with serving(listener) as (accepted, stop), udp_proxy(listener.port, host=self.host) as wire:
            candidates = [Candidate(self.host, wire.port, "udp")]
            dialer = QuicDialer(near.now, idle_seconds=QUIC_IDLE_SECONDS)
            await ticks(1)  # a `serve` that has not begun does not close what was opened
            yield Ends(near, far, dialer, listener, candidates, wire, accepted, stop)


class MemoryRig:
    """A link inside the process."""

    name = "memory"

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh, net = TestMesh(), MemoryNet()
        near, far = mesh.node(), mesh.node()
        place = Candidate("127.0.0.1", 1)
        listener = MemoryListener(net, far.now, place)
        async with serving(listener) as (accepted, stop):
            await until(lambda: place in net.listeners)
            yield Ends(near, far, MemoryDialer(net, near.now), listener, [place], net.wire, accepted, stop)


class WebRtcRig:
    """ICE, DTLS and SCTP over the loopback of one family."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh, post, wire = TestMesh(), Post(), UdpWire()
        near, far = mesh.node(), mesh.node()

        def links(node: Node, direction: str) -> WebRtcLinks:
            return WebRtcLinks(
                node.now,
                post.signals(node.peer),
                hosts=lambda: [self.host],
                open_socket=wire.opener(direction),
            )

        here, there = links(near, "up"), links(far, "down")
        async with serving(there) as (accepted, stop), serving(here):
            yield Ends(near, far, here, there, (), wire, accepted, stop)


class QuicOverIceRig:
    """QUIC over a path that ICE found."""

    name = "quic-ice"

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh, post, wire = TestMesh(), Post(), UdpWire()
        near, far = mesh.node(), mesh.node()

        def links(node: Node, direction: str) -> QuicOverIce:
            made = QuicOverIce(
                node.now,
                post.signals(node.peer),
                hosts=lambda: ["127.0.0.1"],
                open_socket=wire.opener(direction),
            )
            made.idle_seconds = QUIC_IDLE_SECONDS
            return made

        here, there = links(near, "up"), links(far, "down")
        async with serving(there) as (accepted, stop), serving(here):
            yield Ends(near, far, here, there, (), wire, accepted, stop)


class PunchedRig:
    """TCP by punching."""

    name = "punched"

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh, post = TestMesh(), Post()
        near, far = mesh.node(), mesh.node()
        async with Owner() as owner:
            wire = Proxies(owner)
            dialer = punching(near, ThroughProxies(post.signals(near.peer), wire))
            listener = punching(far, ThroughProxies(post.signals(far.peer), wire))
            try:
                async with serving(dialer), serving(listener) as (accepted, stop):
                    yield Ends(near, far, dialer, listener, (), wire, accepted, stop)
            finally:
                owner.cancel()
                wire.cut()


class RelayRig:
    """Through a real relay on loopback; the wire lies between the dialler and the relay."""

    name = "relay"

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh, key = TestMesh(), fresh_key()
        near, far = mesh.node(), mesh.node()
        relay = RelayServer(Credentials(key, None), host="127.0.0.1", limits=WIDE)
        relay.open()
        async with tcp_proxy(relay.port) as wire, Owner() as owner:
            owner.start(relay.serve(), name="relay")
            here = RelayClient([RelayHint(f"127.0.0.1:{wire.port}", key.peer)], near.now)
            there = RelayClient([relay.hint("127.0.0.1")], far.now)
            for client in (here, there):
                owner.start(client.serve(), name="client")
            listener = RelayLinks(there, far.now)
            async with serving(listener) as (accepted, stop):
                await until(lambda: relay.board.clients == 2)
                try:
                    yield Ends(near, far, RelayLinks(here, near.now), listener, (), wire, accepted, stop)
                finally:
                    await stop()  # its links end while the relay lives
            owner.cancel()


class MemberRig:
    """Through a third node that both have a stream to; the wire lies between the dialler and the third."""

    name = "member"

    @contextlib.asynccontextmanager
    async def ends(self) -> AsyncIterator[Ends]:
        mesh = TestMesh()
        near, far, third = mesh.node(), mesh.node(), mesh.node()
        async with Owner() as owner:
            star = StarMesh(third, owner)
            here, there, between = (MemberRelayLinks(node.now) for node in (near, far, third))
            for links, node in ((here, near), (there, far), (between, third)):
                links.attach(star.sessions(node))
            async with serving(here), serving(between), serving(there) as (accepted, stop):
                await ticks(2)  # until they own something
                yield Ends(near, far, here, there, (), star.wire, accepted, stop)
            owner.cancel()


def has_ipv6() -> bool:
    """Return True if this machine has ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


RIGS = [
    pytest.param(TcpRig("tcp4", "127.0.0.1"), id="tcp4"),
    pytest.param(
        TcpRig("tcp6", "::1"),
        id="tcp6",
        marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback"),
    ),
    pytest.param(QuicRig("quic4", "127.0.0.1"), id="quic4"),
    pytest.param(
        QuicRig("quic6", "::1"),
        id="quic6",
        marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback"),
    ),
    pytest.param(QuicOverIceRig(), id="quic-ice"),
    pytest.param(MemoryRig(), id="memory"),
    pytest.param(RelayRig(), id="relay"),
    pytest.param(MemberRig(), id="member"),
    pytest.param(PunchedRig(), id="punched"),
    pytest.param(WebRtcRig("webrtc4", "127.0.0.1"), id="webrtc4"),
    pytest.param(
        WebRtcRig("webrtc6", "::1"),
        id="webrtc6",
        marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback"),
    ),
]
