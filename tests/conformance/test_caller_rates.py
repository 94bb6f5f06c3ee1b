"""Listeners of real sockets: an address that proves nothing is not listened to for a moment."""

import asyncio
import socket
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from meshd.base.errors import MeshdError, Refused
from meshd.base.peer_limits import CALLS, CALLS_FAILED
from meshd.identity.keys import PeerId
from meshd.link.interface import DialError
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.engine import dialler_settings, start_dialling
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.secure.caller_rates import Callers
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted
from meshd.wire.stun import StunKind, StunMessage, encode

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.relays import House, in_house
from tests.conformance.run import until

LOOPBACK, OWN, FORGED = "127.0.0.1", "127.0.0.5", "127.0.0.9"
NONSENSE = b"GET / HTTP/1.1\r\n\r\n"
CALLS_MADE = 300


class Frozen(Callers):
    """Time stands still for it at `at`, so nothing is forgiven while a test is at work; it notes failures."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0.0
        self.failures: list[str] = []  # the address of each

    def hears(self, host: str, now: float, port: int = 0) -> bool:
        return super().hears(host, self.at, port)

    def knows(self, host: str, now: float, port: int = 0) -> bool:
        return super().knows(host, self.at, port)

    def failed(self, host: str, now: float, port: int = 0) -> None:
        self.failures.append(host)
        super().failed(host, self.at, port)

    def proven_at(self, peer: PeerId, host: str, now: float, port: int = 0) -> None:
        super().proven_at(peer, host, self.at, port)

    def refusal_reason(self, peer: PeerId, now: float) -> str | None:
        return super().refusal_reason(peer, self.at)

    def came(self, peer: PeerId, now: float) -> bool:
        return super().came(peer, self.at)


def _guarded(node: Node) -> Frozen:
    callers = Frozen()
    node.handshake = replace(node.handshake, callers=callers)
    return callers


async def _call(port: int, data: bytes) -> bytes:
    """All that is answered to `data`."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(data)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_an_address_that_proves_nothing_costs_a_bounded_number_of_handshakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = _count(monkeypatch, TcpPipe, "secure")

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    callers = _guarded(far)
    listener = TcpListener(far.now, host=LOOPBACK)
    listener.open()
    async with serving(listener) as (accepted, _):
        for _ in range(CALLS_MADE):
            await _call(listener.port, NONSENSE)
        assert len(begun) == CALLS_FAILED.burst
        assert listener.unproven == 0
        place = trusted([Candidate(LOOPBACK, listener.port)])
        with pytest.raises(MeshdError):
            await TcpDialer(near.now).dial(far.peer, place)
        callers.at += CALLS_FAILED.burst / CALLS_FAILED.per_second
        link = await TcpDialer(near.now).dial(far.peer, place)
        assert (await accepted.get()).info.peer == near.peer
        await link.aclose()


async def test_a_member_that_comes_and_goes_uses_up_its_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = _count(monkeypatch, TcpPipe, "secure")

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    callers = _guarded(far)
    for _ in range(int(CALLS.burst)):
        callers.came(near.peer, 0.0)
    listener = TcpListener(far.now, host=LOOPBACK)
    listener.open()
    async with serving(listener):
        place = trusted([Candidate(LOOPBACK, listener.port)])
        for _ in range(int(CALLS_FAILED.burst) + 20):
            with pytest.raises(MeshdError):
                await TcpDialer(near.now).dial(far.peer, place)
        await until(lambda: listener.unproven == 0)
        theirs = int(CALLS_FAILED.burst) + 20
        assert len(begun) - theirs <= CALLS_FAILED.burst


async def test_to_ask_for_the_own_address_is_no_failure() -> None:
    far = TestMesh().node()
    callers = _guarded(far)
    listener = TcpListener(far.now, host=LOOPBACK)
    listener.open()
    async with serving(listener):
        for _ in range(3):
            reader, writer = await asyncio.open_connection(LOOPBACK, listener.port)
            writer.write(encode(StunMessage(kind=StunKind.REQUEST, transaction=bytes(12))))
            assert await reader.read(64)
            writer.close()
        await until(lambda: listener.unproven == 0)
        assert not callers.failures


async def test_datagrams_whose_sender_has_not_answered_count_against_nobody() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    callers = _guarded(far)
    listener = QuicListener(far.now, host=LOOPBACK)
    listener.open()
    async with serving(listener) as (accepted, _):
        place = trusted([Candidate(LOOPBACK, listener.port, "udp")])
        link = await QuicDialer(near.now).dial(far.peer, place)
        await accepted.get()
        await link.aclose()
        first = await _first_datagram(near, far)
        listener._entrance._proof_seconds = 0.2  # of the one that never proves anything
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forged:
            forged.sendto(first, (LOOPBACK, listener.port))
            await until(lambda: listener.unproven == 1)
            await until(lambda: listener.unproven == 0)
        assert not callers.failures
        _flood(callers)
        with pytest.raises(MeshdError):
            await QuicDialer(near.now).dial(far.peer, place)


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.5 and 127.0.0.9 are not local addresses here")
@pytest.mark.parametrize(("ends", "charged"), [(FORGED, set()), (OWN, {OWN})])
async def test_a_handshake_that_another_address_seems_to_end_counts_against_nobody(
    ends: str, charged: set[str]
) -> None:
    """Who ends it itself and goes on in another's name is charged itself."""

    far = TestMesh().node()
    callers = _guarded(far)
    # the handshake that does not end is waited for, the other one fails at its first message
    listener = QuicListener(far.now, host=LOOPBACK, proof_seconds=0.3 if ends == FORGED else 5.0)
    listener.open()
    async with serving(listener):
        await _handshake(listener.port, ends=ends)
        await until(lambda: listener.unproven == 0)
        assert set(callers.failures) == charged


async def test_a_member_gets_in_by_quic_from_where_others_flood() -> None:
    mesh = TestMesh()
    near, late, far = mesh.node(), mesh.node(), mesh.node()
    callers = _guarded(far)
    listener, door = QuicListener(far.now, host=LOOPBACK), QuicListener(near.now, host=LOOPBACK)
    listener.open()
    door.open()
    async with serving(listener) as (accepted, _), serving(door):
        place = trusted([Candidate(LOOPBACK, listener.port, "udp")])
        dialer = QuicDialer(near.now, ports=door.dial_port)
        link = await dialer.dial(far.peer, place)
        await link.aclose()
        _flood(callers)
        with pytest.raises(MeshdError):
            await QuicDialer(late.now).dial(far.peer, place)
        link = await dialer.dial(far.peer, place)
        assert [(await accepted.get()).info.peer for _ in range(2)] == [near.peer] * 2
        await link.aclose()


async def test_where_a_member_was_more_is_listened_to_by_tcp() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    callers = _guarded(far)
    listener = TcpListener(far.now, host=LOOPBACK)
    listener.open()
    async with serving(listener):
        place = trusted([Candidate(LOOPBACK, listener.port)])
        await (await TcpDialer(near.now).dial(far.peer, place)).aclose()
        for _ in range(int(CALLS_FAILED.burst)):
            callers.failed(LOOPBACK, 0.0)
        await (await TcpDialer(near.now).dial(far.peer, place)).aclose()
        _flood(callers)
        with pytest.raises(MeshdError):
            await TcpDialer(near.now).dial(far.peer, place)


def _flood(callers: Callers) -> None:
    """Fail as others on this machine do, by TCP and by UDP."""
    for number in range(CALLS_MADE):
        callers.failed(LOOPBACK, 0.0, number % 2)


def test_a_caller_by_a_relay_counts_by_its_key_there() -> None:
    async def work(home: House) -> None:
        home.start()
        ann, bob, eve = await home.parties(3)
        callers = _guarded(bob.node)
        bob.node.ban(eve.node.peer)
        with pytest.raises(Refused, match="banned by a test"):
            await eve.links.dial(bob.node.peer, ())
        await until(lambda: bool(callers.failures))
        [hers] = callers.failures
        for _ in range(int(CALLS_FAILED.burst)):
            callers.failed(hers, 0.0)
        with pytest.raises(DialError):
            await eve.links.dial(bob.node.peer, ())
        mine, _ = await ann.pair(bob)
        await mine.aclose()
        assert set(callers.failures) == {hers}

    in_house(work)


async def _handshake(port: int, *, ends: str) -> None:
    """Begun from OWN, ended from `ends`; one datagram of the stream follows from FORGED at once."""
    loop, far = asyncio.get_running_loop(), Origin((LOOPBACK, port))
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forged,
    ):
        own.setblocking(False)
        own.bind((OWN, 0))
        forged.bind((FORGED, 0))
        engine = start_dialling(dialler_settings(idle_seconds=15.0), far, loop.time())
        for data, _ in engine.datagrams_to_send(loop.time()):
            own.sendto(data, far.address)
        while not engine.secured:
            engine.receive_datagram(await loop.sock_recv(own, 2048), far, loop.time())
            engine.poll()
            for data, _ in engine.datagrams_to_send(loop.time()):
                (own if ends == OWN else forged).sendto(data, far.address)
        engine.write([b"nothing that proves anything"])
        for data, _ in engine.datagrams_to_send(loop.time()):
            forged.sendto(data, far.address)


async def _first_datagram(near: Node, far: Node) -> bytes:
    """Return what a dialler sends first, to somebody who never answers."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind((LOOPBACK, 0))
        silent.setblocking(False)
        place = trusted([Candidate(LOOPBACK, silent.getsockname()[1], "udp")])
        dial = asyncio.ensure_future(QuicDialer(near.now).dial(far.peer, place))
        try:
            return await loop.sock_recv(silent, 2048)
        finally:
            dial.cancel()
            await asyncio.gather(dial, return_exceptions=True)


def _count(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[None]:
    """Each call of a coroutine method."""
    calls: list[None] = []
    method: Callable[[object], object] = getattr(kind, name)

    def counted(self: object) -> object:
        calls.append(None)
        return method(self)

    monkeypatch.setattr(kind, name, counted)
    return calls
