"""Which mesh port: asked for, kept, the first free of sixteen; a taken one names its holder. STUN answers."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from meshd.base.errors import UserError
from meshd.base.peer_limits import STUN_ANSWERS_IN_ALL
from meshd.config.forms import HostPort
from meshd.config.tree import DEFAULT_MESH_PORT, MESH_PORT_TRIES
from meshd.daemon.mesh_port import MeshPort, open_listener
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.keystore import Home
from meshd.identity.membership import Chain, issue
from meshd.identity.proof import Credentials
from meshd.link.net.one_port import PortTaken
from meshd.link.net.udp_sockets import Origin
from meshd.link.secure.caller_rates import Callers
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.joining import Joining
from meshd.link.tcp.links import TcpListener
from meshd.wire.stun import StunKind, StunMessage, encode

from tests.conformance.nodes import TestMesh

FIRST, LAST = DEFAULT_MESH_PORT, DEFAULT_MESH_PORT + MESH_PORT_TRIES - 1


class FakeListener:
    """Knows which ports are taken."""

    taken: frozenset[int] = frozenset()
    tried: list[tuple[str, int]]

    def __init__(self, host: str, port: int) -> None:
        self.host, self.asked = host, port
        self.port = port or 50_000

    def open(self) -> None:
        FakeListener.tried.append((self.host, self.asked))
        if self.asked in FakeListener.taken:
            raise PortTaken(self.asked, self.host, "`nginx` (pid 7)")


def choose(home: Home, asked: HostPort | None = None, *, taken: frozenset[int] = frozenset()) -> int:
    FakeListener.taken = taken
    FakeListener.tried = []
    made = open_listener(
        lambda host, port: cast(TcpListener, FakeListener(host, port)), asked=asked, home=home
    )
    return made.port


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_the_default_port_is_taken_and_kept(home: Home) -> None:
    assert choose(home) == FIRST
    assert home.read_blob("mesh-port") == str(FIRST).encode()


def test_the_next_free_one_is_taken_and_kept(home: Home) -> None:
    assert choose(home, taken=frozenset({FIRST, FIRST + 1})) == FIRST + 2
    assert choose(home) == FIRST + 2  # tokens and records name it
    assert FakeListener.tried == [("", FIRST + 2)]


def test_the_last_of_sixteen_and_then_an_error_that_names_the_holder(home: Home) -> None:
    assert choose(home, taken=frozenset(range(FIRST, LAST))) == LAST
    other = Home(home.path.parent / "other")
    with pytest.raises(UserError, match="nginx") as caught:
        choose(other, taken=frozenset(range(FIRST, LAST + 1)))
    assert len(FakeListener.tried) == MESH_PORT_TRIES
    assert caught.value.hint
    assert other.read_blob("mesh-port") is None


def test_a_kept_port_that_is_taken_is_an_error_of_a_member(home: Home) -> None:
    choose(home)
    home.found_mesh(now=1)
    with pytest.raises(UserError, match=f"`{FIRST}`.*nginx") as caught:
        choose(home, taken=frozenset({FIRST}))
    assert "used that port before" in caught.value.hint and "`--listen :0`" in caught.value.hint
    assert FakeListener.tried == [("", FIRST)]


def test_a_node_that_was_never_a_member_takes_another_port(home: Home) -> None:
    """Its first start found no inviter, say: nobody knows the port."""
    choose(home)
    assert choose(home, taken=frozenset({FIRST})) == FIRST + 1
    assert choose(home) == FIRST + 1


def test_a_port_asked_for_is_that_port_or_an_error(home: Home) -> None:
    assert choose(home, HostPort("127.0.0.1", 9000)) == 9000
    assert FakeListener.tried == [("127.0.0.1", 9000)]
    with pytest.raises(UserError, match="9000"):
        choose(home, HostPort("127.0.0.1", 9000), taken=frozenset({9000}))
    assert len(FakeListener.tried) == 1


def test_a_port_asked_for_is_kept_for_starts_that_ask_for_none(home: Home) -> None:
    assert choose(home, HostPort("127.0.0.1", 9000)) == 9000
    assert choose(home) == 9000


def test_port_zero_is_any_but_rather_the_one_from_before(home: Home) -> None:
    assert choose(home, HostPort("127.0.0.1", 0)) == 50_000
    assert choose(home, HostPort("127.0.0.1", 0)) == 50_000
    assert FakeListener.tried == [("127.0.0.1", 50_000)]
    home.write_blob("mesh-port", b"1234")
    assert choose(home, HostPort("127.0.0.1", 0), taken=frozenset({1234})) == 50_000
    assert home.read_blob("mesh-port") == b"50000"


@pytest.mark.parametrize("blob", [b"", b"x", b"-1", b"99999", b"123456", b"17430\n"])
def test_a_damaged_note_is_no_note(home: Home, blob: bytes) -> None:
    home.write_blob("mesh-port", blob)
    assert choose(home) == FIRST


class Answering:
    """A member with a mesh port."""

    def __init__(self) -> None:
        self.callers = Callers()
        self._handshake = replace(TestMesh().node().now(), callers=self.callers)

    def handshake(self) -> HandshakeContext:
        return self._handshake

    async def admit(self, joining: Joining) -> bool:
        return False


async def test_forged_stun_requests_are_answered_so_often_and_a_members_address_still_is(home: Home) -> None:
    port = MeshPort(asked=HostPort("127.0.0.1", 0), home=home)
    assert port.quic is not None
    answered: list[str] = []

    def send_other(data: bytes, origin: Origin) -> None:
        answered.append(origin.address[0])

    port.quic.send_other = send_other  # type: ignore[method-assign]
    request = encode(StunMessage(kind=StunKind.REQUEST, transaction=b"transaction!"))
    member = Answering()
    port.answer_as(member)
    began = asyncio.get_running_loop().time()
    member.callers.proven_at(KeyPair.from_seed(bytes(32)).peer, "192.0.2.1", began)
    for number in range(2 * int(STUN_ANSWERS_IN_ALL.burst)):
        port._answer_stun(request, Origin((f"203.{number >> 8}.{number & 255}.9", 4711)))
    took = asyncio.get_running_loop().time() - began
    assert len(answered) <= STUN_ANSWERS_IN_ALL.burst + took * STUN_ANSWERS_IN_ALL.per_second
    assert len(answered) >= STUN_ANSWERS_IN_ALL.burst
    port._answer_stun(request, Origin(("192.0.2.1", 4711)))
    assert answered[-1] == "192.0.2.1"
    port.close()


def test_real_sockets_go_round_a_taken_port(home: Home) -> None:
    root = KeyPair.from_seed(bytes(32))
    mesh = MeshId.of(root.peer)
    chain = Chain(
        (issue(signer=root, mesh=mesh, node=root.peer, roles=(), serial=bytes(16), invite=b"", issued_at=0),),
        root.peer,
    )
    handshake = HandshakeContext(credentials=Credentials(root, chain), mesh=mesh)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def make(host: str, port: int) -> TcpListener:
            return TcpListener(lambda: handshake, host=host, port=port)

        with pytest.raises(UserError, match=f"port `{port}` on `127.0.0.1` is taken by .*pid"):
            open_listener(make, asked=HostPort("127.0.0.1", port), home=home)
        listener = open_listener(make, asked=HostPort("127.0.0.1", 0), home=home)
        assert listener.port != port
        listener.close()
