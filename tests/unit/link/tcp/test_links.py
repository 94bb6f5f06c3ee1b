"""Guests of the TCP listener, and what its classes promise."""

from meshd.base.tasks import Owner
from meshd.link.interface import TRANSPORTS, Dialer, Link, LinkInfo, LinkKind, Listener
from meshd.link.secure.handshake import ProvenLink, RawPipe
from meshd.link.secure.tls import dialer_context
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.tcp.pipe import TcpPipe

from tests.conformance.nodes import TestMesh
from tests.unit.link.watched_pipe import Watched


async def test_a_guest_whose_task_is_cancelled_before_its_first_step_is_hung_up_on() -> None:
    listener = TcpListener(TestMesh().node().now)
    guest = Watched()

    async def accept(link: Link) -> None:
        raise AssertionError

    async with Owner() as owner:
        listener._arrive(guest, accept, owner)
        assert listener.unproven == 1
        owner.cancel()
    assert guest.aborted
    assert listener.unproven == 0


def test_the_types_fit() -> None:
    handshake = TestMesh().node().now
    dialer: Dialer = TcpDialer(handshake)
    listener: Listener = TcpListener(handshake)
    pipe: RawPipe = TcpPipe(dialer_context(), server_side=False)
    node = TestMesh().node()
    chain = node.handshake.credentials.chain
    assert chain is not None
    from meshd.identity.membership import check_chain

    member = check_chain(chain, node.handshake.mesh, node.peer)
    info = LinkInfo(LinkKind.TCP, node.peer, member, "a:1", "b:2", "lan", True, 0.0)
    link: Link = ProvenLink(pipe, b"", info)
    assert TRANSPORTS[dialer.transport].kind == listener.kind == link.info.kind
