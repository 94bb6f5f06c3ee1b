"""The reflexive port: what servers say is believed only if they were asked, and only them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshd.base.tasks import Owner
from meshd.link.net.stun import ReflexivePort
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode

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
