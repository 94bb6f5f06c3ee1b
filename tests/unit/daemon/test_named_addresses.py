"""Test what one member makes a node do, with real sockets: by addresses that it names, by silent links."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from meshd.base.peer_limits import DIALS, RETRIES
from meshd.base.tasks import Owner
from meshd.daemon.member_node import MemberNode
from meshd.identity.proof import Credentials
from meshd.identity.record import PeerRecord
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.tcp.links import TcpDialer
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.run import open_files, until
from tests.unit.daemon.test_joining import Machine, token_of

MANY = 48
LOOPBACK = "127.0.0.1"
DATAGRAMS_OF_A_DIAL = 8  # the first, and its repetitions with pauses that double, for three seconds
SECONDS_OF_BACKOFF = 12  # attempts in five seconds, with pauses that begin at 0.2 s and grow


async def test_silent_links_of_one_member_hold_few_descriptors(tmp_path: Path) -> None:
    founder, guest = Machine(tmp_path, "founder"), Machine(tmp_path, "guest")
    async with founder.live() as victim:
        member = await guest.enter(token_of(victim))
        member.mesh_port.close()
        credentials = Credentials(guest.key, member.membership.chain)
        handshake = HandshakeContext(credentials=credentials, mesh=member.membership.mesh)
        places = trusted(victim.mesh_port.listener.candidates())
        before = open_files()
        async with Owner() as owner:

            async def silent() -> None:
                link = await TcpDialer(lambda: handshake).dial(founder.key.peer, places)
                try:
                    await asyncio.Event().wait()
                finally:
                    await link.aclose()

            for _ in range(MANY):
                owner.start(silent(), name="silent")
                await asyncio.sleep(0.02)  # fewer at the door than it has places for strangers
            # our ends stay open; of theirs there are few
            await until(lambda: open_files() <= before + MANY + 8, seconds=5.0)
            assert victim.mesh.peers()
            owner.cancel()


class Ports:
    """Sixteen ports of this machine, for TCP and UDP, that count who comes."""

    def __init__(self) -> None:
        self.connections = 0
        self.datagrams = 0
        self.dials: set[bytes] = set()  # connections over UDP
        self.numbers: list[int] = []

    @contextlib.asynccontextmanager
    async def open(self, count: int = 16) -> AsyncIterator[None]:
        with contextlib.ExitStack() as opened:
            servers = [opened.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
            self.numbers = [server.getsockname()[1] for server in servers]
            loop = asyncio.get_running_loop()
            for server in servers:
                server.setblocking(False)
                loop.add_reader(server, self._take, server)
                opened.callback(loop.remove_reader, server)
                udp = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                udp.bind((LOOPBACK, server.getsockname()[1]))
                udp.setblocking(False)
                loop.add_reader(udp, self._hear, udp)
                opened.callback(loop.remove_reader, udp)
            yield

    def _take(self, server: socket.socket) -> None:
        sock, _ = server.accept()
        sock.close()
        self.connections += 1

    def _hear(self, udp: socket.socket) -> None:
        data = udp.recv(2048)
        self.datagrams += 1
        self.dials.add(data[6 : 6 + data[5]])  # the id that a QUIC client draws for each connection


@contextlib.asynccontextmanager
async def victim_of(folder: Path) -> AsyncIterator[tuple[MemberNode, Callable[[Sequence[Candidate]], None]]]:
    """A node that runs, and what makes it hear that a member, who has joined and gone, is at those places."""
    founder, guest = Machine(folder, "founder"), Machine(folder, "guest")
    async with founder.live() as victim:
        member = await guest.enter(token_of(victim))
        member.mesh_port.close()
        numbers = itertools.count(1 << 40)

        def says(candidates: Sequence[Candidate]) -> None:
            record = PeerRecord.sign(
                guest.key,
                chain=member.membership.chain,
                name="guest",
                role="worker",
                sequence=next(numbers),
                candidates=tuple(candidates),
            )
            assert victim.book.add(record)
            victim.mesh._heard(record)

        yield victim, says


def both(port: int) -> list[Candidate]:
    return [Candidate(LOOPBACK, port), Candidate(LOOPBACK, port, "udp")]


async def test_a_record_that_names_many_ports_of_this_machine_has_none_of_them_dialled(
    tmp_path: Path,
) -> None:
    ports = Ports()
    async with ports.open(), victim_of(tmp_path) as (_, says):
        says([place for port in ports.numbers for place in both(port)])
        await asyncio.sleep(2.0)  # TCP is dialled at once, QUIC after 0.2 s
    assert (ports.connections, ports.datagrams) == (0, 0)


async def test_a_member_that_tells_a_new_port_again_and_again_has_few_of_them_dialled(tmp_path: Path) -> None:
    """A record for each port, so that each looks like that of a node on this machine."""
    ports = Ports()
    async with ports.open(), victim_of(tmp_path) as (_, says):
        began = asyncio.get_running_loop().time()
        for number in range(238):
            says(both(ports.numbers[number % len(ports.numbers)]))
            await asyncio.sleep(0.02)
        seconds = asyncio.get_running_loop().time() - began
    # each time it is dialled at once, and what the back-off makes of five seconds
    for dials in (ports.connections, len(ports.dials)):
        assert 0 < dials <= RETRIES.burst + SECONDS_OF_BACKOFF
    assert ports.datagrams <= DATAGRAMS_OF_A_DIAL * (RETRIES.burst + SECONDS_OF_BACKOFF)
    assert ports.connections + len(ports.dials) <= DIALS.burst + DIALS.per_second * seconds


async def test_the_addresses_of_a_record_are_the_same_share_after_a_restart(tmp_path: Path) -> None:
    ports = Ports()
    async with ports.open():
        async with victim_of(tmp_path) as (_, says):
            says([place for port in ports.numbers for place in both(port)])
        async with Machine(tmp_path, "founder").live() as again:
            await until(lambda: bool(again.mesh.peers()))
            await asyncio.sleep(1.0)
    assert (ports.connections, ports.datagrams) == (0, 0)
