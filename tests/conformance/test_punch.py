"""Punched TCP between two nodes on one machine: which side gives way, refusals, leftovers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from meshd.base.errors import Broken, Refused
from meshd.identity.keys import PeerId
from meshd.link import attempts, punch
from meshd.link.interface import DialError, DialFailure
from meshd.link.punch import PunchLinks
from meshd.link.tcp.links import TcpListener
from meshd.wire.address import Candidate
from meshd.wire.signal import Knock, No, PunchGo, Punching, PunchReady, decode_punching

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.pair import Pair, a_ban_is_told, outcome, pairing
from tests.conformance.post import Post
from tests.conformance.punched import LOOPBACK, punching


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[Pair[PunchLinks]]:
    def made(node: Node, post: Post) -> PunchLinks:
        return punching(node, post.signals(node.peer))

    async with pairing(made, made) as ends:
        yield ends


async def test_two_that_dial_each_other_have_one_link() -> None:
    async with pair() as ends:
        for _ in range(10):
            error, link = await ends.both_dial()
            assert isinstance(error, DialError)
            assert error.failure is DialFailure.REFUSED
            assert not isinstance(link, DialError | Refused)
            other = ends.low_accepted.get_nowait()
            assert ends.low_accepted.empty()
            assert ends.high_accepted.empty()
            await link.send([b"one link"])
            assert await other.receive() == b"one link"
            await link.aclose()


async def test_either_side_may_dial() -> None:
    async with pair() as ends:
        for links, peer, accepted in (
            (ends.low_links, ends.high.peer, ends.high_accepted),
            (ends.high_links, ends.low.peer, ends.low_accepted),
        ):
            link = await links.dial(peer)
            assert link.info.dialled
            assert (await accepted.get()).info.dialled is False
            await link.aclose()


async def test_a_side_without_addresses_is_reached_all_the_same() -> None:
    """One side's addresses are enough when that side can be connected to."""

    for hidden in (PunchReady, PunchGo):

        def hide(payload: bytes, hidden: type[PunchReady | PunchGo] = hidden) -> bytes:
            word = decode_punching(payload)
            if isinstance(word, PunchReady) and hidden is PunchReady:
                return PunchReady(attempt=word.attempt, candidates=(), waited_ms=word.waited_ms).encode()
            if isinstance(word, PunchGo) and hidden is PunchGo:
                return PunchGo(attempt=word.attempt, candidates=()).encode()
            return payload

        async with pair() as ends:
            ends.post.tamper = hide
            await (await ends.low_links.dial(ends.high.peer)).aclose()


async def test_a_refusal_of_the_peer_is_told_as_such() -> None:
    async with pair() as ends:
        await a_ban_is_told(ends)


async def test_somebody_else_at_the_address_is_not_taken_for_the_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(punch, "MEET_SECONDS", 3.0)
    monkeypatch.setattr(punch, "ROUNDS", 1)

    async with pair() as ends:
        listener = TcpListener(TestMesh().node().now, host=LOOPBACK)
        listener.open()
        places = (Candidate(LOOPBACK, listener.port),)

        def lead_astray(payload: bytes) -> bytes:
            word = decode_punching(payload)
            if isinstance(word, PunchReady):
                return PunchReady(attempt=word.attempt, candidates=places, waited_ms=0).encode()
            return (
                PunchGo(attempt=word.attempt, candidates=()).encode()
                if isinstance(word, PunchGo)
                else payload
            )

        ends.post.tamper = lead_astray
        async with serving(listener):
            error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.WRONG_PEER
        assert ends.high_accepted.empty()


async def test_a_peer_that_says_nothing_costs_two_rounds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "_READY_SECONDS", 0.05)

    async with pair() as ends:
        knocks: list[Knock] = []

        def lose(payload: bytes) -> bytes:
            word = decode_punching(payload)
            if isinstance(word, Knock):
                knocks.append(word)
            return b""

        ends.post.tamper = lose
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.TIMEOUT
        assert len({knock.attempt for knock in knocks}) == punch.ROUNDS == 2


async def test_no_way_for_signals_is_told_at_once() -> None:
    class Mute:
        async def send(self, peer: PeerId, payload: bytes) -> None:
            raise Broken("no way to that peer now")

        async def receive(self) -> tuple[PeerId, bytes]:
            await asyncio.Event().wait()
            raise AssertionError

    node = TestMesh().node()
    links = punching(node, Mute())
    async with serving(links):
        with pytest.raises(DialError, match="no way to that peer now"):
            await links.dial(TestMesh().node().peer)
    assert links.candidates() == ()


async def test_a_node_without_a_mesh_answers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "_READY_SECONDS", 0.1)
    monkeypatch.setattr(punch, "ROUNDS", 1)

    async with pair() as ends:
        ends.high.handshake = TestMesh().stranger().handshake
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert ends.high_accepted.empty()


async def test_more_attempts_than_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ninth knock is told so, and noise does no harm."""
    monkeypatch.setattr(punch, "_READY_SECONDS", 1.0)

    async with pair() as ends:
        signals = ends.post.signals(PeerId(b"x" * 32))
        for number in range(9):
            await signals.send(ends.high.peer, Knock(attempt=bytes([number]) * 16).encode())
        await signals.send(ends.high.peer, b"\xc1 noise")
        words: list[Punching] = []
        while len(words) < 9:
            words.append(decode_punching((await signals.receive())[1]))
        assert [type(word) for word in words].count(No) == 1
        assert [word.code for word in words if isinstance(word, No)] == ["busy"]
        for number in range(9):
            await signals.send(ends.high.peer, No(attempt=bytes([number]) * 16, code="ended").encode())
        await (await ends.low_links.dial(ends.high.peer)).aclose()


async def test_one_that_yields_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "YIELD_SECONDS", 0.05)

    async with pair() as ends:

        def claim(payload: bytes) -> bytes:
            word = decode_punching(payload)
            return (
                No(attempt=word.attempt, code="glare").encode() if isinstance(word, PunchReady) else payload
            )

        ends.post.tamper = claim
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.REFUSED
