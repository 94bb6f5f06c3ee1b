"""The ledger: uses are counted once, a crash costs nothing, each refusal has its code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.identity.invite import derive
from meshd.identity.invite_book import KEEP_EXPIRED_SECONDS, MAX_INVITES, MAX_USES, InviteBook, InviteEntry
from meshd.identity.keys import KeyPair
from meshd.identity.membership import Certificate, Role

from tests.unit.identity.cast import (
    GUEST,
    INVITER,
    MESH,
    STRANGER,
    WORKER,
    brief,
    certificate,
    damaged,
    key,
    thorough,
)

NOW = 10_000
SECRET = b"sixteen bytes ok"


def book_with(*, uses: int = 2, expires_at: int = NOW + 100) -> tuple[InviteBook, InviteEntry]:
    book = InviteBook(MESH)
    entry = book.create(secret=SECRET, roles=[Role.USE], now=NOW, expires_at=expires_at, uses=uses)
    return book, entry


def certified(book: InviteBook, entry: InviteEntry, node: KeyPair, serial: bytes = bytes(16)) -> Certificate:
    made = certificate(INVITER, node, invite=entry.invite_id, serial=serial)
    book.certify(entry.invite_id, node.peer, made)
    return made


def test_a_joiner_is_reserved_then_certified() -> None:
    book, entry = book_with()
    decision = book.reserve(entry.invite_id, GUEST.peer, NOW)
    assert decision.ok
    assert decision.certificate is None
    assert decision.entry is not None
    assert decision.entry.left == 1
    certified(book, entry, GUEST)


def test_an_invite_made_while_the_clock_was_years_ahead_ends_when_it_is_set_back() -> None:
    ahead = NOW + 20 * 365 * 86_400
    book = InviteBook(MESH)
    made = book.create(
        secret=SECRET, roles=[Role.USE], now=ahead, expires_at=ahead + 100, uses=2, printed=True
    )
    assert book.reserve(made.invite_id, GUEST.peer, ahead).ok
    assert made.state(NOW) == "expired" and book.current(roles=[Role.USE], now=NOW) is None
    refused = book.reserve(made.invite_id, WORKER.peer, NOW)
    assert refused.code == "expired" and "clock" in refused.text and "meshd invite" in refused.hint
    assert book.reserve(made.invite_id, GUEST.peer, NOW).ok, "it was counted in before"
    hour_back = made.created_at - 3600
    assert made.state(hour_back) == "valid" and book.reserve(made.invite_id, WORKER.peer, hour_back).ok


def test_the_same_key_gets_the_same_certificate_and_counts_once() -> None:
    book, entry = book_with(uses=1)
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    given_first = certified(book, entry, GUEST)
    for now in (NOW, NOW + 10_000):  # after the end, too: it was admitted
        again = book.reserve(entry.invite_id, GUEST.peer, now)
        assert again.ok
        assert again.certificate == given_first
    assert [use.node for use in book.entries()[0].used] == [GUEST.peer]


def test_a_crash_between_reserve_and_certify_costs_nothing() -> None:
    book, entry = book_with(uses=1)
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    restarted = InviteBook.decode(book.encode())  # what was persisted before the crash
    again = restarted.reserve(entry.invite_id, GUEST.peer, NOW + 5000)
    assert again.ok
    assert again.certificate is None
    certified(restarted, entry, GUEST)
    assert restarted.entries()[0].left == 0


def test_of_two_joiners_for_the_last_use_one_gets_it() -> None:
    book, entry = book_with(uses=1)
    first = book.reserve(entry.invite_id, GUEST.peer, NOW)
    second = book.reserve(entry.invite_id, WORKER.peer, NOW)
    assert (first.code, second.code) == ("ok", "used_up")
    assert "once" in second.text
    assert second.hint


def test_the_hint_of_an_invite_for_several_says_how_many() -> None:
    book, entry = book_with(uses=2)
    for node in (GUEST, WORKER):
        assert book.reserve(entry.invite_id, node.peer, NOW).ok
    assert "2 times" in book.reserve(entry.invite_id, STRANGER.peer, NOW).text


def test_an_expired_invite_says_since_when() -> None:
    book, entry = book_with(expires_at=NOW + 100)
    assert book.reserve(entry.invite_id, GUEST.peer, NOW + 99).ok
    late = book.reserve(entry.invite_id, WORKER.peer, NOW + 100 + 7200)
    assert late.code == "expired"
    assert "2 hours ago" in late.text
    assert not late.ok


def test_a_revoked_invite_admits_nobody_not_even_again() -> None:
    book, entry = book_with()
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    certified(book, entry, GUEST)
    assert book.revoke(entry.invite_id).revoked
    for node in (GUEST, WORKER):
        assert book.reserve(entry.invite_id, node.peer, NOW).code == "revoked"


def test_an_unknown_invite_is_refused() -> None:
    book, _ = book_with()
    assert book.reserve(b"unknown!", GUEST.peer, NOW).code == "unknown"
    with pytest.raises(UserError):
        book.revoke(b"unknown!")


def test_certify_needs_an_open_reservation_of_that_node() -> None:
    book, entry = book_with()
    with pytest.raises(LocalProtocolError):
        certified(book, entry, GUEST)
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    with pytest.raises(LocalProtocolError):
        book.certify(entry.invite_id, GUEST.peer, certificate(INVITER, WORKER, invite=entry.invite_id))
    with pytest.raises(LocalProtocolError):
        book.certify(entry.invite_id, GUEST.peer, certificate(INVITER, GUEST, invite=b"another!"))
    certified(book, entry, GUEST)
    with pytest.raises(LocalProtocolError):
        certified(book, entry, GUEST, serial=b"another serial 1")


@pytest.mark.parametrize(
    ("roles", "uses", "expires_at"),
    [([], 1, NOW + 1), ([Role.USE], 0, NOW + 1), ([Role.USE], MAX_USES + 1, NOW + 1), ([Role.USE], 1, NOW)],
)
def test_limits_of_an_invite_are_user_errors(roles: list[Role], uses: int, expires_at: int) -> None:
    with pytest.raises(UserError) as caught:
        InviteBook(MESH).create(secret=SECRET, roles=roles, now=NOW, expires_at=expires_at, uses=uses)
    assert caught.value.hint


def test_old_invites_make_room_and_the_book_is_bounded() -> None:
    book = InviteBook(MESH)

    def create(number: int, now: int) -> None:
        secret = number.to_bytes(16, "big")
        book.create(secret=secret, roles=[Role.USE], now=now, expires_at=now + 1, uses=1)

    for number in range(MAX_INVITES):
        create(number, NOW)
    with pytest.raises(UserError, match="which is the maximum"):
        create(MAX_INVITES, NOW)
    create(MAX_INVITES, NOW + 1 + KEEP_EXPIRED_SECONDS)
    assert len(book.entries()) == 1


def test_the_printed_invite_is_kept_while_it_is_good() -> None:
    book = InviteBook(MESH)
    book.create(secret=bytes(16), roles=[Role.USE], now=NOW, expires_at=NOW + 100, uses=1)
    assert book.current(roles=[Role.USE], now=NOW) is None  # not a printed one
    printed = book.create(
        secret=SECRET, roles=[Role.USE], now=NOW, expires_at=NOW + 100, uses=1, printed=True
    )
    assert book.current(roles=[Role.USE], now=NOW) == printed
    assert book.current(roles=[Role.USE, Role.WORK], now=NOW) is None
    assert book.current(roles=[Role.USE], now=NOW + 100) is None
    book.reserve(printed.invite_id, GUEST.peer, NOW)
    assert book.current(roles=[Role.USE], now=NOW) is None


def test_states_are_named() -> None:
    book, entry = book_with(uses=1)
    assert entry.state(NOW) == "valid"
    assert entry.state(NOW + 100) == "expired"
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    assert book.entries()[0].state(NOW) == "used_up"
    assert book.revoke(entry.invite_id).state(NOW) == "revoked"


def test_an_invite_is_found_by_the_start_of_its_id() -> None:
    book, entry = book_with()
    assert book.find(f" {entry.id_text[:6].upper()} ") == entry
    assert book.get(entry.invite_id) == entry
    for text in ("", "zz", "0" * 16):
        with pytest.raises(UserError, match="no invite"):
            book.find(text)


def test_a_start_that_fits_several_is_refused() -> None:
    book = InviteBook(MESH)
    for number in range(40):
        secret = number.to_bytes(16, "big")
        book.create(secret=secret, roles=[Role.USE], now=NOW, expires_at=NOW + 1, uses=1)
    starts = [entry.id_text[0] for entry in book.entries()]
    common = next(start for start in starts if starts.count(start) > 1)
    with pytest.raises(UserError, match="several"):
        book.find(common)


def test_the_join_keys_of_an_invite_are_found() -> None:
    book, entry = book_with()
    assert book.join_keys(entry.invite_id) == derive(SECRET)
    assert book.join_keys(b"unknown!") is None


def test_a_book_is_read_back() -> None:
    book, entry = book_with(uses=3)
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    certified(book, entry, GUEST)
    book.reserve(entry.invite_id, WORKER.peer, NOW)
    book.create(secret=bytes(16), roles=Role, now=NOW, expires_at=NOW + 5, uses=1, printed=True)
    found = InviteBook.decode(book.encode())
    assert found.mesh == MESH
    assert found.entries() == book.entries()


@given(st.data())
@thorough
def test_a_damaged_book_raises_only_the_declared_error(data: st.DataObject) -> None:
    book, entry = book_with()
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    certified(book, entry, GUEST)
    try:
        found = InviteBook.decode(data.draw(damaged(book.encode())))
    except RemoteProtocolError:
        return
    assert len(found.entries()) <= 1


def test_a_use_with_another_nodes_certificate_is_damage() -> None:
    book, entry = book_with()
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    certified(book, entry, GUEST)
    node = GUEST.peer.raw
    raw = book.encode()
    swapped = raw.replace(node, WORKER.peer.raw, 1)
    assert swapped != raw
    with pytest.raises(RemoteProtocolError, match="another node"):
        InviteBook.decode(swapped)


class Joining(RuleBasedStateMachine):
    """Joiners, crashes and time in any order: never more nodes than uses, one certificate for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.entry = book_with(uses=3, expires_at=NOW + 50)
        self.saved = self.book.encode()
        self.now = NOW
        self.answered: dict[int, Certificate] = {}
        self.serial = 0

    def persist(self) -> None:
        self.saved = self.book.encode()

    @rule(who=st.integers(0, 5), crash=st.sampled_from(["no", "reserved", "certified"]))
    def join(self, who: int, crash: str) -> None:
        node = key(f"joiner {who}")
        decision = self.book.reserve(self.entry.invite_id, node.peer, self.now)
        if not decision.ok:
            assert who not in self.answered
            return
        self.persist()
        if crash == "reserved":
            self.book = InviteBook.decode(self.saved)
            return
        made = decision.certificate
        if made is None:
            self.serial += 1
            made = certified(self.book, self.entry, node, self.serial.to_bytes(16, "big"))
            if crash == "certified":  # before it was persisted: nobody has seen this certificate
                self.book = InviteBook.decode(self.saved)
                return
            self.persist()
        assert self.answered.setdefault(who, made) == made

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def never_more_nodes_than_uses(self) -> None:
        nodes = [use.node for use in self.book.entries()[0].used]
        assert len(nodes) == len(set(nodes)) <= 3
        assert len(self.answered) <= 3


Joining.TestCase.settings = brief
TestJoining = Joining.TestCase


def test_browsers_are_awaited_while_one_may_come() -> None:
    book, _ = book_with()
    assert not book.awaits_browsers(NOW), "the invite is for nodes"
    entry = book.create(
        secret=b"for a browser...", roles=[Role.USE], now=NOW, expires_at=NOW + 100, uses=1, browser="phone"
    )
    assert book.awaits_browsers(NOW)
    assert not book.awaits_browsers(NOW + 100), "it has expired before anybody came"
    book.reserve(entry.invite_id, GUEST.peer, NOW)
    assert book.awaits_browsers(NOW + 1_000_000), "who came by it may come again"
    book.revoke(entry.invite_id)
    assert not book.awaits_browsers(NOW)
