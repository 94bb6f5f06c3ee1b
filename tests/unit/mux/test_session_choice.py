"""Which session a new link joins: every race between links, lost answers and lost sessions."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from meshd.base.errors import RemoteProtocolError
from meshd.mux.session_choice import SessionAnswer, SessionOffer, SessionVerdict, answer, settle

FRESH, NEXT, SALT, OTHER = b"F" * 8, b"N" * 8, b"S" * 8, b"O" * 8


def test_the_first_link_begins_a_session() -> None:
    got = answer(SessionOffer(None, FRESH), mine=None, salt=SALT)
    assert got == SessionAnswer(FRESH + SALT, begins=True)
    assert settle(got.session_id, current=None, fresh=FRESH) is SessionVerdict.BEGIN


def test_a_later_link_attaches() -> None:
    got = answer(SessionOffer(FRESH + SALT, NEXT), mine=FRESH + SALT, salt=OTHER)
    assert got == SessionAnswer(FRESH + SALT, begins=False)
    assert settle(got.session_id, current=FRESH + SALT, fresh=NEXT) is SessionVerdict.ATTACH


def test_the_answer_was_lost() -> None:
    first = answer(SessionOffer(None, FRESH), mine=None, salt=SALT)  # never arrives
    second = answer(SessionOffer(None, FRESH), mine=first.session_id, salt=OTHER)
    assert second == SessionAnswer(first.session_id, begins=False)
    assert settle(second.session_id, current=None, fresh=FRESH) is SessionVerdict.BEGIN


def test_two_links_at_once_in_both_orders_of_answers() -> None:
    first = answer(SessionOffer(None, FRESH), mine=None, salt=SALT)
    second = answer(SessionOffer(None, FRESH), mine=first.session_id, salt=OTHER)
    for one, other in itertools.permutations((first, second)):
        assert settle(one.session_id, current=None, fresh=FRESH) is SessionVerdict.BEGIN
        assert settle(other.session_id, current=one.session_id, fresh=NEXT) is SessionVerdict.ATTACH


def test_the_follower_lost_the_session() -> None:
    got = answer(SessionOffer(FRESH + SALT, NEXT), mine=None, salt=OTHER)
    assert got == SessionAnswer(NEXT + OTHER, begins=True)
    assert settle(got.session_id, current=FRESH + SALT, fresh=NEXT) is SessionVerdict.BEGIN


def test_the_leader_lost_the_session() -> None:
    got = answer(SessionOffer(None, NEXT), mine=FRESH + SALT, salt=OTHER)
    assert got == SessionAnswer(NEXT + OTHER, begins=True)
    assert settle(got.session_id, current=None, fresh=NEXT) is SessionVerdict.BEGIN


def test_an_offer_that_comes_late_never_joins_an_empty_session_to_a_full_one() -> None:
    """The follower lost the session; a hello from before begins another with the same first half."""
    late = answer(SessionOffer(None, FRESH), mine=None, salt=OTHER)
    assert late == SessionAnswer(FRESH + OTHER, begins=True)
    assert settle(late.session_id, current=FRESH + SALT, fresh=NEXT) is SessionVerdict.BEGIN


def test_an_answer_from_long_ago_is_stale() -> None:
    assert settle(OTHER + SALT, current=FRESH + SALT, fresh=NEXT) is SessionVerdict.STALE
    assert settle(OTHER + SALT, current=None, fresh=NEXT) is SessionVerdict.STALE


@pytest.mark.parametrize("size", [0, 8, 15, 17])
def test_lengths_are_checked(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        settle(bytes(size), current=None, fresh=FRESH)
    with pytest.raises(RemoteProtocolError):
        SessionOffer(bytes(size), FRESH)
    with pytest.raises(RemoteProtocolError):
        SessionOffer(None, bytes(size + 1))


class Agreement(RuleBasedStateMachine):
    """Links in any state, both sides losing their session at any time: an attach joins two halves of one."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = itertools.count()
        self.leader: bytes | None = None
        self.fresh = self.draw_half()
        self.follower: bytes | None = None
        self.offers: list[SessionOffer] = []
        self.answers: list[bytes] = []
        self.instances: dict[bytes, int] = {}  # how often the follower made a session of that id

    def draw_half(self) -> bytes:
        return next(self.rng).to_bytes(8, "big")

    @rule()
    def offer(self) -> None:
        self.offers.append(SessionOffer(self.leader, self.fresh))

    @rule(index=st.integers(0, 100))
    def answer(self, index: int) -> None:
        if self.offers:
            offer = self.offers.pop(index % len(self.offers))
            got = answer(offer, mine=self.follower, salt=self.draw_half())
            if got.begins:
                self.instances[got.session_id] = self.instances.get(got.session_id, 0) + 1
            else:
                assert got.session_id == self.follower
            self.follower = got.session_id
            self.answers.append(got.session_id)

    @rule(index=st.integers(0, 100))
    def settle(self, index: int) -> None:
        if self.answers:
            answered = self.answers.pop(index % len(self.answers))
            verdict = settle(answered, current=self.leader, fresh=self.fresh)
            if verdict is SessionVerdict.ATTACH:
                assert answered == self.leader
            elif verdict is SessionVerdict.BEGIN:
                self.leader = answered
                self.fresh = self.draw_half()

    @rule(index=st.integers(0, 100))
    def break_link(self, index: int) -> None:
        for waiting in (self.offers, self.answers):
            if waiting:
                del waiting[index % len(waiting)]

    @rule()
    def leader_loses(self) -> None:
        self.leader = None

    @rule()
    def follower_loses(self) -> None:
        self.follower = None

    @invariant()
    def no_id_is_made_twice(self) -> None:
        assert all(count == 1 for count in self.instances.values())

    def teardown(self) -> None:
        """Links that come through bring both to one session, soon."""
        self.offers.clear()
        self.answers.clear()
        for _ in range(2):
            self.offer()
            self.answer(0)
            self.settle(0)
        assert self.leader == self.follower is not None


Agreement.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAgreement = Agreement.TestCase
