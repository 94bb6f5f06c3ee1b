"""TCP links beyond what all kinds must do: refusals, races between addresses, joining, the man in between."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
from meshd.base.errors import EndOfStream, LocalProtocolError, MeshdError, Refused
from meshd.base.tasks import Owner
from meshd.identity.invite import derive
from meshd.identity.proof import Proven, Purpose
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.buffered_pipe import MAX_SEND_BYTES
from meshd.link.interface import DialError, DialFailure, Link
from meshd.link.net.happy_eyeballs import dial_order
from meshd.link.secure.joining import Joining
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.links import ATTEMPT_SECONDS, TcpDialer, TcpListener, dial_join
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import has_ipv6, serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.run import run, until

LOOPBACK = "127.0.0.1"
needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@contextlib.asynccontextmanager
async def listening(
    node: Node, *, host: str = LOOPBACK
) -> AsyncIterator[tuple[TcpListener, asyncio.Queue[Link]]]:
    listener = TcpListener(node.now, host=host)
    listener.open()
    try:
        async with serving(listener) as (accepted, _):
            yield listener, accepted
    finally:
        listener.close()


async def failure(dialling: "asyncio.Future[object] | object") -> MeshdError:
    """The error of a dial that must not succeed."""
    with pytest.raises(MeshdError) as caught:
        await dialling  # type: ignore[misc]
    return caught.value


async def test_refusals_say_why() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted):
        places = [Candidate(LOOPBACK, listener.port)]
        banned = mesh.node()
        far.ban(banned.peer)
        error = await failure(TcpDialer(banned.now).dial(far.peer, trusted(places)))
        assert isinstance(error, Refused)
        assert error.code == "banned"
        foreigner = TestMesh().node()
        error = await failure(TcpDialer(foreigner.now).dial(far.peer, trusted(places)))
        assert isinstance(error, Refused)
        assert error.code == "mesh"
        assert error.hint
        error = await failure(TcpDialer(near.now).dial(mesh.node().peer, trusted(places)))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER
        near.ban(far.peer)
        error = await failure(TcpDialer(near.now).dial(far.peer, trusted(places)))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.HANDSHAKE
        assert accepted.empty()


async def test_nobody_listens() -> None:
    mesh = TestMesh()
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    dialer = TcpDialer(mesh.node().now)
    error = await failure(dialer.dial(mesh.root.peer, trusted([Candidate(LOOPBACK, port)])))
    assert isinstance(error, DialError)
    assert error.failure is DialFailure.REFUSED
    assert f"`{LOOPBACK}:{port}`" in error.what
    error = await failure(dialer.dial(mesh.root.peer, trusted([Candidate(LOOPBACK, port, "udp")])))
    assert isinstance(error, DialError)
    assert error.failure is DialFailure.UNREACHABLE


def test_an_address_that_accepts_and_never_answers_does_not_hold_up_the_next() -> None:
    async def work() -> None:
        mesh = TestMesh()
        near, far = mesh.node(), mesh.node()
        with socket.create_server((LOOPBACK, 0)) as silent:
            async with listening(far) as (listener, accepted):
                places = [Candidate(LOOPBACK, silent.getsockname()[1]), Candidate(LOOPBACK, listener.port)]
                assert dial_order(trusted(places), "tcp") == places
                link = await TcpDialer(near.now).dial(far.peer, trusted(places))
                assert link.info.remote == f"{LOOPBACK}:{listener.port}"
                await (await accepted.get()).aclose()
                await link.aclose()
                # the loser has hung up
                connection, _ = silent.accept()
                with connection:
                    connection.settimeout(5)
                    with contextlib.suppress(ConnectionError):
                        while connection.recv(4096):
                            pass

    run(work(), seconds=ATTEMPT_SECONDS - 2)  # before the first address would be given up


async def test_what_the_peer_said_wins_over_other_failures() -> None:
    mesh = TestMesh()
    near, far, other = mesh.node(), mesh.node(), mesh.node()
    far.ban(near.peer)
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    async with listening(far) as (listener, _), listening(other) as (elsewhere, _):
        places = [Candidate(LOOPBACK, number) for number in (port, elsewhere.port, listener.port)]
        for order in (places, places[::-1]):
            error = await failure(TcpDialer(near.now).dial(far.peer, trusted(order)))
            assert isinstance(error, Refused)
            assert error.code == "banned"
        error = await failure(TcpDialer(near.now).dial(far.peer, trusted(places[:2])))
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER  # it came further than "refused"


@needs_ipv6
async def test_both_families_on_one_port() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far, host="") as (listener, _):
        hosts = [candidate.host for candidate in listener.candidates()]
        assert {LOOPBACK, "::1"} <= set(hosts)
        assert set(hosts[-2:]) == {LOOPBACK, "::1"}
        assert {candidate.port for candidate in listener.candidates()} == {listener.port}
        for host in (LOOPBACK, "::1"):
            link = await TcpDialer(near.now).dial(far.peer, trusted([Candidate(host, listener.port)]))
            assert link.info.path == "loopback"
            assert link.info.remote == Candidate(host, listener.port).place
            await link.aclose()
        link = await TcpDialer(near.now).dial(far.peer, trusted(listener.candidates()))
        await link.aclose()


async def test_a_bound_listener_offers_its_address_only() -> None:
    async with listening(TestMesh().node()) as (listener, _):
        assert list(listener.candidates()) == [Candidate(LOOPBACK, listener.port)]


async def forward(source: TcpPipe, sink: TcpPipe) -> None:
    with contextlib.suppress(MeshdError):
        while True:
            await sink.send([await source.receive()])
    await sink.aclose()


@contextlib.asynccontextmanager
async def man_in_the_middle(target: int) -> AsyncIterator[int]:
    """Ends TLS with a certificate of its own and hands everything inside on; yields its port."""
    loop = asyncio.get_running_loop()
    context = listener_context(make_link_certificate())

    async with Owner() as owner:

        async def handle(near: TcpPipe) -> None:
            far = TcpPipe(dialer_context(), server_side=False)
            await loop.create_connection(lambda: far, LOOPBACK, target)
            await near.secure()
            await far.secure()
            async with Owner() as inner:
                inner.start(forward(near, far), name="up")
                inner.start(forward(far, near), name="down")

        def made(pipe: TcpPipe) -> None:
            owner.start(handle(pipe), name="middle")

        server = await loop.create_server(
            lambda: TcpPipe(context, server_side=True, on_made=made), LOOPBACK, 0
        )
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            owner.cancel()


async def test_a_man_in_the_middle_cannot_pass_the_proof_on() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    keys = derive(b"s" * 16)
    far.invite(keys)
    joined: list[Proven] = []

    async def on_joiner(joining: Joining) -> bool:
        joined.append(joining.proven)
        return False

    listener = TcpListener(far.now, host=LOOPBACK, on_joiner=on_joiner)
    listener.open()
    async with serving(listener) as (accepted, _), man_in_the_middle(listener.port) as port:
        there = [Candidate(LOOPBACK, port)]
        error = await failure(TcpDialer(near.now).dial(far.peer, trusted(there)))
        assert isinstance(error, Refused)
        assert error.code == "signature"
        guest = mesh.stranger()
        error = await failure(
            dial_join(trusted(there), handshake=guest.handshake, inviter=far.peer, join=keys)
        )
        assert isinstance(error, Refused)
        assert error.code == "signature"
        assert accepted.empty()
        assert not joined
        # the same dials without somebody in between
        here = [Candidate(LOOPBACK, listener.port)]
        await (await TcpDialer(near.now).dial(far.peer, trusted(here))).aclose()
        joining = await dial_join(trusted(here), handshake=guest.handshake, inviter=far.peer, join=keys)
        await joining.aclose()


async def test_a_listener_with_another_key_is_found_out() -> None:
    """It forwards nothing: it claims to be the one sought, and signs with what it has."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    from meshd.identity.proof import Credentials
    from meshd.link.secure.handshake import HandshakeContext

    class Impostor:
        """Far's public half with a key of its own."""

        peer = far.peer
        sign = mesh.node().key.sign

    chain = far.handshake.credentials.chain
    fake = HandshakeContext(credentials=Credentials(Impostor(), chain), mesh=mesh.mesh)  # type: ignore[arg-type]
    async with listening(Node(far.key, fake)) as (listener, _):
        error = await failure(
            TcpDialer(near.now).dial(far.peer, trusted([Candidate(LOOPBACK, listener.port)]))
        )
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER


@pytest.mark.parametrize("known", [True, False])
def test_joining(known: bool) -> None:
    async def work() -> None:
        mesh = TestMesh()
        inviter, guest = mesh.node(), mesh.stranger()
        keys = derive(b"0123456789abcdef")
        if known:
            inviter.invite(keys)
        seen: list[Proven] = []

        async def on_joiner(joining: Joining) -> bool:
            seen.append(joining.proven)
            await joining.send([b"welcome, ", await joining.receive()])
            return False

        listener = TcpListener(inviter.now, host=LOOPBACK, on_joiner=on_joiner)
        listener.open()
        async with serving(listener):
            places = [Candidate(LOOPBACK, listener.port)]
            joining = dial_join(trusted(places), handshake=guest.handshake, inviter=inviter.peer, join=keys)
            if not known:
                error = await failure(joining)
                assert isinstance(error, Refused)
                assert error.code == "unknown"
                assert not seen
                return
            pipe = await joining
            proven = pipe.proven
            assert (proven.peer, proven.purpose, proven.leftover) == (inviter.peer, Purpose.JOIN, b"")
            await pipe.send([b"guest"])
            answer = b""
            with contextlib.suppress(EndOfStream):
                while True:
                    answer += await pipe.receive()
            assert answer == b"welcome, guest"
            await pipe.aclose()
            assert [(one.peer, one.invite_id, one.member) for one in seen] == [
                (guest.peer, keys.invite_id, None)
            ]

    run(work())


async def test_data_right_behind_the_proof_is_not_lost() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, accepted):
        for _ in range(20):
            link = await TcpDialer(near.now).dial(far.peer, trusted([Candidate(LOOPBACK, listener.port)]))
            await link.send([b"first"])
            await link.send([b"second"])
            other = await accepted.get()
            got = b""
            while len(got) < 11:
                got += await other.receive()
            assert got == b"firstsecond"
            await link.aclose()


async def test_an_accept_that_fails_ends_its_link_only() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    listener = TcpListener(far.now, host=LOOPBACK)
    listener.open()

    async def accept(link: Link) -> None:
        if await link.receive() == b"fail":
            raise MeshdError("as asked")
        await link.send([b"fine"])

    async with Owner() as owner:
        owner.start(listener.serve(accept), name="serve")
        for word, answer in ((b"fail", b""), (b"work", b"fine")):
            link = await TcpDialer(near.now).dial(far.peer, trusted([Candidate(LOOPBACK, listener.port)]))
            await link.send([word])
            got = b""
            with contextlib.suppress(EndOfStream):
                while True:
                    got += await link.receive()
            assert got == answer
            await link.aclose()
        owner.cancel()


async def test_connections_wait_for_serve() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    listener = TcpListener(far.now, host=LOOPBACK)
    assert listener.candidates() == ()
    listener.open()
    dialling = asyncio.get_running_loop().create_task(
        TcpDialer(near.now).dial(far.peer, trusted(listener.candidates()))
    )
    await asyncio.sleep(0)
    async with serving(listener):
        await (await dialling).aclose()
    unused = TcpListener(far.now, host=LOOPBACK)
    with pytest.raises(LocalProtocolError):
        await unused.serve(lambda link: link.aclose())
    unused.open()
    unused.close()


async def test_too_much_in_one_send_is_our_own_fault() -> None:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    async with listening(far) as (listener, _):
        link = await TcpDialer(near.now).dial(far.peer, trusted(listener.candidates()))
        with pytest.raises(LocalProtocolError):
            await link.send([bytes(MAX_SEND_BYTES), b"x"])
        await link.aclose()


async def test_a_reader_that_stops_leaves_a_bounded_heap() -> None:
    """64 tiny sends a turn, none read: what waits here is bounded in bytes, small chunks counted as such."""

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    pipes: list[TcpPipe] = []
    original: Callable[..., None] = TcpPipe.widen

    def spy(self: TcpPipe) -> None:
        pipes.append(self)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TcpPipe, "widen", spy)
        async with listening(far) as (listener, accepted):
            link = await TcpDialer(near.now).dial(far.peer, trusted(listener.candidates()))
            await accepted.get()
            await until(lambda: len(pipes) == 2)
            try:
                async with asyncio.timeout(1.0):
                    while True:
                        await link.send([b"x"])
            except TimeoutError:
                pass
            receiving = next(pipe for pipe in pipes if pipe.remote == link.info.local)
            assert receiving.unread_bytes <= (256 << 10) + (256 << 10)
            await link.aclose()
