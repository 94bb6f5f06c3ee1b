"""Whose turn it is: fair between users, in order within one, nobody starves, bounds hold."""

import itertools
from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from meshd.base.peer_limits import API_USERS_KNOWN
from meshd.gateway.answer_queue import (
    HALF_LIFE_SECONDS,
    USE_BOUND_SECONDS,
    AnswerQueue,
    Ticket,
)


def test_one_request_does_not_wait_for_fifty_of_another_user() -> None:
    queue = AnswerQueue()
    flood = [queue.enter("agent", 0.0) for _ in range(50)]
    running = queue.begin(2, 0.0)
    assert running == flood[:2]
    mine = queue.enter("chat", 1.0)
    assert queue.begin(2, 1.0) == []
    assert queue.place(mine, 1.0) == 0
    queue.leave(running[0], 5.0)
    assert queue.begin(2, 5.0) == [mine]


def test_users_who_ask_all_the_time_get_the_same_number_of_slots() -> None:
    queue = AnswerQueue()
    for user in "abc":
        for _ in range(40):
            queue.enter(user, 0.0)
    running = deque(queue.begin(6, 0.0))
    for now in range(1, 60):
        assert Counter(ticket.user for ticket in running) == {"a": 2, "b": 2, "c": 2}
        queue.leave(running.popleft(), float(now))
        running.extend(queue.begin(6, float(now)))


def test_short_answers_are_not_held_to_the_number_of_long_ones() -> None:
    """One slot; answers of 30 s and of 1 s: by numbers the first user would have 97 % of the time."""
    queue, now = AnswerQueue(), 0.0
    seconds = {"long": 30.0, "short": 1.0}
    had = dict.fromkeys(seconds, 0.0)
    for user in seconds:
        for _ in range(20):
            queue.enter(user, 0.0)
    while now < 3600:
        (ticket,) = queue.begin(1, now)
        user = str(ticket.user)
        now += seconds[user]
        had[user] += seconds[user]
        queue.leave(ticket, now)
        queue.enter(user, now)
    assert had["short"] > 0.4 * now


def test_who_waited_for_the_model_for_all_has_used_nothing() -> None:
    queue = AnswerQueue()
    first, other = queue.enter("first", 0.0), queue.enter("other", 0.0)
    assert queue.begin(1, 0.0) == [first]
    queue.compute(first, False, 0.0)
    queue.compute(first, True, 60.0)  # a minute for the load, a second for the answer
    queue.leave(first, 61.0)
    assert queue.begin(1, 61.0) == [other]
    again = [queue.enter(user, 61.0) for user in ("first", "other")]
    queue.leave(other, 63.0)
    assert queue.begin(1, 63.0) == again[:1], "the other one has used two seconds"


def test_who_has_left_uses_nothing_more() -> None:
    queue = AnswerQueue()
    ticket = queue.enter("a", 0.0)
    queue.begin(1, 0.0)
    queue.compute(ticket, False, 1.0)
    queue.leave(ticket, 1.0)
    queue.compute(ticket, True, 1.0)
    queue.enter("b", 1000.0)
    assert "a" not in queue._users, "it has used next to nothing lately"


def test_what_was_used_long_ago_does_not_count() -> None:
    queue = AnswerQueue()
    queue.enter("busy", 0.0)
    (ticket,) = queue.begin(1, 0.0)
    queue.leave(ticket, 3600.0)
    later = 3600.0 + 60 * HALF_LIFE_SECONDS
    first, second = queue.enter("busy", later), queue.enter("new", later)
    assert queue.place(first, later) == 1
    queue.enter("another", later)  # who is new makes room: use of a nanosecond is forgotten
    assert queue.begin(1, later) == [second]


def test_more_slots_let_more_begin_and_fewer_end_none() -> None:
    queue = AnswerQueue()
    tickets = [queue.enter("a", 0.0) for _ in range(5)]
    assert queue.begin(3, 0.0) == tickets[:3]
    assert queue.begin(1, 0.0) == []
    queue.leave(tickets[0], 1.0)
    assert queue.begin(1, 1.0) == []
    assert queue.begin(4, 1.0) == tickets[3:5]


def test_use_of_many_users_who_are_gone_is_bounded() -> None:
    queue = AnswerQueue()
    for number in range(3 * API_USERS_KNOWN.most):
        queue.enter(f"user {number}", float(number))
        (ticket,) = queue.begin(1, float(number))
        queue.leave(ticket, number + 0.9)
        assert len(queue._users) <= API_USERS_KNOWN.most


USERS = st.sampled_from("abcd")


class Machine(RuleBasedStateMachine):
    """Any order of requests, turns, ends and clients that hang up; the model is lists of tickets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AnswerQueue()
        self.waiting: list[Ticket] = []
        self.running: list[Ticket] = []
        self.now = 0.0

    @rule(seconds=st.floats(0.001, 1000.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(user=USERS)
    def a_request_comes(self, user: str) -> None:
        self.waiting.append(self.queue.enter(user, self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), computes=st.booleans())
    def one_waits_for_its_model(self, data: st.DataObject, computes: bool) -> None:
        self.queue.compute(data.draw(st.sampled_from(self.running)), computes, self.now)

    @rule(slots=st.integers(0, 5))
    def turns_come(self, slots: int) -> None:
        expected = sorted(self.waiting, key=lambda ticket: self.queue.place(ticket, self.now))
        begun = self.queue.begin(slots, self.now)
        assert begun == expected[: max(0, min(len(expected), slots - len(self.running)))]
        for ticket in begun:
            self._check_is_fair(ticket)
            self.waiting.remove(ticket)
            self.running.append(ticket)

    def _check_is_fair(self, ticket: Ticket) -> None:
        busy = Counter(one.user for one in self.running)
        assert all(busy[ticket.user] <= busy[other.user] for other in self.waiting), "another has fewer"
        own = [other.number for other in self.waiting if other.user == ticket.user]
        assert ticket.number == min(own), "not the oldest of its user"

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.waiting + self.running))
        self.queue.leave(ticket, self.now)
        (self.waiting if ticket in self.waiting else self.running).remove(ticket)

    @invariant()
    def the_numbers_are_right(self) -> None:
        assert self.queue.waiting == len(self.waiting)
        assert self.queue.running == len(self.running)
        places = sorted(self.queue.place(ticket, self.now) for ticket in self.waiting)
        assert places == list(range(len(self.waiting)))


TestMachine = Machine.TestCase


@given(
    others=st.lists(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=4), min_size=1, max_size=5),
    used=st.lists(st.floats(0.1, 20.0), max_size=6),
    arrival=st.floats(0.0, 100.0),
)
def test_nobody_starves(others: list[list[float]], used: list[float], arrival: float) -> None:
    """One answer at a time; each of the others always has requests waiting, with answers as long as listed.

    Whoever has had none lately waits for the answer under way and one of each of the others; who has had
    `use` seconds waits at most so much longer for each of them.
    """
    queue, now = AnswerQueue(), 0.0
    for seconds in used:
        ticket = queue.enter("me", now)
        assert queue.begin(1, now) == [ticket]
        now += seconds
        queue.leave(ticket, now)
    use = min(sum(used), USE_BOUND_SECONDS)
    lengths = [itertools.cycle(each) for each in others]
    for number in range(len(others)):
        for _ in range(3):
            queue.enter(str(number), now)
    mine, asked, longest = None, 0.0, max(map(max, others))
    while True:
        (ticket,) = queue.begin(1, now)
        if ticket is mine:
            break
        end = now + next(lengths[int(str(ticket.user))])
        if mine is None and end >= arrival:
            asked = max(now, arrival)
            mine = queue.enter("me", asked)
        now = end
        queue.leave(ticket, now)
        queue.enter(str(ticket.user), now)
    assert now - asked <= longest + len(others) * (use + longest) + 1e-6
