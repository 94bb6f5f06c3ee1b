"""A TCP link to another process: killed, stopped, or ending well. Run as a program it is that process."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from meshd.base.errors import Broken, EndOfStream
from meshd.identity.keys import KeyPair, MeshId
from meshd.identity.membership import Chain
from meshd.identity.proof import Credentials
from meshd.link.interface import DialError, Link
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.tcp.dial import TcpDialer
from meshd.link.tcp.listen import TcpListener
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.nodes import Node, TestMesh
from tests.conformance.run import run

LOOPBACK = "127.0.0.1"


async def serve_echo(node: Node) -> None:
    """Echo on every link until killed; a chunk `bye` ends the link."""
    listener = TcpListener(node.now, host=LOOPBACK)
    listener.open()
    sys.stdout.write(f"{listener.port}\n")
    sys.stdout.flush()

    async def accept(link: Link) -> None:
        while (chunk := await link.receive()) != b"bye":
            await link.send([chunk])

    await listener.serve(accept)


@contextlib.contextmanager
def other_process(node: Node) -> "Iterator[tuple[subprocess.Popen[str], Candidate]]":
    """The echo in a process of its own; gone when the block ends."""
    chain = node.handshake.credentials.chain
    assert chain is not None
    argv = [sys.executable, "-m", __name__, node.key.seed.hex(), chain.encode().hex()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, Candidate(LOOPBACK, int(child.stdout.readline()))
        finally:
            child.kill()


async def echoed(link: Link, data: bytes) -> None:
    await link.send([data])
    got = b""
    while len(got) < len(data):
        got += await link.receive()
    assert got == data


def test_a_killed_peer_is_broken_at_once() -> None:
    async def work(child: "subprocess.Popen[str]", near: Node, far: Node, place: Candidate) -> None:
        link = await TcpDialer(near.now).dial(far.peer, trusted([place]))
        await echoed(link, bytes(300_000))
        waiting = asyncio.get_running_loop().create_task(link.receive())
        await asyncio.sleep(0)
        child.send_signal(signal.SIGKILL)
        with pytest.raises(Broken):
            await waiting
        with pytest.raises(Broken):
            await link.send([b"x"])
        await link.aclose()
        await asyncio.to_thread(child.wait)
        with pytest.raises(DialError):
            await TcpDialer(near.now).dial(far.peer, trusted([place]))

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    with other_process(far) as (child, place):
        # to_thread keeps its threads until the loop ends, so descriptors and tasks are looked at inside
        run(work(child, near, far, place))


def test_a_clean_end_is_told_from_a_kill() -> None:
    async def work(near: Node, far: Node, place: Candidate) -> None:
        link = await TcpDialer(near.now).dial(far.peer, trusted([place]))
        await link.send([b"bye"])
        with pytest.raises(EndOfStream):
            await link.receive()
        await link.aclose()

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    with other_process(far) as (_, place):
        run(work(near, far, place))


def test_a_stopped_process_does_not_hold_up_closing_nor_dialling() -> None:
    async def work(child: "subprocess.Popen[str]", near: Node, far: Node, place: Candidate) -> None:
        link = await TcpDialer(near.now).dial(far.peer, trusted([place]))
        await echoed(link, b"well")
        os.kill(child.pid, signal.SIGSTOP)
        await link.send([bytes(100_000)])  # the kernel of the stopped side takes it
        await link.aclose()
        dialling = asyncio.get_running_loop().create_task(
            TcpDialer(near.now).dial(far.peer, trusted([place]))
        )
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGCONT)
        link = await dialling
        await echoed(link, b"again")
        await link.aclose()

    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    with other_process(far) as (child, place):
        run(work(child, near, far, place))


if __name__ == "__main__":
    key = KeyPair.from_seed(bytes.fromhex(sys.argv[1]))
    shown = Chain.decode(bytes.fromhex(sys.argv[2]))
    handshake = HandshakeContext(credentials=Credentials(key, shown), mesh=MeshId.of(shown.root))
    asyncio.run(serve_echo(Node(key, handshake)))
