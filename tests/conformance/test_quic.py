"""QUIC links beyond what all kinds must do: refusals, joining, strangers, moves, narrow paths."""

import asyncio
import contextlib
import random
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from meshd.base.errors import MeshdError, Refused
from meshd.link.interface import DialError, DialFailure, Link
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic import links
from meshd.link.quic.engine import Reception, dialler_settings, start_dialling
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.quic.over_ice import QuicOverIce
from meshd.link.secure.joining import OnJoiner
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted
from meshd.wire.signal import Answer, decode_offer

from tests.conformance.links import QUIC_IDLE_SECONDS, has_ipv6, serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.post import Post
from tests.conformance.run import DEADLINE, run, ticks, until
from tests.conformance.udp_proxy import udp_proxy

LOOPBACK = "127.0.0.1"
SETTINGS = dialler_settings(idle_seconds=15.0)


@contextlib.asynccontextmanager
async def listening(
    node: Node,
    *,
    host: str = LOOPBACK,
    on_joiner: OnJoiner | None = None,
    proof_seconds: float = 2 * DEADLINE,
) -> AsyncIterator[tuple[QuicListener, asyncio.Queue[Link]]]:
    listener = QuicListener(node.now, host=host, on_joiner=on_joiner, proof_seconds=proof_seconds)
    listener.open()
    try:
        async with serving(listener) as (accepted, _):
            await ticks(1)
            yield listener, accepted
    finally:
        listener.close()


def place(listener: QuicListener, host: str = LOOPBACK) -> list[Candidate]:
    return [Candidate(host, listener.port, "udp")]


async def failure(dialling: object) -> MeshdError:
    with pytest.raises(MeshdError) as caught:
        await dialling  # type: ignore[misc]
    return caught.value


async def test_refusals_say_why() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted):
        banned = mesh.node()
        far.ban(banned.peer)
        error = await failure(QuicDialer(banned.now).dial(far.peer, trusted(place(listener))))
        assert isinstance(error, Refused)
        assert error.code == "banned"
        error = await failure(QuicDialer(near.now).dial(mesh.node().peer, trusted(place(listener))))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER
        assert accepted.empty()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells that nobody listens")
def test_nobody_listens() -> None:
    async def work() -> None:
        mesh = TestMesh()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        dialer = QuicDialer(mesh.node().now)
        error = await failure(dialer.dial(mesh.root.peer, trusted([Candidate(LOOPBACK, port, "udp")])))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.REFUSED
        error = await failure(dialer.dial(mesh.root.peer, trusted([Candidate(LOOPBACK, port)])))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.UNREACHABLE

    run(work())


def test_an_address_that_never_answers_does_not_hold_up_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    for patience in ("CONNECT_SECONDS", "ATTEMPT_SECONDS"):
        monkeypatch.setattr(links, patience, 2 * DEADLINE)

    async def work() -> None:
        mesh = TestMesh()
        near, far = mesh.node(), mesh.node()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind((LOOPBACK, 0))
            async with listening(far) as (listener, accepted):
                first = Candidate(LOOPBACK, silent.getsockname()[1], "udp")
                link = await QuicDialer(near.now).dial(far.peer, trusted([first, *place(listener)]))
                assert link.info.remote == f"{LOOPBACK}:{listener.port}"
                assert link.info.path == (await accepted.get()).info.path == "loopback"
                await link.aclose()

    run(work())  # before the first address would be given up


async def test_both_families_on_one_port() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far, host="") as (listener, accepted):
        for host in (LOOPBACK, "::1") if has_ipv6() else (LOOPBACK,):
            link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener, host)))
            assert host in (await accepted.get()).info.local
            await link.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is not a local address here")
async def test_the_answer_comes_from_the_address_that_was_asked() -> None:
    """On a machine with several addresses the kernel would choose another one."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far, host="") as (listener, accepted):
        link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener, "127.0.0.7")))
        assert (await accepted.get()).info.local.startswith("127.0.0.7:")
        await link.aclose()


async def test_a_dial_from_the_listeners_own_port() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted), listening(near, host="") as (own, _):
        dialer = QuicDialer(near.now, ports=own.dial_port)
        link = await dialer.dial(far.peer, trusted(place(listener)))
        assert (await accepted.get()).info.remote == f"{LOOPBACK}:{own.port}"
        await link.aclose()


def knock(source: str, port: int) -> socket.socket:
    """A stranger's first datagram, and the socket that it came from."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((source, 0))
    engine = start_dialling(SETTINGS, Origin((LOOPBACK, port)), 1.0)
    sock.sendto(engine.datagrams_to_send(1.0)[0][0], (LOOPBACK, port))
    return sock


async def test_one_address_meets_retry_from_its_third_connection_on() -> None:
    """A datagram's address may be forged: what is sent there stays little."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, _):
        with contextlib.ExitStack() as stack:
            stack.enter_context(knock(LOOPBACK, listener.port))
            await until(lambda: listener.unproven == 1)  # the library is loaded by now
            stack.enter_context(knock(LOOPBACK, listener.port))
            await until(lambda: listener.unproven == 2)
            third = stack.enter_context(knock(LOOPBACK, listener.port))
            third.setblocking(False)
            answer = await asyncio.get_running_loop().sock_recv(third, 2048)
            assert answer[0] & 0xF0 == 0xF0 and len(answer) < 400  # a Retry, RFC 9000 section 17.2.5
            assert listener.unproven == 2
            link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener)))
            await link.aclose()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and on are not local addresses here")
async def test_few_strangers_wait_at_once() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, _):
        with contextlib.ExitStack() as stack:
            stack.enter_context(knock(LOOPBACK, listener.port))
            await until(lambda: listener.unproven == 1)  # the library is loaded by now
            for number in range(100):
                stack.enter_context(knock(f"127.0.1.{1 + number}", listener.port))
            await ticks(200)
            # from 16 on strangers are asked to come again with a token; these never do
            assert listener.unproven == 16
            link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener)))
            await link.aclose()


async def test_noise_makes_no_connection() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    rng = random.Random(3)
    async with listening(far) as (listener, _):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for first in range(0, 256, 3):
                data = bytes([first]) + rng.randbytes(rng.choice((0, 5, 40, 1199, 1400)))
                sock.sendto(data, (LOOPBACK, listener.port))
            await ticks(50)
            assert listener.unproven == 0
        link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener)))
        await link.aclose()


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_datagram_at_which_the_library_fails_does_not_end_the_listener(
    loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first one, which waits until the library is there."""
    initial = b"\xc0\x00\x00\x00\x01\x08" + bytes(1194)
    failed = asyncio.Event()

    def first(_self: Reception, data: bytes, *_rest: object, busy: bool) -> None:
        if data == initial:
            failed.set()
            raise RuntimeError("a defect of the library")

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted):
        if loaded:
            await (await QuicDialer(near.now).dial(far.peer, trusted(place(listener)))).aclose()
            await (await accepted.get()).aclose()
        with monkeypatch.context() as patch, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            patch.setattr(Reception, "first", first)
            sock.sendto(initial, (LOOPBACK, listener.port))
            await failed.wait()
        link = await QuicDialer(near.now).dial(far.peer, trusted(place(listener)))
        await link.aclose()
        await (await accepted.get()).aclose()


async def test_what_is_not_quic_goes_elsewhere() -> None:
    heard: list[bytes] = []
    node = TestMesh().node()
    listener = QuicListener(
        node.now, host=LOOPBACK, on_other=lambda data, origin: listener.send_other(data[::-1], origin)
    )
    listener.open()
    async with serving(listener):
        await ticks(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((LOOPBACK, 0))
            sock.sendto(b"\x00\x01stun", (LOOPBACK, listener.port))
            heard.append(await asyncio.get_running_loop().sock_recv(sock, 100))
    assert heard == [b"nuts\x01\x00"]


async def test_a_link_outlives_its_address() -> None:
    """A router forgets, or the machine is in another network: the same link goes on from the new address."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    data = random.Random(4).randbytes(3_000_000)
    async with listening(far) as (listener, accepted), udp_proxy(listener.port) as wire:
        dialer = QuicDialer(near.now, idle_seconds=QUIC_IDLE_SECONDS)
        link = await dialer.dial(far.peer, trusted([Candidate(LOOPBACK, wire.port, "udp")]))
        other = await accepted.get()
        got = bytearray()
        sending = asyncio.get_running_loop().create_task(send_all(link, data))
        while len(got) < len(data):
            before = len(got)
            got += await other.receive()
            if before < 1_000_000 <= len(got) or before < 2_000_000 <= len(got):
                wire.move()
                await other.send([b"are you there?"])
        await sending
        assert bytes(got) == data
        assert (await link.receive()).startswith(b"are you there?")
        await link.aclose()


async def send_all(link: Link, data: bytes) -> None:
    for at in range(0, len(data), 50_000):
        await link.send([data[at : at + 50_000]])


@pytest.mark.parametrize("most", [1250, 1410])
async def test_a_narrow_path_carries_all(most: int) -> None:
    """Datagrams that are too long vanish, and nobody is told."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted), udp_proxy(listener.port) as wire:
        wire.most_bytes = most
        link = await QuicDialer(near.now).dial(far.peer, trusted([Candidate(LOOPBACK, wire.port, "udp")]))
        other = await accepted.get()
        sending = asyncio.get_running_loop().create_task(send_all(link, bytes(1_000_000)))
        count = 0
        while count < 1_000_000:
            count += len(await other.receive())
        await sending
        wire.most_bytes = 1250  # and it becomes narrower
        sending = asyncio.get_running_loop().create_task(send_all(link, bytes(1_000_000)))
        while count < 2_000_000:
            count += len(await other.receive())
        await sending
        await link.aclose()


async def test_over_ice_the_certificate_must_be_the_one_of_the_answer() -> None:
    mesh, post = TestMesh(), Post()
    near, far = mesh.node(), mesh.node()

    def tamper(payload: bytes) -> bytes:
        signal = decode_offer(payload)
        if isinstance(signal, Answer):
            signal = replace(signal, terms=replace(signal.terms, fingerprint=bytes(32)))
            return signal.encode()
        return payload

    here, there = (
        QuicOverIce(node.now, post.signals(node.peer), hosts=lambda: [LOOPBACK]) for node in (near, far)
    )
    async with serving(there) as (accepted, _), serving(here):
        link = await here.dial(far.peer, ())
        assert link.info.kind is here.kind
        await link.aclose()
        await (await accepted.get()).aclose()
        post.tamper = tamper
        error = await failure(here.dial(far.peer, ()))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER
        assert accepted.empty()
