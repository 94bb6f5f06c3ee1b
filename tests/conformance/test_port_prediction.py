"""A search for ports between two nodes of one machine: which side asks for it, which gives way, leftovers.

Nothing filters here, so that openings come through at once; the odds are the matter of other tests.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial

import pytest
from meshd.base.backoff import Backoff
from meshd.base.errors import Refused
from meshd.identity.keys import PeerId
from meshd.link import attempts
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.port_prediction import links as module
from meshd.link.port_prediction.links import PortPredictionLinks
from meshd.wire import signal as words
from meshd.wire.dialable import Here, dialable, trusted
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, Udp
from meshd.wire.signal import Ask, No, OpenedPorts, decode_search
from meshd.wire.stun import Endpoint

from tests.conformance.nodes import Node
from tests.conformance.pair import Pair, a_ban_is_told, outcome, pairing
from tests.conformance.post import Post
from tests.conformance.run import ANY_RATE, ticks, until
from tests.unit.link.net.test_stun import udp_server

RESTRICTED = NetFacts(udp=Udp.WORKS, mapping=Mapping.INDEPENDENT, filtering=Filtering.ADDRESS_PORT)
SYMMETRIC = NetFacts(udp=Udp.WORKS, mapping=Mapping.ADDRESS_PORT, ports=Ports.COUNTING, udp_step=1)


@pytest.fixture(autouse=True)
def _loopback_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "is_outer", lambda place: True)
    monkeypatch.setattr(module, "is_outer", lambda place: True)


@contextlib.asynccontextmanager
async def pair(
    *, low_facts: NetFacts = SYMMETRIC, high_facts: NetFacts = RESTRICTED, servers: int = 1
) -> AsyncIterator[Pair[PortPredictionLinks]]:
    """`low` has the symmetric NAT."""
    async with udp_server() as server:
        places = [str(server.endpoint)] * servers

        def links(mine: NetFacts, theirs: NetFacts, node: Node, post: Post) -> PortPredictionLinks:
            return PortPredictionLinks(
                node.now,
                post.signals(node.peer),
                servers=lambda: places,
                facts=lambda: mine,
                facts_of=lambda _: theirs,
                may_dial=lambda _peer, told, _source: trusted(told),
            )

        low, high = partial(links, low_facts, RESTRICTED), partial(links, high_facts, SYMMETRIC)
        async with pairing(low, high) as ends:
            yield ends


async def test_either_side_may_dial() -> None:
    async with pair() as ends:
        for links, peer, accepted in (
            (ends.low_links, ends.high.peer, ends.high_accepted),
            (ends.high_links, ends.low.peer, ends.low_accepted),
        ):
            link = await links.dial(peer)
            other = await accepted.get()
            assert link.info.kind is other.info.kind is links.kind is LinkKind.QUIC
            assert link.info.path == other.info.path == "punched"
            assert (link.info.dialled, other.info.dialled) == (True, False)
            await link.send([b"there"])
            assert await other.receive() == b"there"
            await other.send([b"and back"])
            assert await link.receive() == b"and back"
            await link.aclose()
        assert links.candidates() == ()


async def test_two_that_dial_each_other_have_one_link() -> None:
    async with pair() as ends:
        for _ in range(3):
            error, link = await ends.both_dial()
            assert isinstance(error, DialError)
            assert not isinstance(link, DialError | Refused)
            await link.send([b"one link"])
            assert await (await ends.low_accepted.get()).receive() == b"one link"
            assert ends.high_accepted.empty()
            await link.aclose()


async def test_networks_that_want_no_search_are_left_alone() -> None:
    sent: list[bytes] = []
    async with pair(low_facts=RESTRICTED) as ends:

        def note(payload: bytes) -> bytes:
            sent.append(payload)
            return payload

        ends.post.tamper = note
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.UNFIT
        assert not sent


async def test_the_other_side_goes_by_its_own_facts() -> None:
    """Test that who answers decides anew, and says so at once: what a record says may be old."""

    async with pair(high_facts=replace(RESTRICTED, mapping=Mapping.NONE)) as ends:
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert "makes no sense" in error.what


async def test_after_a_search_in_vain_there_is_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORD_SECONDS", 0.05)

    async with pair() as ends:
        ends.post.tamper = lambda payload: b""
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.TIMEOUT
        ends.post.tamper = lambda payload: payload
        error = await outcome(ends.low_links, ends.high.peer)
        assert isinstance(error, DialError)
        assert error.failure is DialFailure.UNFIT
        monkeypatch.setattr(module, "WORD_SECONDS", 4.0)  # what follows is to succeed
        ends.low_links.addresses_changed()
        await (await ends.low_links.dial(ends.high.peer)).aclose()


@pytest.mark.parametrize("dials", ["low", "high"])
async def test_without_a_server_no_port_is_known(dials: str) -> None:
    async with pair(servers=0) as ends:
        links, peer = (ends.low_links, ends.high.peer) if dials == "low" else (ends.high_links, ends.low.peer)
        error = await outcome(links, peer)
        assert isinstance(error, DialError)
        assert "no STUN server answers" in error.what


async def test_a_refusal_of_the_peer_is_told_as_such() -> None:
    async with pair() as ends:
        await a_ban_is_told(ends)


async def test_a_key_that_was_changed_on_the_way_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 1.0)
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(module, "ports_to_try", lambda opened, seed: iter(range(2000, 2050)))

    def other_key(payload: bytes) -> bytes:
        word = decode_search(payload)
        return replace(word, key=bytes(32)).encode() if isinstance(word, Ask) else payload

    async with pair() as ends:
        ends.post.tamper = other_key
        for links, peer in ((ends.low_links, ends.high.peer), (ends.high_links, ends.low.peer)):
            assert isinstance(await outcome(links, peer), DialError)
        assert ends.low_accepted.empty()
        assert ends.high_accepted.empty()


async def test_no_more_searches_than_two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ends:
        signals = ends.post.signals(PeerId(b"x" * 32))
        for number in range(4):
            ask = Ask(attempt=bytes([number]) * 16, key=bytes(32), facts=SYMMETRIC)
            await signals.send(ends.high.peer, ask.encode())
        said: list[words.PortSearchMessage] = []
        while len(said) < 4:
            said.append(decode_search((await signals.receive())[1]))
        refused = [word for word in said if isinstance(word, No)]
        assert [word.text for word in refused] == ["too many searches at once"] * 2
        places: Sequence[Endpoint] = [word.place for word in said if isinstance(word, words.OnePort)]
        assert len(set(places)) == 2
        assert not [word for word in said if isinstance(word, OpenedPorts)]
        for number in range(4):
            await signals.send(ends.high.peer, No(attempt=bytes([number]) * 16, code="ended").encode())
        await (await ends.low_links.dial(ends.high.peer)).aclose()


async def ask_for_a_search(ends: Pair[PortPredictionLinks], asker: PeerId, number: int, host: str) -> str:
    """Have `high` try ports of a host on behalf of `asker`; gives why that came to nothing."""
    signals = ends.post.signals(asker)
    attempt = number.to_bytes(16, "big")
    await signals.send(ends.high.peer, Ask(attempt=attempt, key=bytes(32), facts=SYMMETRIC).encode())
    while True:
        word = decode_search((await signals.receive())[1])
        if isinstance(word, words.OnePort):
            opened = OpenedPorts(attempt=attempt, seen=Endpoint(host, 4000), step=0, count=256)
            await signals.send(ends.high.peer, opened.encode())
        elif isinstance(word, No):
            return word.text


async def test_who_asks_for_searches_that_find_nothing_waits_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the node that asks, and for the address: another node cannot go on with the same one."""
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(module, "ports_to_try", lambda opened, seed: iter(range(2000, 2020)))

    async with pair() as ends:
        hostile, friend = PeerId(b"x" * 32), PeerId(b"y" * 32)
        assert "none answered" in await ask_for_a_search(ends, hostile, 1, "127.0.0.1")
        for number in range(2, 8):
            assert "failed; next try in" in await ask_for_a_search(ends, hostile, number, "127.0.0.2")
            assert "failed; next try in" in await ask_for_a_search(ends, friend, number + 20, "127.0.0.1")
        assert "none answered" in await ask_for_a_search(ends, friend, 50, "127.0.0.3")


async def test_nobody_is_searched_whom_the_record_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_probe(*_given: object) -> Endpoint:
        raise AssertionError("nothing is to be sent")

    monkeypatch.setattr(module, "probe", no_probe)

    async with pair() as ends:
        ends.high_links._may_dial = lambda _peer, told, source: dialable(
            told, source=source, here=Here(), claims=[ipaddress.ip_address("198.51.100.7")]
        )
        why = await ask_for_a_search(ends, PeerId(b"x" * 32), 1, "203.0.113.5")
        assert "does not contain `203.0.113.5`" in why


@pytest.mark.parametrize("dials", ["low", "high"])
async def test_cancelled_anywhere_it_leaves_nothing(dials: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ATTEMPTS", ANY_RATE)  # one for each turn of the loop
    monkeypatch.setattr(module, "GRANT_AGAIN", Backoff(first=0.0, factor=1.0, most=0.0))

    async with pair() as ends:
        dialer, peer = (
            (ends.low_links, ends.high.peer) if dials == "low" else (ends.high_links, ends.low.peer)
        )
        await (await dialer.dial(peer)).aclose()
        turns = 0
        while True:
            dialling = asyncio.get_running_loop().create_task(dialer.dial(peer))
            await ticks(turns)
            if dialling.done():
                await (await dialling).aclose()
                break
            dialling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await dialling).aclose()
            await until(lambda: not ends.low_links.searches + ends.high_links.searches)
            turns += 1 if turns < 30 else turns // 6
        assert turns > 30, "it was over before it could be cancelled in its middle"
        await until(lambda: not ends.low_links.searches + ends.high_links.searches)
