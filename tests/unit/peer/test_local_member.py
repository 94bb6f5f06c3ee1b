"""Test what a node tells of itself: when a new record is signed, who is told, and how it takes its leave."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from meshd import __version__
from meshd.base.errors import Broken
from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.link.interface import Link
from meshd.mux.events import Code
from meshd.peer.local_member import (
    BLOCK,
    COPY_SECONDS,
    OVERTAKE_SECONDS,
    LocalMember,
    Numbering,
    Signature,
)
from meshd.wire.address import Candidate
from meshd.wire.limits import MAX_SEQUENCE

from tests.unit.identity.cast import WORKER, WORKER_CHAIN

pytestmark = pytest.mark.virtual

HOST, UDP = Candidate("10.0.0.1", 17430), Candidate("10.0.0.1", 17430, "udp")
OUTER = Candidate("9.9.9.9", 40000, "udp", "srflx")


class FakeReach:
    """Implements Reach and Audience."""

    def __init__(self) -> None:
        self.places: tuple[Candidate, ...] = (HOST,)
        self.facts: Mapping[str, str] = {}
        self.told: list[str] = []
        self.goodbyes: list[tuple[str, Code]] = []
        self.links: list[Link] = []

    def candidates(self) -> tuple[Candidate, ...]:
        return self.places

    def relay_urls(self) -> tuple[str, ...]:
        return ("relay://x",)

    def capabilities(self) -> Mapping[str, str]:
        return self.facts

    def addresses_changed(self) -> None:
        self.told.append("transports")

    def record_changed(self) -> None:
        self.told.append("record")

    def nat_changed(self) -> None:
        self.told.append("nat")

    def stop_connecting(self) -> None:
        self.told.append("stop")

    def say_goodbye(self, reason: str, *, code: Code = Code.SHUTDOWN) -> None:
        self.goodbyes.append((reason, code))

    async def accept(self, link: Link) -> None:
        self.links.append(link)


class _Mesh(FakeReach):
    def addresses_changed(self) -> None:
        self.told.append("addresses")


class Rig:
    """A member whose disk keeps numbers until `disk` says no."""

    def __init__(self) -> None:
        self.reach, self.mesh = FakeReach(), _Mesh()
        self.disk = True
        self.reserved = 0
        self.saved: list[Sequence[Candidate]] = []
        self.local = LocalMember(
            Signature(WORKER, WORKER_CHAIN, "garage", "worker"),
            reach=self.reach,
            mesh=self.mesh,
            numbers=Numbering(self._reserve, last=0, now=100),
            save=self.saved.append,
        )

    def _reserve(self, number: int) -> bool:
        self.reserved = number if self.disk else self.reserved
        return self.disk

    def hears(self, sequence: int, now: float) -> int:
        """Hear of a record of its own with this number; return the number of its record then."""
        self.local.overtaken(Rig.record(sequence), now)
        return self.local.record.sequence

    @staticmethod
    def record(sequence: int) -> PeerRecord:
        return PeerRecord.sign(WORKER, chain=WORKER_CHAIN, name="copy", role="worker", sequence=sequence)


def test_the_first_record_says_where_the_node_is() -> None:
    rig = Rig()
    record = rig.local.record
    assert (record.peer, record.name, record.role) == (WORKER.peer, "garage", "worker")
    assert (record.candidates, record.relays, record.sequence) == ((HOST,), ("relay://x",), 101)
    assert rig.saved == [(HOST,)] and rig.mesh.told == []


@pytest.mark.parametrize("what", ["candidates", "capabilities"])
def test_peers_are_told_of_another_network_once(what: str) -> None:
    rig = Rig()
    rig.local.network_changed()
    assert rig.mesh.told == [] and rig.local.record.sequence == 101  # nothing is new
    if what == "candidates":
        rig.reach.places = (HOST, OUTER)
    else:
        rig.reach.facts = {"net": "x"}
    rig.local.network_changed()
    rig.local.network_changed()
    assert rig.mesh.told == ["record", "nat"] and rig.local.record.sequence == 102
    assert rig.local.record.candidates == rig.reach.places
    assert rig.local.record.capabilities == {**rig.reach.facts, "meshd": __version__}
    assert rig.saved[1:] == [rig.reach.places]


def test_after_a_change_of_addresses_every_link_is_looked_at_even_if_the_record_stays() -> None:
    rig = Rig()
    rig.local.addresses_changed()
    assert rig.reach.told == ["transports"] and rig.mesh.told == ["addresses", "record"]
    assert rig.local.record.sequence == 101
    rig.reach.places = (OUTER,)
    rig.local.addresses_changed()
    assert rig.local.record.candidates == (OUTER,)


def test_a_record_of_an_earlier_run_that_is_newer_is_overtaken() -> None:
    rig = Rig()
    assert rig.hears(5000, now=7.0) == 5001
    assert rig.reserved >= 5001 and rig.mesh.told == ["record"]
    assert rig.hears(4000, now=7.0) == rig.hears(5001, now=7.0) == 5001, "those are older"
    assert not rig.local.is_copied(7.0)
    rig.local.sign()
    assert rig.local.record.sequence == 5002


def test_a_copy_is_noticed_when_it_signs_again_and_answered_once_a_minute() -> None:
    rig = Rig()
    rig.hears(5000, now=0.0)
    assert rig.hears(6000, now=OVERTAKE_SECONDS - 1) == 5001
    assert rig.local.is_copied(OVERTAKE_SECONDS)
    assert rig.hears(6000, now=OVERTAKE_SECONDS) == 6001
    quiet = OVERTAKE_SECONDS + COPY_SECONDS
    assert not rig.local.is_copied(quiet)
    assert rig.hears(9000, now=quiet + 1) == 9001
    assert not rig.local.is_copied(quiet + 1), "a state that was put back, long after"


def test_numbers_at_the_end_are_not_overtaken() -> None:
    rig = Rig()
    assert rig.hears(MAX_SEQUENCE, now=0.0) == 101
    assert rig.hears(MAX_SEQUENCE - BLOCK, now=0.0) == 101
    assert rig.hears(MAX_SEQUENCE - BLOCK - 1, now=0.0) == MAX_SEQUENCE - BLOCK


def test_a_record_is_overtaken_on_a_full_disk_too() -> None:
    rig = Rig()
    rig.disk = False
    assert rig.hears(5000, now=0.0) == 5001


def test_without_a_number_that_is_certainly_new_the_old_record_stays() -> None:
    rig = Rig()
    rig.disk = False
    for number in range(2 * BLOCK):
        rig.reach.places = (Candidate("10.0.0.1", 1 + number),)
        before = rig.local.record
        rig.local.network_changed()
        if rig.local.record is before:
            break
    assert rig.local.record.sequence == before.sequence
    rig.disk = True
    rig.local.network_changed()
    assert rig.local.record.sequence > before.sequence
    assert rig.local.record.candidates == rig.reach.places


def test_a_node_that_leaves_says_so_and_where_it_is_no_more() -> None:
    rig = Rig()
    rig.local.say_goodbye()
    rig.local.leave()
    record = rig.local.record
    assert (record.has_left, record.candidates, record.relays) == (True, (), ())
    assert rig.mesh.told == ["stop", "record"] and rig.saved[-1] == ()
    rig.local.say_goodbye()
    assert rig.mesh.goodbyes == [
        ("the node was stopped", Code.SHUTDOWN),
        ("the node has left the mesh", Code.LEFT),
    ]


def test_a_token_names_no_udp_port_that_has_the_number_of_a_tcp_port() -> None:
    rig = Rig()
    rig.reach.places = (HOST, UDP, OUTER)
    assert rig.local.token_candidates() == (HOST, OUTER)


class FirstPipe:
    """The pipe by which the node joined."""

    peer: PeerId = WORKER.peer

    def __init__(self) -> None:
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("error", [None, Broken("gone"), TimeoutError()])
async def test_the_pipe_of_the_joining_is_the_first_link_or_nothing_at_all(error: Exception | None) -> None:
    rig, pipe, link = Rig(), FirstPipe(), cast(Link, object())

    async def stay() -> Link:
        await asyncio.sleep(1)
        if error is not None:
            raise error
        return link

    await rig.local.stay(pipe, stay)
    assert rig.mesh.links == ([] if error else [link])
    assert pipe.closed == 1


def test_peers_are_told_that_it_is_paused_and_that_it_is_not() -> None:
    rig = Rig()
    rig.local.pause(paused=True)
    rig.local.pause(paused=True)
    assert rig.mesh.told == ["record"] and rig.local.record.is_paused
    rig.reach.places = (OUTER,)
    rig.local.network_changed()
    assert rig.local.record.is_paused, "whatever else changes"
    rig.local.pause(paused=False)
    assert rig.mesh.told == ["record", "record", "nat", "record"]
    assert "paused" not in rig.local.record.capabilities


def test_peers_are_told_why_it_lends_nothing_and_its_user_comes_first() -> None:
    rig = Rig()

    def said() -> tuple[bool, bool]:
        return rig.local.record.is_paused, rig.local.record.is_fetching

    rig.local.fetches(fetching=True)
    assert said() == (True, True), "a node that knows no more takes it for paused"
    rig.local.pause(paused=True)
    assert said() == (True, False)
    rig.local.pause(paused=False)
    assert said() == (True, True), "it is resumed, and fetches still"
    rig.local.fetches(fetching=False)
    assert said() == (False, False)


def test_numbers_are_reserved_before_they_are_used() -> None:
    reserved: list[int] = []

    def reserve(number: int) -> bool:
        reserved.append(number)
        return True

    numbers = Numbering(reserve, last=500, now=100)
    assert reserved == [500 + BLOCK]
    for number in range(501, 501 + 3 * BLOCK):
        assert numbers.take() == number <= reserved[-1]
    assert reserved == sorted(reserved) and all(
        later - earlier == BLOCK for earlier, later in itertools.pairwise(reserved)
    )
    assert len(reserved) == 1 + 3
    far = 10 * BLOCK
    numbers.skip(far)
    assert numbers.take() == far + 1 <= reserved[-1]
    numbers.skip(5)
    assert numbers.take() == far + 2, "it never goes back"


def test_numbers_that_were_reserved_are_used_while_the_disk_cannot_be_written() -> None:
    disk = True
    numbers = Numbering(lambda _number: disk, last=0, now=100)
    disk = False
    taken = []
    while (number := numbers.take()) is not None:
        taken.append(number)
    assert taken == list(range(101, 101 + BLOCK))
    disk = True
    assert numbers.take() == 101 + BLOCK
