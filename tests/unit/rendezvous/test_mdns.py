"""Which networks are joined and left, who is told of, what is said when nothing is heard; no real network."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest
import zeroconf.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.keys import PeerId
from meshd.rendezvous import mdns as module
from meshd.rendezvous.mdns import Mdns, Network, find
from meshd.rendezvous.mdns_records import MDNS_NONCE_BYTES, SERVICE_TYPE, Neighbours, Place, Sign
from meshd.wire.address import Candidate
from zeroconf import Zeroconf
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.asyncio import AsyncZeroconf
from zeroconf.const import _FLAGS_QR_RESPONSE

from tests.conformance.run import run, ticks, until
from tests.unit.identity.cast import FOUNDER, MESH, WORKER


class FakeNetwork:
    """A network whose traffic the test decides."""

    made: list["FakeNetwork"]
    refuses: str = ""

    def __init__(
        self, place: Place, *, neighbours: Neighbours, news: asyncio.Event, sign: Sign | None, random: object
    ) -> None:
        self.place, self.neighbours, self.news, self.sign = place, neighbours, news, sign
        self.is_up = False
        self.failure = ""
        self.said_goodbye = False
        self.made.append(self)

    async def serve(self) -> None:
        if self.refuses:
            self.failure = self.refuses
            return
        self.is_up = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_up = False
            self.said_goodbye = True

    def hear(self, peer: PeerId, host: str, *, name: str = "x", nonce: int = 1) -> None:
        text = Sign.of(MESH, peer, nonce=bytes([nonce]) * MDNS_NONCE_BYTES).encode()
        where = (self.place.interface, name)
        now = asyncio.get_running_loop().time()
        if self.neighbours.saw(where, text, hosts=[host], port=7, own=self.place.hosts, now=now):
            self.news.set()


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> list[FakeNetwork]:
    made: list[FakeNetwork] = []
    monkeypatch.setattr(FakeNetwork, "made", made, raising=False)
    monkeypatch.setattr(FakeNetwork, "refuses", "")
    monkeypatch.setattr(module, "Network", FakeNetwork)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    return made


class Node:
    """A node whose interfaces and peers the test changes."""

    def __init__(self) -> None:
        self.addresses: list[tuple[str, str]] = [("eth0", "192.168.1.9"), ("lo", "127.0.0.1")]
        self.peers: list[PeerId] = [WORKER.peer]
        self.found: list[tuple[PeerId, tuple[Candidate, ...]]] = []
        self.mdns = Mdns(
            mesh=MESH,
            me=FOUNDER.peer,
            addresses=lambda: self.addresses,
            candidates=lambda: [Candidate(host, 7447) for _, host in self.addresses],
            peers=lambda: self.peers,
            found=self._told,
            random=bytes,
        )

    def _told(self, peer: PeerId, candidates: Sequence[Candidate]) -> None:
        self.found.append((peer, tuple(candidates)))


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    node = Node()
    async with Owner() as owner:
        task = owner.start(node.mdns.serve(), name="mdns")
        yield node
        await cancel_and_wait(task)


async def test_a_member_is_told_of_as_soon_as_it_is_heard(networks: list[FakeNetwork]) -> None:
    async with running() as node:
        await until(lambda: node.mdns.status.networks == ("eth0",))
        [network] = networks
        assert network.sign is not None and network.sign.is_of_node(MESH, FOUNDER.peer)
        network.hear(WORKER.peer, "192.168.1.4")
        await until(lambda: node.found == [(WORKER.peer, (Candidate("192.168.1.4", 7),))])
        assert node.mdns.status.members == 1 and node.mdns.status.state == "heard"


async def test_networks_are_joined_and_left(networks: list[FakeNetwork]) -> None:
    async with running() as node:
        await until(lambda: node.mdns.status.networks == ("eth0",))
        node.addresses += [("wlan0", "10.0.0.3"), ("eth1", "10.1.0.3")]
        await until(lambda: node.mdns.status.networks == ("eth0", "eth1", "wlan0"))
        networks[0].hear(WORKER.peer, "192.168.1.4")
        await until(lambda: len(node.found) == 1)
        node.addresses = [("wlan0", "10.0.0.3"), ("eth1", "10.1.0.77")]
        await until(lambda: len(networks) == 4 and len(node.mdns.status.networks) == 2)
        gone = {network.place.interface for network in networks if network.said_goodbye}
        assert gone == {"eth0", "eth1"}  # another address is another network
        assert networks[3].place.hosts == ("10.1.0.77",)
        assert node.mdns.status.members == 0
    assert all(network.said_goodbye for network in networks)


async def test_a_network_that_cannot_be_joined_is_tried_again_later(
    networks: list[FakeNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeNetwork, "refuses", "no such device")
    async with running() as node:
        await until(lambda: node.mdns.status.why == "eth0: no such device")
        await ticks(20)
        assert len(networks) == 1 and node.mdns.status.networks == ()
        monkeypatch.setattr(FakeNetwork, "refuses", "")
        monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
        await until(lambda: node.mdns.status.networks == ("eth0",))
        assert node.mdns.status.why == ""


async def test_silence_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as node:
        await until(lambda: node.mdns.status.networks == ("eth0",))
        assert (node.mdns.status.state, node.mdns.status.why) == ("looking", "")
        monkeypatch.setattr(module, "_SILENT_SECONDS", 0.0)
        status = node.mdns.status
        assert status.state == "silent" and "filters multicast" in status.why
        node.addresses = []
        await until(lambda: not node.mdns.status.networks)
        assert node.mdns.status.why == ""  # nowhere to hear anybody


async def test_a_peer_that_becomes_known_is_found_in_what_was_heard(networks: list[FakeNetwork]) -> None:
    async with running() as node:
        node.peers = []
        await until(lambda: len(networks) == 1)
        networks[0].hear(WORKER.peer, "192.168.1.4")
        await ticks(20)
        assert node.found == []
        node.peers = [WORKER.peer]
        await until(lambda: len(node.found) == 1)


async def test_a_joiner_finds_and_says_nothing(networks: list[FakeNetwork]) -> None:
    async def look(seconds: float) -> tuple[Candidate, ...]:
        return await find(
            mesh=MESH,
            peer=WORKER.peer,
            addresses=lambda: [("eth0", "192.168.1.9")],
            random=bytes,
            seconds=seconds,
        )

    async with Owner() as owner:
        task = owner.start(look(30.0), name="find")
        await until(lambda: len(networks) == 1)
        assert networks[0].sign is None
        networks[0].hear(WORKER.peer, "192.168.1.4")
        assert await task == (Candidate("192.168.1.4", 7),)
    assert networks[0].said_goodbye
    assert await look(0.02) == ()


SERVICE = (b"_meshd", b"_tcp", b"local")
PTR, TXT, AAAA, SRV, A = 12, 16, 28, 33, 1
INTERNET = 1
UNKNOWN_PORT, SOMEBODY = 7447, ("192.0.2.7", 5353)


def wire_name(labels: tuple[bytes, ...]) -> bytes:
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def answer(labels: tuple[bytes, ...], kind: int, data: bytes, *, ttl: int = 4500) -> bytes:
    return wire_name(labels) + struct.pack(">HHIH", kind, INTERNET, ttl, len(data)) + data


def packet(*answers: bytes) -> bytes:
    return struct.pack(">6H", 0, 0x8400, 0, len(answers), 0, 0) + b"".join(answers)


def service(instance: bytes, host: bytes, text: bytes, address: bytes) -> bytes:
    """A packet that says all of one node: pointer, service, text, address."""
    own, where = (instance, *SERVICE), (host, b"local")
    return packet(
        answer(SERVICE, PTR, wire_name(own)),
        answer(own, SRV, struct.pack(">3H", 0, 0, UNKNOWN_PORT) + wire_name(where)),
        answer(own, TXT, text),
        answer(where, A, address),
    )


def honest(number: int) -> bytes:
    text = Sign.of(MESH, WORKER.peer, nonce=bytes([number]) * MDNS_NONCE_BYTES).encode()
    return service(b"%016x" % number, b"%016x" % (number + 1), text, bytes([127, 0, 0, 9]))


labels = st.one_of(
    st.binary(min_size=1, max_size=63),
    st.sampled_from(
        [b"\x01", b"\xff" * 63, b".", b"..", b"_sub", b"a.b", b"\x7f", "é".encode() * 31, b"_meshd"]
    ),
)
names = st.lists(labels, min_size=1, max_size=4).map(tuple)
under_service = labels.map(lambda label: (label, *SERVICE))
any_name = st.one_of(names, under_service, st.just(SERVICE))


def _hostile(name: tuple[bytes, ...], kind: int, target: tuple[bytes, ...], text: bytes) -> bytes:
    pointing = {PTR: wire_name(target), SRV: bytes(6) + wire_name(target)}
    return packet(answer(name, kind, pointing.get(kind, text)))


hostile = st.builds(
    _hostile, any_name, st.sampled_from([PTR, SRV, TXT, A, AAAA, 47, 13]), any_name, st.binary(max_size=64)
)


class Listening:
    """A network on loopback, and packets that the test makes the library read."""

    def __init__(self, zeroconf: Zeroconf, neighbours: Neighbours) -> None:
        self.zeroconf = zeroconf
        self.neighbours = neighbours

    def hear(self, data: bytes) -> None:
        protocol = self.zeroconf.engine.readers[0].transport.get_protocol()
        cast(asyncio.DatagramProtocol, protocol).datagram_received(data, SOMEBODY)

    def unwritable(self) -> list[str]:
        """The records that the library keeps, and could not list in a question."""
        found: list[str] = []
        for records in self.zeroconf.cache.cache.values():
            for record in records:
                question = DNSOutgoing(_FLAGS_QR_RESPONSE)
                question.add_answer_at_time(record, 0)
                try:
                    question.packets()
                except Exception as error:
                    found.append(f"{record}: {error!r}")
        return found


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    made: list[AsyncZeroconf] = []

    class Recorded(AsyncZeroconf):
        def __init__(self, interfaces: list[str]) -> None:
            super().__init__(interfaces=interfaces)
            made.append(self)

    neighbours = Neighbours(MESH, FOUNDER.peer)
    place = Place("lo", ("127.0.0.1",))
    network = Network(place, neighbours=neighbours, news=asyncio.Event(), sign=None, random=bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zeroconf.asyncio, "AsyncZeroconf", Recorded)
        async with Owner() as owner:
            task = owner.start(network.serve(), name="network")
            await until(lambda: network.is_up or bool(network.failure))
            assert network.is_up, network.failure
            yield Listening(made[0].zeroconf, neighbours)
            await cancel_and_wait(task)


def holds_after(packets: list[bytes]) -> None:
    async def work() -> None:
        async with listening() as node:
            for number, data in enumerate(packets, start=1):
                node.hear(data)
                node.neighbours.heard_at = None
                node.hear(honest(number))
                assert node.neighbours.heard_at is not None  # not deaf
            assert node.unwritable() == []  # and not dumb
            assert node.zeroconf.cache.async_entries_with_name(SERVICE_TYPE)

    run(work())


@pytest.mark.parametrize(
    "label", [b"\x01", b"\xff" * 63, b".", b"..", b"a\x7f", b"x._sub"], ids=lambda label: label[:3].hex()
)
def test_one_hostile_instance_name_is_skipped(label: bytes) -> None:
    holds_after([packet(answer(SERVICE, PTR, wire_name((label, *SERVICE))))])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(hostile, st.binary(max_size=200)), min_size=1, max_size=20))
def test_a_node_hears_and_asks_after_any_packets(packets: list[bytes]) -> None:
    holds_after(packets)
