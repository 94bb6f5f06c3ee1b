"""What the library for multicast DNS does with hostile packets: a node still hears others, and still asks."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import zeroconf.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.rendezvous.mdns import Network
from meshd.rendezvous.mdns_records import MDNS_NONCE_BYTES, SERVICE_TYPE, Neighbours, Place, Sign
from zeroconf import Zeroconf
from zeroconf._protocol.outgoing import DNSOutgoing
from zeroconf.asyncio import AsyncZeroconf
from zeroconf.const import _FLAGS_QR_RESPONSE

from tests.conformance.run import run, until
from tests.unit.identity.cast import FOUNDER, MESH, WORKER

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
