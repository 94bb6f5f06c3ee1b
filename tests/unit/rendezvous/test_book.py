"""The address book: newest record wins, addresses in order, limits, what was kept and what was damaged."""

import asyncio
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError, UserError
from meshd.base.peer_limits import INVITER_RECORDS
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.keystore import BOOK_BLOB, Home
from meshd.identity.membership import Chain
from meshd.identity.record import LEFT, PeerRecord
from meshd.identity.revocation import RevocationSet, ban
from meshd.rendezvous import book as book_module
from meshd.rendezvous.book import (
    MAX_BOOK_PEERS,
    MAX_HINTS,
    MAX_MEMBERS_ASKED,
    WRITE_SECONDS,
    AddressBook,
    KeptBook,
    Places,
    judged,
)
from meshd.wire.address import Candidate
from meshd.wire.dialable import Here, Source
from meshd.wire.message import pack

from tests.unit.identity import cast
from tests.unit.identity.cast import (
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    INVITER_CHAIN,
    MESH,
    ROOT,
    WORKER,
    WORKER_CHAIN,
    certificate,
    damaged,
    key,
)

HERE, THERE = Candidate("10.0.0.1", 7447), Candidate("10.0.0.2", 7447)


class SavedBook:
    """A book, what it saved, and whom it does not trust."""

    def __init__(self) -> None:
        self._blob: bytes | None = None
        self._is_old = False
        self.saves = 0
        self.distrusted: set[object] = set()
        self.book = AddressBook(me=FOUNDER.peer, verify=self.verify, save=self.save)

    @property
    def blob(self) -> bytes | None:
        """As read from the disk."""
        if self._is_old:
            self.blob = self.book.encode()
        return self._blob

    @blob.setter
    def blob(self, blob: bytes | None) -> None:
        self._blob, self._is_old = blob, False

    def save(self) -> None:
        self._is_old = True
        self.saves += 1

    def verify(self, record: PeerRecord) -> None:
        record.verify(MESH)
        if record.peer in self.distrusted:
            raise RemoteProtocolError("a banned member", code="banned")

    def again(self) -> AddressBook:
        """As a restarted node has it."""
        book = AddressBook(me=FOUNDER.peer, verify=self.verify, save=self.save)
        book.load(self.blob, file="/home/me/book.blob")
        return book


def record(
    who: KeyPair = WORKER,
    sequence: int = 1,
    *at: Candidate,
    chain: Chain = WORKER_CHAIN,
    name: str = "w",
    left: bool = False,
) -> PeerRecord:
    return PeerRecord.sign(
        who,
        chain=chain,
        name=name,
        role="worker",
        sequence=sequence,
        candidates=at,
        capabilities=LEFT if left else {},
    )


def test_the_higher_sequence_number_wins_and_is_kept() -> None:
    saved = SavedBook()
    assert saved.book.add(record(WORKER, 5, HERE))
    saves = saved.saves
    assert not saved.book.add(record(WORKER, 5, THERE))
    assert not saved.book.add(record(WORKER, 4, THERE))
    assert saved.saves == saves
    assert saved.book.add(record(WORKER, 6, THERE))
    for book in (saved.book, saved.again()):
        assert book.candidates(WORKER.peer) == (THERE,)
        kept = book.record(WORKER.peer)
        assert kept is not None and kept.sequence == 6


def test_a_record_that_is_not_to_be_trusted_changes_nothing() -> None:
    saved = SavedBook()
    saved.distrusted.add(WORKER.peer)
    with pytest.raises(RemoteProtocolError, match="banned"):
        saved.book.add(record())
    assert saved.book.records() == ()
    assert saved.saves == 0


def test_its_own_record_by_hearsay_is_left_alone() -> None:
    saved = SavedBook()
    assert not saved.book.add(record(FOUNDER, 99, HERE, chain=FOUNDER_CHAIN))
    saved.book.hint(FOUNDER.peer, [HERE])
    assert saved.book.peers() == ()


def test_what_worked_is_tried_first_then_the_record_then_hints() -> None:
    saved = SavedBook()
    token, worked = Candidate("192.168.1.5", 1), Candidate("192.168.1.6", 2)
    saved.book.hint(WORKER.peer, [token])
    assert saved.book.candidates(WORKER.peer) == (token,)
    assert saved.book.peers() == (WORKER.peer,)
    saved.book.add(record(WORKER, 1, HERE, THERE))
    saved.book.worked(WORKER.peer, worked.place)
    for book in (saved.book, saved.again()):
        assert book.candidates(WORKER.peer) == (worked, HERE, THERE, token)
    saved.book.worked(WORKER.peer, THERE.place)
    assert saved.book.candidates(WORKER.peer) == (THERE, HERE, worked, token)


def test_what_worked_is_written_once() -> None:
    saved = SavedBook()
    saved.book.worked(WORKER.peer, "10.0.0.9:1")
    saves = saved.saves
    saved.book.worked(WORKER.peer, "10.0.0.9:1")
    saved.book.worked(WORKER.peer, "memory")  # not an address
    assert saved.saves == saves == 1


def test_few_hints_are_kept() -> None:
    saved = SavedBook()
    places = [Candidate(f"10.1.0.{number}", 1) for number in range(1, 9)]
    for place in places:
        saved.book.worked(WORKER.peer, place.place)
    assert saved.book.candidates(WORKER.peer) == tuple(reversed(places[-MAX_HINTS:]))


def test_who_is_forgotten_is_gone_for_good() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 1, HERE))
    saved.book.hint(WORKER.peer, [THERE])
    saved.book.hint(GUEST.peer, [THERE])
    saved.book.forget(WORKER.peer)
    saved.book.forget(GUEST.peer)
    saved.book.forget(GUEST.peer)
    for book in (saved.book, saved.again()):
        assert book.peers() == ()
        assert book.candidates(WORKER.peer) == ()


def test_the_last_word_of_a_node_hides_it_and_is_passed_on() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 1, HERE))
    saved.book.hint(WORKER.peer, [THERE])
    assert saved.book.add(record(WORKER, 2, left=True))
    saved.book.add(record(GUEST, 1, THERE, chain=GUEST_CHAIN))
    saved.book.forget(WORKER.peer)
    for book in (saved.book, saved.again()):
        assert book.peers() == (GUEST.peer,)
        assert book.record(WORKER.peer) is None
        assert book.candidates(WORKER.peer) == ()
        assert [one.peer for one in book.records()] == [GUEST.peer, WORKER.peer]
        assert not book.add(record(WORKER, 1, HERE))
    assert saved.book.add(record(WORKER, 3, HERE)), "it has joined again"
    assert saved.book.peers() == (WORKER.peer, GUEST.peer)


def test_who_is_forgotten_is_not_brought_back_by_the_same_record() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 5, HERE))
    saved.book.forget(WORKER.peer)
    assert not saved.book.add(record(WORKER, 5, HERE))
    assert saved.book.add(record(WORKER, 6, HERE))


def test_who_is_forgotten_stays_so_after_a_restart_until_the_peer_itself_speaks() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 5, HERE))
    saved.book.forget(WORKER.peer)
    book = saved.again()
    book.hint(WORKER.peer, [THERE])  # the token of the same command line
    assert not book.add(record(WORKER, 5, HERE)) and book.peers() == ()
    assert book.add(record(WORKER, 5, HERE), from_itself=True)
    assert book.peers() == (WORKER.peer,)
    assert saved.again().add(record(WORKER, 6, HERE)), "a newer record, whoever passes it on"
    saved.blob = pack({"records": [], "hints": []})  # of a version that kept none
    assert saved.again().add(record(WORKER, 5, HERE))


def test_the_oldest_of_too_many_forgotten_peers_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MAX_BOOK_PEERS", 1)
    saved = SavedBook()
    for one in (record(WORKER, 5, HERE), record(GUEST, 5, THERE, chain=GUEST_CHAIN)):
        assert saved.book.add(one)
        saved.book.forget(one.peer)
    assert not saved.book.add(record(GUEST, 5, THERE, chain=GUEST_CHAIN))
    assert saved.book.add(record(WORKER, 5, HERE))


def test_hints_above_the_limits_are_dropped_when_written_and_when_read() -> None:
    saved = SavedBook()
    peers = [key(f"hint {number}").peer for number in range(MAX_BOOK_PEERS + 3)]
    for peer in peers:
        saved.book.hint(peer, [HERE])
    assert saved.book.peers() == tuple(peers[3:])
    many = [str(Candidate("10.0.0.1", port)) for port in range(1, 20)]
    saved.blob = pack({"records": [], "hints": [{"peer": peer.raw, "at": many} for peer in peers]})
    book = saved.again()
    assert book.peers() == tuple(peers[3:])
    assert len(book.candidates(peers[-1])) == MAX_HINTS


def test_a_record_that_no_longer_holds_is_dropped_at_the_start() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 1, HERE))
    saved.book.add(record(GUEST, 1, THERE, chain=GUEST_CHAIN))
    saved.distrusted.add(WORKER.peer)
    book = saved.again()
    assert [kept.peer for kept in book.records()] == [GUEST.peer]


def test_a_full_book_takes_no_new_member_but_news_of_old_ones() -> None:
    saved = SavedBook()
    keys = [key(f"node {number}") for number in range(MAX_BOOK_PEERS + 1)]
    chain_of = {one.peer: Chain((certificate(ROOT, one),), ROOT.peer) for one in keys}
    keys.sort(key=lambda one: chain_of[one.peer].place)  # the last would have to go
    chains = [chain_of[one.peer] for one in keys]
    for one, chain in zip(keys[:-1], chains, strict=False):
        assert saved.book.add(record(one, 1, HERE, chain=chain))
        saved.book.hint(one.peer, [THERE])
    assert not saved.book.add(record(keys[-1], 1, HERE, chain=chains[-1]))
    assert saved.book.add(record(keys[0], 2, HERE, chain=chains[0]))
    gone, late = keys[5], keys[-1]
    assert saved.book.add(record(gone, 2, chain=chains[5], left=True))
    assert saved.book.add(record(late, 1, HERE, chain=chains[-1])), "in the place of one that has left"
    for number in range(20):  # of members that have no record any more
        saved.book.hint(key(f"old {number}").peer, [HERE])
    assert len(saved.again().records()) == MAX_BOOK_PEERS


def test_no_book_is_an_empty_book() -> None:
    assert SavedBook().again().peers() == ()


@given(st.binary(max_size=300))
def test_a_book_that_cannot_be_read_says_what_to_do(blob: bytes) -> None:
    saved = SavedBook()
    saved.blob = blob
    with pytest.raises(UserError, match="address book") as caught:
        saved.again()
    assert "`/home/me/book.blob`" in caught.value.what


@given(st.data())
def test_a_damaged_book_is_an_error_or_lacks_something(data: st.DataObject) -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 1, HERE))
    saved.book.hint(GUEST.peer, [THERE])
    assert saved.blob is not None
    saved.blob = data.draw(damaged(saved.blob))
    try:
        book = saved.again()
    except UserError:
        return
    assert len(book.records()) <= 1


def test_where_a_peer_is_seen_is_tried_and_not_kept() -> None:
    saved = SavedBook()
    seen = Candidate("10.0.0.9", 7447)
    saved.book.nearby(WORKER.peer, [seen])
    assert saved.book.candidates(WORKER.peer) == ()  # nobody that this book knows
    saved.book.hint(WORKER.peer, [HERE, THERE])
    saves = saved.saves
    saved.book.nearby(WORKER.peer, [seen])
    assert saved.book.candidates(WORKER.peer) == (HERE, seen, THERE)
    assert saved.saves == saves
    assert saved.again().candidates(WORKER.peer) == (HERE, THERE)
    saved.book.nearby(WORKER.peer, [])
    assert saved.book.candidates(WORKER.peer) == (HERE, THERE)
    saved.book.nearby(WORKER.peer, [seen])
    saved.book.forget(WORKER.peer)
    assert saved.book.candidates(WORKER.peer) == ()


def _admitted(count: int, *, by: KeyPair, chain: Chain | None, name: str) -> list[PeerRecord]:
    """Records of so many keys that `by` has certified; `chain` is its own, None for the root."""
    found = []
    for number in range(count):
        one = key(f"{name} {number}")
        leaf = certificate(by, one)
        above = chain.certificates if chain is not None else ()
        found.append(record(one, 1, HERE, chain=Chain((leaf, *above), ROOT.peer)))
    return found


def test_an_inviter_displaces_its_own_admissions_only() -> None:
    saved = SavedBook()
    mine = _admitted(INVITER_RECORDS.most + 40, by=INVITER, chain=INVITER_CHAIN, name="sybil")
    honest = _admitted(20, by=ROOT, chain=None, name="honest")
    for one in (*honest[:10], *mine, *honest[10:]):
        saved.book.add(one)
    kept = {one.peer for one in saved.book.records()}
    assert {one.peer for one in honest} <= kept
    assert len(kept & {one.peer for one in mine}) == INVITER_RECORDS.most
    other = SavedBook()
    for one in (*reversed(mine), *honest):
        other.book.add(one)
    assert {one.peer for one in other.book.records()} == kept, "whatever the order: else it never ends"
    assert {one.peer for one in saved.again().records()} == kept


def test_in_a_full_book_the_largest_share_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MAX_BOOK_PEERS", 60)
    saved = SavedBook()
    mine = _admitted(80, by=INVITER, chain=INVITER_CHAIN, name="sybil")
    honest = _admitted(30, by=ROOT, chain=None, name="honest")
    for one in (*mine, *honest):
        saved.book.add(one)
    kept = {one.peer for one in saved.book.records()}
    assert len(kept) == 60 and {one.peer for one in honest} <= kept


def _bearers(count: int, name: str, *, most: int = 1) -> list[PeerRecord]:
    """Records of bearers of one inviter's token: of `most` times as many keys those with the least hashes."""
    keys = [key(f"{name} {number}") for number in range(most * count)]
    keys.sort(key=lambda one: hashlib.sha256(one.peer.raw).digest())
    found = []
    for number, one in enumerate(keys[:count]):
        serial = hashlib.sha256(f"{name} {number}".encode()).digest()[:16]  # drawn when it joins
        leaf = certificate(INVITER, one, serial=serial)
        found.append(record(one, 1, HERE, chain=Chain((leaf, *INVITER_CHAIN.certificates), ROOT.peer)))
    return found


def test_keys_that_were_made_to_sort_first_push_out_no_others() -> None:
    """The inviter draws the serial when it has the key."""
    saved = SavedBook()
    honest = _bearers(40, "honest")
    hostile = _bearers(INVITER_RECORDS.most, "hostile", most=8)
    for one in (*honest, *hostile):
        saved.book.add(one)
    kept = {one.peer for one in saved.book.records()}
    assert len(kept) == INVITER_RECORDS.most
    assert len(kept & {one.peer for one in honest}) > 20, "each has the same chance"


def test_connected_nodes_stay_in_the_book() -> None:
    saved = SavedBook()
    honest = _bearers(40, "honest")
    saved.book.spare(lambda peer: peer in {one.peer for one in honest[:10]})
    for one in (*honest, *_bearers(3 * INVITER_RECORDS.most, "hostile")):
        saved.book.add(one)
    kept = {one.peer for one in saved.book.records()}
    assert len(kept) == INVITER_RECORDS.most
    assert {one.peer for one in honest[:10]} <= kept
    assert not {one.peer for one in honest} <= kept


def test_the_journal_tells_whose_record_changed() -> None:
    saved = SavedBook()
    saved.book.add(record(WORKER, 1, HERE))
    mark = saved.book.journal.mark
    saved.book.add(record(GUEST, 1, THERE, chain=GUEST_CHAIN))
    saved.book.add(record(WORKER, 2, HERE))
    assert saved.book.journal.since(mark) == [GUEST.peer, WORKER.peer]
    saved.book.forget(GUEST.peer)
    assert saved.book.journal.since(mark) == [WORKER.peer]


PLACE = (Candidate("192.0.2.1", 17430),)
SECONDS = 20.0


def peer(number: int) -> PeerId:
    return KeyPair.from_seed(bytes([number]) * 32).peer


def kept_in(home: Home, bans: RevocationSet | None = None) -> KeptBook:
    return KeptBook(home, me=FOUNDER.peer, mesh=MESH, bans=bans or RevocationSet(MESH))


def known(home: Home) -> set[PeerId]:
    """Return what a node that starts anew knows."""
    return set(kept_in(home).book.peers())


class SlowDisk:
    """A home's `write_blob`: the first write, in a thread, waits until `go_on` is set."""

    def __init__(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._write = home.write_blob
        monkeypatch.setattr(home, "write_blob", self.write)

    def write(self, name: str, data: bytes) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(SECONDS)
        self._write(name, data)


async def test_what_is_being_written_when_the_node_ends_does_not_overtake_what_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    disk = SlowDisk(home, monkeypatch)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        kept.book.hint(peer(1), PLACE)
        await asyncio.to_thread(disk.begun.wait, SECONDS)
        kept.book.hint(peer(2), PLACE)
        owner.cancel()
        await asyncio.sleep(0)  # it is cancelled now, and the disk still busy
        disk.go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert known(home) == {peer(1), peer(2)}


async def test_what_waits_for_a_thread_when_the_node_ends_is_written(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    go_on = threading.Event()
    busy = loop.run_in_executor(None, go_on.wait, SECONDS)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        kept.book.hint(peer(1), PLACE)
        for _ in range(3):
            await asyncio.sleep(0)  # it has asked for a thread
        owner.cancel()
        await asyncio.sleep(0)
        go_on.set()
    await busy
    assert known(home) == {peer(1)}


@pytest.mark.virtual
async def test_of_many_changes_in_a_second_the_first_and_the_last_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "node")
    written: list[float] = []

    async def at_once(work: object) -> None:
        written.append(asyncio.get_running_loop().time())
        assert callable(work)
        work()

    monkeypatch.setattr("meshd.rendezvous.book.in_thread", at_once)

    kept = kept_in(home)
    async with Owner() as owner:
        owner.start(kept.serve(), name="book")
        for number in range(1, 11):
            kept.book.hint(peer(number), PLACE)
            await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        owner.cancel()
    assert len(written) == 2 and written[1] - written[0] == pytest.approx(WRITE_SECONDS)
    assert len(known(home)) == 10


async def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "node")
    kept = kept_in(home)
    kept.write()
    assert home.read_blob(BOOK_BLOB) is None
    kept.book.hint(peer(1), PLACE)
    kept.write()
    assert known(home) == {peer(1)}


async def test_records_of_banned_members_are_not_taken(tmp_path: Path) -> None:
    record = PeerRecord.sign(WORKER, chain=WORKER_CHAIN, name="w", role="worker", sequence=1)

    bans = RevocationSet(MESH)
    kept = kept_in(Home(tmp_path / "node"), bans)
    assert kept.book.add(record)
    bans.add(ban(signer=ROOT, chain=None, mesh=MESH, kind="node", target=WORKER.peer.raw, issued_at=1))
    with pytest.raises(RemoteProtocolError, match="banned member"):
        kept_in(Home(tmp_path / "other"), bans).book.add(record)


PEER = PeerId(bytes(range(32)))
LAN, PUBLIC = Candidate("192.168.7.9", 17430), Candidate("203.0.113.5", 17430)


def made(*looks: Here) -> Places:
    answers = list(looks)
    book = AddressBook(me=PeerId(bytes(32)), verify=lambda _record: None, save=lambda: None)
    return Places(book, look=lambda: answers.pop(0), local_only=False)


def test_the_same_question_is_judged_once() -> None:
    judged.cache_clear()
    places = made(Here(outside=frozenset({ip_address("203.0.113.1")})))
    first = places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD)
    for _ in range(100):
        assert places.may_dial(PEER, [LAN, PUBLIC], Source.RECORD) == first
    assert judged.cache_info().misses == 1


def test_a_machine_that_moved_looks_again_at_once() -> None:
    outside = frozenset({ip_address("203.0.113.1")})
    away = Here(outside=outside)
    home = Here(networks=(ip_network("192.168.7.0/24"),), outside=outside)
    places = made(away, home)
    assert LAN not in places.may_dial(PEER, [LAN], Source.RECORD)
    places.moved()
    assert LAN in places.may_dial(PEER, [LAN], Source.RECORD)


def test_relays_tell_first_how_a_tcp_port_is_seen_then_a_few_public_members_then_stun() -> None:
    book = AddressBook(me=PeerId(bytes(32)), verify=lambda _record: None, save=lambda: None)
    for number in range(1, MAX_MEMBERS_ASKED + 3):
        book.add(
            PeerRecord.sign(
                cast.key(f"member {number}"),
                chain=cast.FOUNDER_CHAIN,
                name="m",
                role="worker",
                sequence=1,
                candidates=(Candidate(f"9.9.9.{number}", 17430), Candidate("10.0.0.1", 17430)),
            )
        )
    asked = Places(book, look=Here, local_only=False).tcp_servers(("relay:1",), ("stun:1",))
    assert (asked[0], asked[-1], len(asked)) == ("relay:1", "stun:1", MAX_MEMBERS_ASKED + 2)
    assert all(place.startswith("9.9.9.") for place in asked[1:-1])
    alone = Places(book, look=Here, local_only=True)
    assert alone.tcp_servers(("relay:1",), ()) == ("relay:1",)
