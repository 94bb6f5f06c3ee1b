"""Asking STUN servers: several, silent ones, lying ones; over UDP and TCP."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.link.net.stun import (
    Question,
    ReflexivePort,
    ask_udp,
    bound_socket,
    resolve,
    stun_server,
    tcp_mapping,
)
from meshd.link.tcp.links import TcpListener
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted
from meshd.wire.stun import Endpoint, StunKind, StunMessage, answer_to, decode, encode

from tests.conformance.links import has_ipv6, serving
from tests.conformance.nodes import TestMesh
from tests.conformance.run import until

HOSTS = [
    pytest.param("127.0.0.1", id="v4"),
    pytest.param("::1", id="v6", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")),
]


def family_of(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class UdpServer:
    """Answers as told; notes what it was sent."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.sock = bound_socket(family_of(host), socket.SOCK_DGRAM, host=host)
        self.endpoint = Endpoint(host, self.sock.getsockname()[1])
        self.deaf = 0  # requests to ignore first
        self.requests: list[StunMessage] = []
        self.before = b""  # sent in front of an answer

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data, place = self.sock.recvfrom(2000)
            with contextlib.suppress(RemoteProtocolError):
                self.requests.append(decode(data))
            self.deaf -= 1
            if self.deaf < 0:
                if self.before:
                    self.sock.sendto(self.before, place)
                answer = answer_to(data, Endpoint(place[0], place[1]))
                self.sock.sendto(answer or b"", place)


@contextlib.asynccontextmanager
async def udp_server(host: str = "127.0.0.1") -> AsyncIterator[UdpServer]:
    server = UdpServer(host)
    asyncio.get_running_loop().add_reader(server.sock, server.read)
    try:
        yield server
    finally:
        asyncio.get_running_loop().remove_reader(server.sock)
        server.sock.close()


@pytest.mark.parametrize("host", HOSTS)
async def test_all_are_asked_and_a_lost_request_is_sent_again(host: str) -> None:
    async with udp_server(host) as first, udp_server(host) as second:
        second.deaf = 2
        with bound_socket(family_of(host), socket.SOCK_DGRAM, host=host) as sock:
            own = Endpoint(host, sock.getsockname()[1])
            asked = [Question(server=server.endpoint) for server in (first, second)]
            answers = await ask_udp(sock, asked, seconds=20)
        assert [answer and answer.mapped for answer in answers] == [own, own]
        assert [answer and answer.source for answer in answers] == [first.endpoint, second.endpoint]
        assert len({request.transaction for request in second.requests}) == 1


async def test_a_silent_server_costs_only_its_own_answer() -> None:
    async with udp_server() as good, udp_server() as silent:
        silent.deaf = 1000
        asked = [Question(server=silent.endpoint), Question(server=good.endpoint)]
        with bound_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answers = await ask_udp(sock, asked, seconds=20, grace=0.01)
            assert answers[0] is None
            assert answers[1] is not None
            assert await ask_udp(sock, asked[:1], seconds=0.01) == [None]
            assert await ask_udp(sock, [], seconds=20) == []


async def test_a_server_with_one_address_does_not_change_it() -> None:
    async with udp_server() as server:
        question = Question(server=server.endpoint, change_ip=True, change_port=True)
        with bound_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            assert await ask_udp(sock, [question], seconds=0.05) == [None]
        assert (server.requests[0].change_ip, server.requests[0].change_port) == (True, True)


async def test_what_else_comes_is_handed_on() -> None:
    async with udp_server() as server:
        server.before = b"hello"
        seen: list[tuple[bytes, Endpoint]] = []
        with bound_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answers = await ask_udp(
                sock,
                [Question(server=server.endpoint)],
                seconds=20,
                other=lambda data, source: seen.append((data, source)),
            )
        assert answers[0] is not None
        assert seen == [(b"hello", server.endpoint)]


async def test_an_answer_to_another_question_is_none() -> None:
    async with udp_server() as server:
        mapped = Endpoint("203.0.113.1", 1)
        server.before = encode(StunMessage(kind=StunKind.SUCCESS, transaction=b"guessed this", mapped=mapped))
        with bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host="127.0.0.1") as sock:
            own = sock.getsockname()[1]
            answers = await ask_udp(sock, [Question(server=server.endpoint)], seconds=20)
        assert answers[0] is not None
        assert answers[0].mapped == Endpoint("127.0.0.1", own)


async def test_cancelled_anywhere_it_leaves_the_socket_alone() -> None:
    async with udp_server() as silent:
        silent.deaf = 1000
        with bound_socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await ask_udp(sock, [Question(server=silent.endpoint)], seconds=20)
            silent.deaf = 0
            answers = await ask_udp(sock, [Question(server=silent.endpoint)], seconds=20)
            assert answers[0] is not None


@pytest.mark.parametrize("host", HOSTS)
async def test_a_member_tells_over_tcp_where_one_comes_from(host: str) -> None:
    """From one port, to two listeners of the mesh, beside the links that those take in."""
    mesh = TestMesh()
    listeners = [TcpListener(mesh.node().now, host=host) for _ in range(2)]
    for listener in listeners:
        listener.open()
    async with serving(listeners[0]), serving(listeners[1]):
        servers = [Endpoint(host, listener.port) for listener in listeners]
        with bound_socket(family_of(host), socket.SOCK_STREAM) as held:
            port = held.getsockname()[1]
            async with tcp_mapping(port, servers, family=family_of(host), seconds=20, grace=20) as seen:
                assert {answer.server for answer in seen.answers} == set(servers)
                assert {answer.mapped for answer in seen.answers} == {Endpoint(host, port)}
            await until(lambda: not any(listener.unproven for listener in listeners))


async def test_tcp_servers_that_are_dead_silent_or_strange() -> None:
    async def strange(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    with bound_socket(socket.AF_INET, socket.SOCK_STREAM) as dead:
        server = await asyncio.start_server(strange, "127.0.0.1", 0)
        silent = socket.create_server(("127.0.0.1", 0))
        async with server:
            ports = [one.getsockname()[1] for one in (dead, silent, server.sockets[0])]
            servers = [Endpoint("127.0.0.1", port) for port in ports]
            async with tcp_mapping(0, servers, family=socket.AF_INET, seconds=0.3) as seen:
                assert seen.answers == []
            async with tcp_mapping(0, [], family=socket.AF_INET, seconds=20) as seen:
                assert seen.answers == []
        silent.close()


@pytest.mark.parametrize("number", range(12))
async def test_a_mapping_that_is_cancelled_closes_its_sockets(number: int) -> None:
    listener = TcpListener(TestMesh().node().now, host="127.0.0.1")
    listener.open()
    async with serving(listener):
        server = [Endpoint("127.0.0.1", listener.port)]

        async def ask() -> None:
            async with tcp_mapping(0, server, family=socket.AF_INET, seconds=20):
                pass

        task = asyncio.get_running_loop().create_task(ask())
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_names_are_looked_up() -> None:
    texts = ["127.0.0.1:5", "[::1]:6", "::1", "127.0.0.2", "no such name.invalid:7", "127.0.0.1:5"]
    found = await resolve(texts, seconds=20)
    assert Endpoint("127.0.0.1", 5) in found
    assert Endpoint("127.0.0.2", 3478) in found
    assert len(found) == len(set(found))
    if has_ipv6():
        assert Endpoint("::1", 6) in found
        assert Endpoint("::1", 3478) in found


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("stun.example.org", ("stun.example.org", 3478)),
        ("stun:stun.example.org:19302", ("stun.example.org", 19302)),
        ("192.0.2.1:3479", ("192.0.2.1", 3479)),
        ("[2001:db8::1]:3479", ("2001:db8::1", 3479)),
        ("[2001:db8::1]", ("2001:db8::1", 3478)),
        ("2001:db8::1", ("2001:db8::1", 3478)),
    ],
)
def test_servers_as_people_write_them(text: str, server: tuple[str, int]) -> None:
    assert stun_server(text) == server


@pytest.mark.parametrize("text", ["", ":3478", "host:", "host:0", "host:70000", "host:x", "[]:3478"])
def test_what_is_no_server(text: str) -> None:
    with pytest.raises(UserError):
        stun_server(text)


SERVER, OTHER = Endpoint("127.0.0.1", 3478), Endpoint("127.0.0.2", 3478)


@dataclass
class Wire:
    sent: list[tuple[StunMessage, Endpoint]] = field(default_factory=list)
    changes: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, data: bytes, to: Endpoint) -> None:
        self.sent.append((decode(data), to))
        self.came.set()

    def changed(self) -> None:
        self.changes += 1

    def reflexive(self, servers: Sequence[Endpoint]) -> ReflexivePort:
        return ReflexivePort(
            send=self.send, servers=lambda: [str(one) for one in servers], changed=self.changed
        )


def answer(question: StunMessage, mapped: Endpoint) -> bytes:
    return encode(StunMessage(kind=StunKind.SUCCESS, transaction=question.transaction, mapped=mapped))


async def asked(wire: Wire, reflexive: ReflexivePort, count: int) -> None:
    async with Owner() as owner:
        owner.start(reflexive.serve(), name="reflexive")
        async with asyncio.timeout(10):
            while len(wire.sent) < count:
                wire.came.clear()
                await wire.came.wait()
        owner.cancel()


def test_what_a_server_sees_is_a_candidate() -> None:
    wire = Wire()
    reflexive = wire.reflexive([SERVER, OTHER])
    asyncio.run(asked(wire, reflexive, 2))
    seen = Endpoint("198.51.100.7", 40000)
    for question, server in wire.sent[:2]:
        reflexive.heard(answer(question, seen), server)
    assert reflexive.candidates() == (Candidate("198.51.100.7", 40000, "udp", "srflx"),)
    assert reflexive.same_everywhere
    assert wire.changes == 1


def test_a_symmetric_nat_shows() -> None:
    wire = Wire()
    reflexive = wire.reflexive([SERVER, OTHER])
    asyncio.run(asked(wire, reflexive, 2))
    for port, (question, server) in enumerate(wire.sent[:2], start=40000):
        reflexive.heard(answer(question, Endpoint("198.51.100.7", port)), server)
    assert reflexive.same_everywhere is False


def test_answers_of_others_say_nothing() -> None:
    wire = Wire()
    reflexive = wire.reflexive([SERVER])
    asyncio.run(asked(wire, reflexive, 1))
    question = wire.sent[0][0]
    seen = Endpoint("203.0.113.66", 1)
    reflexive.heard(answer(question, seen), OTHER)  # not the one that was asked
    reflexive.heard(answer(question, seen), SERVER)  # and the question is answered only once
    reflexive.heard(encode(StunMessage(kind=StunKind.SUCCESS, transaction=bytes(12), mapped=seen)), SERVER)
    reflexive.heard(b"\0" * 20, SERVER)
    assert reflexive.candidates() == ()
    assert wire.changes == 0


def test_punching_sends_small_datagrams_to_each_address() -> None:
    wire = Wire()
    targets = [Candidate("198.51.100.7", 40000, "udp"), Candidate("198.51.100.8", 40001, "udp")]
    asyncio.run(wire.reflexive([]).punch(trusted(targets), 0.3))
    assert {to for _, to in wire.sent} == {Endpoint(one.host, one.port) for one in targets}
    assert {message.kind for message, _ in wire.sent} == {StunKind.INDICATION}
