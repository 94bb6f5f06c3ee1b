"""The order in which addresses are dialled, the race, and which failure is told."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Refused
from meshd.identity.proof import Proven, Purpose
from meshd.link.interface import DialError, DialFailure, LinkKind
from meshd.link.net.happy_eyeballs import closest, dial_order, race
from meshd.link.secure.handshake import dial_error
from meshd.link.tcp.pipe import TcpPipe
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.nodes import TestMesh
from tests.conformance.run import ticks
from tests.unit.link.watched_pipe import Watched

NETWORKS = ("10.0.0.0/8", "8.0.0.0/8", "127.0.0.0/8", "fd00::/8", "2001:db8::/32")


def test_families_in_turn_loopback_last_tcp_only() -> None:
    given_order = [
        Candidate("127.0.0.1", 1),
        Candidate("192.168.1.1", 1),
        Candidate("10.0.0.1", 1),
        Candidate("fd00::1", 1),
        Candidate("192.168.1.1", 1, "udp"),
        Candidate("8.8.8.8", 1, "tcp", "relay"),
        Candidate("192.168.1.1", 1),
    ]
    assert [candidate.host for candidate in dial_order(trusted(given_order), "tcp")] == [
        "fd00::1",
        "192.168.1.1",
        "10.0.0.1",
        "127.0.0.1",
    ]


@given(
    st.lists(
        st.builds(
            Candidate,
            st.one_of(*(st.ip_addresses(network=net) for net in NETWORKS)).map(str),
            st.integers(1, 65535),
            st.sampled_from(["tcp", "udp"]),
        ),
        max_size=60,
    )
)
def test_at_most_thirty_two_each_once(candidates: list[Candidate]) -> None:
    ordered = dial_order(trusted(candidates), "tcp")
    assert len(ordered) == len(set(ordered)) <= 32
    assert all(candidate.proto == "tcp" and candidate in candidates for candidate in ordered)


def failed(failure: DialFailure, what: str) -> DialError:
    return DialError(what, kind=LinkKind.TCP, failure=failure)


def test_a_refusal_says_most_then_what_came_furthest() -> None:
    far, near = failed(DialFailure.HANDSHAKE, "spoke"), failed(DialFailure.UNREACHABLE, "no way")
    refused = Refused("banned", code="banned")
    assert closest([near, refused, far]) is refused
    told = closest([near, far, near])
    assert isinstance(told, DialError)
    assert (told.failure, told.what) == (DialFailure.HANDSHAKE, "spoke; no way")
    bug = ZeroDivisionError()
    assert closest([near, bug]) is bug


def test_an_address_that_failed_in_several_ways_is_told_once() -> None:
    def at(place: str, error: Exception, kind: LinkKind) -> DialError:
        made = dial_error(error, kind=kind, place=place)
        assert isinstance(made, DialError)
        return made

    here, there = "10.0.0.1:17430", "20.1.0.2:17430"
    over_tcp = closest(
        [at(here, ConnectionRefusedError(), LinkKind.TCP), at(there, TimeoutError(), LinkKind.TCP)]
    )
    over_quic = closest([at(here, TimeoutError(), LinkKind.QUIC), at(there, TimeoutError(), LinkKind.QUIC)])
    told = closest([over_tcp, over_quic, failed(DialFailure.UNREACHABLE, "it is not seen in this network")])
    assert str(told) == (
        f"`{there}` does not answer; `{here}` refused the connection; it is not seen in this network"
    )
    assert isinstance(told, DialError) and told.failure is DialFailure.TIMEOUT


@pytest.mark.parametrize("own", ["127.0.0.1:17430", "[::1]:17430"])
def test_what_answers_at_loopback_is_not_told_beside_other_addresses(own: str) -> None:
    """The peer's record names its loopback; here this node itself listens there."""
    ours = DialError(
        f"`{own}` is another node", kind=LinkKind.TCP, failure=DialFailure.WRONG_PEER, place=own, hint="no"
    )
    there = DialError(
        "`192.168.1.5:17430` does not answer",
        kind=LinkKind.TCP,
        failure=DialFailure.TIMEOUT,
        place="192.168.1.5:17430",
        hint="open the port",
    )
    far = DialError(
        "no route to `10.9.0.1`", kind=LinkKind.TCP, failure=DialFailure.UNREACHABLE, place="10.9.0.1:17430"
    )
    told = closest([ours, far, there])
    assert isinstance(told, DialError)
    assert str(told) == "`192.168.1.5:17430` does not answer; no route to `10.9.0.1`"
    assert (told.failure, told.hint) == (DialFailure.TIMEOUT, "open the port")
    alone = closest([ours])
    assert isinstance(alone, DialError) and alone.failure is DialFailure.WRONG_PEER
    search = DialError("mDNS does not find it", kind=LinkKind.TCP, failure=DialFailure.UNREACHABLE)
    beside = closest([search, ours])
    assert str(beside) == f"`{own}` is another node; mDNS does not find it", "a search is no address"


def test_many_failures_are_summed_up() -> None:
    told = closest([failed(DialFailure.TIMEOUT, f"address {number}") for number in range(6)])
    assert str(told) == "address 0; address 1; address 2 (and 3 more)"


@pytest.mark.parametrize("failure", DialFailure)
def test_every_kind_of_failure_can_be_told(failure: DialFailure) -> None:
    told = closest([failed(failure, "it"), failed(DialFailure.UNFIT, "nothing was tried")])
    assert isinstance(told, DialError)
    assert told.failure is failure


async def test_a_race_that_is_cancelled_with_a_winner_in_hand_drops_it() -> None:
    winner, loser = Watched(), Watched()
    stubborn, won = asyncio.Event(), asyncio.Event()
    proven = Proven(TestMesh().root.peer, Purpose.JOIN, None, None, b"")

    async def attempt(made: list[TcpPipe], candidate: Candidate) -> tuple[TcpPipe, Proven]:
        if candidate.port == 2:
            made.append(winner)
            won.set()
            return winner, proven
        made.append(loser)
        try:
            await asyncio.Event().wait()
        finally:
            await stubborn.wait()
        raise AssertionError

    places = [Candidate("10.0.0.1", 1), Candidate("10.0.0.2", 2)]
    racing = asyncio.get_running_loop().create_task(race(trusted(places), attempt, kind=LinkKind.TCP))
    await won.wait()
    await ticks(10)  # the loser is told to end, and does not let go
    assert not racing.done()
    racing.cancel()
    stubborn.set()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert winner.aborted
    assert loser.aborted
