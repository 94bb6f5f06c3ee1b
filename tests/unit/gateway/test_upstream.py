"""Asking llama-server: its template, and the request that crashes it."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meshd.base.peer_limits import API_CULPRITS, API_CULPRITS_GONE, API_USERS_KNOWN
from meshd.gateway import upstream
from meshd.gateway.dialects.template_fit import template_questions
from meshd.gateway.upstream import (
    CULPRIT_SECONDS,
    ENDS_SERVER,
    LATER_TRIAL_SECONDS,
    PASSED_PIECES,
    TRIAL_SECONDS,
    Culprits,
    Served,
    Standing,
    Trials,
)

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()


class _Upstream:
    slots = 1
    connect = None


@pytest.mark.parametrize(("unanswered", "asked"), [(None, 2), ("", 1)], ids=["timed out", "refused"])
async def test_a_question_that_was_not_answered_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, unanswered: str | None, asked: int
) -> None:
    count = 0

    async def prompt(_connect: object, body: bytes) -> str | None:
        nonlocal count
        count += 1
        return unanswered if count == 4 else body.decode()

    monkeypatch.setattr(upstream, "template_prompt", prompt)
    served = Served(_Upstream(), Culprits())  # type: ignore[arg-type]
    for _ in range(3):
        await served.fit(BODY)
    assert count == asked * len(template_questions())


REPEATS = 3  # of one request: answer.py
ABANDONED_SECONDS = 30.0  # for which llama-server computes for a client that has left
PIECE_SECONDS = 0.1


@dataclass(eq=False)
class Request:
    """A request of one client. `ends_at`: the piece of a run at which llama-server ends; None: innocent."""

    standing: Standing
    length: int
    ends_at: int | None
    run: int = 0  # pieces of this run
    came_to_gate: float = 0.0
    losses: int = 0
    outcome: str = ""


@dataclass
class Server:
    """llama-server, its gate and its clients, on a clock of its own; it is loaded again at once.

    `repeats`: a request whose llama-server was lost is sent again.
    """

    repeats: bool = True
    trials: Trials = field(default_factory=Trials)
    now: float = 0.0
    crashes: int = 0
    requests: list[Request] = field(default_factory=list)
    gate: list[Request] = field(default_factory=list)
    there: list[Request] = field(default_factory=list)
    abandoned: list[tuple[Request, float]] = field(default_factory=list)
    unaware: list[Request] = field(default_factory=list)  # lost, and about to notice

    def come(self, length: int, ends_at: int | None, caller: str = "") -> Request:
        caller = caller or ("good" if ends_at is None else "bad")
        request = Request(self.trials.come(caller), length, ends_at, came_to_gate=self.now)
        self.requests.append(request)
        self.gate.append(request)
        return request

    def let_in(self, request: Request) -> bool:
        """Let it in if it may."""
        gate = {one.standing for one in self.gate}
        if not self.trials.may_enter(request.standing, gate, self.now - request.came_to_gate, self.now):
            return False
        self.trials.enter(request.standing, self.crashes, self.now)
        self.gate.remove(request)
        self.there.append(request)
        return True

    def generate(self, request: Request) -> None:
        """One more piece of a request that is there."""
        request.run += 1
        if request.ends_at is not None and request.run > request.ends_at:
            self.crash()
        elif request.run >= request.length:
            self.trials.answered(request.standing)
            self.end(request, "whole")
        else:
            request.standing.sent(self.now)

    def crash(self) -> None:
        self.crashes += 1
        self.unaware += self.there
        self.there, self.abandoned = [], []

    def notice(self, request: Request) -> None:
        """Its connection is seen to be gone."""
        self.unaware.remove(request)
        request.losses += 1
        request.run = 0
        failure = self.trials.lost(request.standing, self.crashes, self.now, taken=True, repeats=self.repeats)
        if failure is not None:
            assert failure.code == ENDS_SERVER
            self.end(request, "named")
        elif not self.repeats or request.losses > REPEATS:
            self.end(request, "lost")
        else:
            request.came_to_gate = self.now
            self.gate.append(request)

    def give_up(self, request: Request, *, writing: bool = True) -> None:
        """Its client leaves, wherever it is; llama-server goes on with it for a while.

        `writing`: if its llama-server is gone, nobody has read that yet; else the reason is being asked for.
        """
        if request in self.there:
            self.abandoned.append((request, self.now + ABANDONED_SECONDS))
        if request not in self.unaware or writing:
            self.trials.gave_up(request.standing, self.now)
        self.end(request, "gone")

    def end(self, request: Request, outcome: str) -> None:
        request.outcome = outcome
        for group in (self.gate, self.there, self.unaware):
            if request in group:
                group.remove(request)
        self.trials.go(request.standing, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.abandoned = [one for one in self.abandoned if one[1] > self.now]

    def generate_abandoned(self, at: int) -> None:
        request, _ = self.abandoned[at % len(self.abandoned)]
        request.run += 1
        if request.ends_at is not None and request.run > request.ends_at:
            self.crash()

    def play(self) -> None:
        """Let all clients stay to the end, llama-server generating for each in turn."""
        while self.gate or self.there or self.unaware:
            for request in list(self.unaware):
                self.notice(request)
            for request in list(self.gate):
                self.let_in(request)
            for request in list(self.there):
                if request in self.there:
                    self.generate(request)
            self.wait(PIECE_SECONDS)


KINDS = ("come", "enter", "pieces", "pieces", "pieces", "notice", "give up", "abandoned", "wait")
_STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(1, 20))
_ENDS_AT = st.sampled_from([None, 3, PASSED_PIECES + 3])


@given(st.booleans(), st.lists(_ENDS_AT, min_size=2, max_size=3), st.lists(_STEP, min_size=20, max_size=60))
@example(True, [None, 3], [("pieces", 1, 4), ("give up", 1, 1), ("notice", 0, 1)])
@example(False, [None, 3], [("pieces", 1, 4), ("give up", 1, 1), ("notice", 0, 1)])
@example(False, [None, 3], [("give up", 1, 1), ("abandoned", 0, 4), ("wait", 3, 1), ("notice", 0, 1)])
@example(True, [None, 3], [("give up", 1, 1), ("abandoned", 0, 4), ("notice", 0, 1), ("come", 2, 1)] * 9)
def test_an_innocent_is_never_named(
    repeats: bool, first: list[int | None], steps: list[tuple[str, int, int]]
) -> None:
    """Clients come, leave before, at and after a crash, wait, and notice a loss late."""
    server = Server(repeats=repeats)
    for ends_at in first:
        server.let_in(server.come(80, ends_at))
    for kind, at, count in steps:
        take_step(server, kind, at, count)
        assert server.trials.refusal("good", server.now) is None
    assert not [one for one in server.requests if one.outcome == "named" and one.ends_at is None]


def take_step(server: Server, kind: str, at: int, count: int) -> None:
    """Take it where it makes sense; `at` chooses a request."""
    match kind:
        case "come":
            server.come(80, (None, None, 3, PASSED_PIECES + 3)[at])
        case "enter":
            for request in list(server.gate):
                server.let_in(request)
        case "pieces" if server.there:
            request = server.there[at % len(server.there)]
            for _ in range(count):
                if request in server.there:
                    server.generate(request)
        case "notice":
            for request in server.unaware[: at + 1]:
                server.notice(request)
        case "give up":
            left = [one for one in server.requests if not one.outcome]
            if left:
                server.give_up(left[at % len(left)], writing=count % 2 == 0)
        case "abandoned":
            for _ in range(count):
                if server.abandoned:
                    server.generate_abandoned(at)
        case "wait":
            server.wait((0.1, 1.0, 20.0, TRIAL_SECONDS)[at])


@given(st.integers(0, 120), st.integers(0, 3), st.integers(0, 3))
def test_one_that_ends_it_is_named_and_all_others_are_answered(ends_at: int, before: int, after: int) -> None:
    """However far in its answer, and whatever came before and after it."""
    server = Server()
    for _ in range(before):
        server.come(200, None)
    culprit = server.come(200, ends_at)
    for _ in range(after):
        server.come(200, None)
    server.play()
    assert culprit.outcome == "named"
    assert {one.outcome for one in server.requests if one is not culprit} <= {"whole"}
    assert server.crashes <= 4


def test_a_former_suspect_beside_the_one_on_trial_clears_that_one() -> None:
    """It was named before, though the other one ended llama-server later in its answer."""
    server = Server()
    innocent = server.come(100, None)
    culprit = server.come(100, PASSED_PIECES + 4)
    for request in (innocent, culprit):
        assert server.let_in(request)
    server.crash()
    for request in (innocent, culprit):
        server.notice(request)
    assert not server.let_in(innocent) and server.let_in(culprit), "the newest first, alone"
    for _ in range(PASSED_PIECES):
        server.generate(culprit)
    assert server.let_in(innocent), "the culprit has passed"
    while server.there:
        server.generate(culprit)
    for request in (innocent, culprit):
        server.notice(request)
    assert innocent.outcome == "", "llama-server had another one as well"
    assert not server.let_in(culprit) and server.let_in(innocent), "and now alone"
    server.play()
    assert (innocent.outcome, culprit.outcome) == ("whole", "named")


def test_one_whose_client_has_left_may_be_the_reason_for_a_while() -> None:
    server = Server()
    for given_up_for, outcome in ((TRIAL_SECONDS / 2, ""), (TRIAL_SECONDS * 2, "named")):
        first, left = server.come(500, 400), server.come(500, None)
        for request in (first, left):
            assert server.let_in(request)
        server.crash()
        server.give_up(left)
        server.notice(first)
        other = server.come(500, None)
        assert server.let_in(first)
        for _ in range(PASSED_PIECES):
            server.generate(first)
        assert server.let_in(other)
        server.give_up(other)
        server.wait(given_up_for)
        server.generate(first)
        server.crash()
        server.notice(first)
        assert first.outcome == outcome
        server.requests.clear()
        if not outcome:
            server.give_up(first)


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
def test_one_whose_client_leaves_after_the_crash_clears_the_others(repeats: bool, writing: bool) -> None:
    """llama-server had both, and nobody knows yet that it crashed."""
    server = Server(repeats=repeats)
    innocent = server.come(80, None)
    for _ in range(2):
        culprit = server.come(80, 3)
        assert server.let_in(innocent)
        innocent.standing.passed()  # its trial, if it has one
        assert server.let_in(culprit)
        while server.there:
            server.generate(culprit)
        server.give_up(culprit, writing=writing)
        server.notice(innocent)
        assert innocent.outcome == ("" if repeats else "lost")
        if not repeats:
            innocent = server.come(80, None)


def test_a_client_that_does_not_read_notices_late_and_is_not_named() -> None:
    server = Server(repeats=False)
    innocent, culprit = server.come(80, None), server.come(80, 3)
    for request in (innocent, culprit):
        assert server.let_in(request)
    server.give_up(culprit)
    for _ in range(4):
        server.generate_abandoned(0)
    server.wait(2 * TRIAL_SECONDS)
    server.notice(innocent)
    assert innocent.outcome == "lost"


def crash_after_hang_up(server: Server, leaves: str, caller: str = "bad") -> None:
    """One request of `caller` crashes it, and its client hangs up."""
    culprit = server.come(80, 3, caller)
    assert server.let_in(culprit)
    if leaves == "before":
        server.give_up(culprit)
    for _ in range(4):
        if leaves == "before":
            server.generate_abandoned(-1)  # the last one
        else:
            server.generate(culprit)
    if leaves == "unnoticed":
        server.give_up(culprit, writing=False)
    for request in list(server.unaware):
        server.notice(request)
    if leaves == "noticed":
        server.give_up(culprit)
    server.play()


@pytest.mark.parametrize("leaves", ["before", "unnoticed", "noticed"])
def test_a_caller_that_hangs_up_at_each_crash_is_refused_and_those_beside_it_are_not(leaves: str) -> None:
    server = Server()
    for crash in range(API_CULPRITS_GONE.most):
        assert server.trials.refusal("bad", server.now) is None
        beside = [server.come(80, None), server.come(80, None, "once")]
        for request in beside:
            assert server.let_in(request)
        if crash == 2:
            server.give_up(beside.pop())
        crash_after_hang_up(server, leaves)
        assert {one.outcome for one in beside} == {"whole"}
    server.let_in(server.come(80, None, "next"))  # an idle llama-server's crash is noted by then
    failure = server.trials.refusal("bad", server.now)
    assert failure is not None and failure.retry_after is not None
    assert (failure.status, failure.code) == (429, "too_many_crashes")
    assert 0 < failure.retry_after <= CULPRIT_SECONDS
    assert "crashed 5 times within 10 min" in failure.message
    assert [server.trials.refusal(other, server.now) for other in ("good", "once", "next")] == [None] * 3
    assert server.trials.refusal("bad", server.now + CULPRIT_SECONDS) is None


def test_of_two_callers_that_hang_up_at_each_crash_nobody_is_refused() -> None:
    """As clients do that complete code: each key that is pressed gives up the request before."""
    server = Server()
    for _ in range(2 * API_CULPRITS_GONE.most):
        other = server.come(80, None)
        assert server.let_in(other)
        server.give_up(other)
        crash_after_hang_up(server, "before")
        server.let_in(server.come(1, None, "next"))
        server.play()
    assert [server.trials.refusal(one, server.now) for one in ("good", "bad")] == [None, None]


def test_crashes_with_a_known_culprit_are_not_blamed_on_clients_that_hang_up() -> None:
    """Not even if each is of another caller."""
    server = Server()
    for crash in range(2 * API_CULPRITS_GONE.most):
        culprit, other = server.come(80, 3, f"bad{crash}"), server.come(80, None)
        for request in (other, culprit):
            assert server.let_in(request)
        while server.there:
            server.generate(culprit)
        server.give_up(other)
        server.play()
        assert culprit.outcome == "named"
    assert server.trials.refusal("good", server.now) is None


def test_the_crashes_and_hang_ups_that_are_remembered_are_bounded() -> None:
    trials = Trials()

    def hang_up(number: int) -> None:
        who = trials.come(number)
        trials.enter(who, 0, 0.0)
        trials.go(who, 0.0)

    def crash(number: int) -> None:
        who = trials.come(number)
        trials.enter(who, number, 0.0)
        trials.lost(who, number + 1, 0.0, taken=True, repeats=False)
        trials.go(who, 0.0)

    def memory_after(happens: Callable[[int], None], first: int, last: int) -> int:
        for number in range(first, last):
            happens(number)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        for happens, most in ((hang_up, API_USERS_KNOWN.most), (crash, 4 * API_CULPRITS_GONE.most)):
            few = memory_after(happens, 0, most)
            assert memory_after(happens, most, 4 * most) < 2 * few
    finally:
        tracemalloc.stop()


def test_new_requests_wait_for_suspects_that_are_about_to_come() -> None:
    server = Server()
    culprit, other = server.come(9, 5), server.come(9, None)
    for request in (culprit, other):
        assert server.let_in(request)
    server.crash()
    server.notice(other)
    new = server.come(9, None)
    assert not server.let_in(new)
    server.wait(2.0)
    assert not server.let_in(new), "a suspect is there, and goes first"
    assert server.let_in(other), "the culprit may wait for a client that does not read"


def test_a_caller_with_three_culprits_is_refused_until_the_oldest_is_forgotten() -> None:
    culprits = Culprits()
    for at in (0.0, 100.0):
        culprits.named("bad", at)
    assert culprits.refusal("bad", 100.0) is None
    culprits.named("bad", 250.5)
    failure = culprits.refusal("bad", 251.0)
    assert failure is not None
    assert (failure.status, failure.code, failure.retry_after) == (429, "too_many_crashes", 350)
    assert "3 requests of this caller ended llama-server within 10 min" in failure.message
    assert not failure.is_final, "it may come back"
    assert culprits.refusal("good", 251.0) is None
    assert culprits.refusal("bad", CULPRIT_SECONDS) is None
    culprits.named("bad", CULPRIT_SECONDS)
    assert culprits.refusal("bad", CULPRIT_SECONDS) is not None, "three within ten minutes again"


@given(st.lists(st.floats(0, 400), max_size=30))
def test_no_more_than_three_culprits_in_ten_minutes(gaps: list[float]) -> None:
    culprits, now, named = Culprits(), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if culprits.refusal("bad", now) is None:
            culprits.named("bad", now)
            named.append(now)
    for first, fourth in zip(named, named[API_CULPRITS.most :], strict=False):
        assert fourth - first >= CULPRIT_SECONDS


def test_the_callers_that_are_remembered_are_bounded() -> None:
    culprits = Culprits()
    for _ in range(API_CULPRITS.most):
        culprits.named("first", 0.0)
    for at in range(API_USERS_KNOWN.most):
        culprits.named(at, 0.0)
    assert culprits.refusal("first", 0.0) is None


@pytest.mark.parametrize("repeats", [True, False])
def test_a_worker_that_is_lost_makes_nobody_a_suspect(repeats: bool) -> None:
    trials = Trials()
    standing = trials.come("")
    trials.enter(standing, 0, 0.0)
    assert trials.lost(standing, 0, 0.0, taken=True, repeats=repeats) is None
    assert not standing.is_suspect and standing.crashes == 0


def test_one_that_llama_server_did_not_take_is_no_suspect() -> None:
    trials = Trials()
    taken, late = trials.come(""), trials.come("")
    for standing in (taken, late):
        trials.enter(standing, 0, 0.0)
    assert trials.lost(late, 1, 0.0, taken=False, repeats=True) is None
    assert trials.lost(taken, 1, 0.0, taken=True, repeats=True) is None
    assert taken.is_suspect and not late.is_suspect


def test_a_trial_without_a_piece_ends_and_others_are_let_in() -> None:
    """At a second crash it is longer, and ends as well: one slow request does not keep all others out."""
    trials = Trials()
    slow, other = trials.come(""), trials.come("")
    now = 0.0
    for one in (slow, other):
        trials.enter(one, 0, now)
    for crash, seconds in ((1, TRIAL_SECONDS), (2, LATER_TRIAL_SECONDS)):
        for one in (slow, other):
            assert trials.lost(one, crash, now, taken=True, repeats=True) is None
        may = [trials.may_enter(one, {slow, other}, 0.0, now) for one in (slow, other)]
        assert sum(may) == 1
        first, second = (slow, other) if may[0] else (other, slow)
        trials.enter(first, crash, now)
        assert not trials.may_enter(second, {second}, seconds - 1, now + seconds - 1)
        now += seconds
        assert trials.may_enter(second, {second}, seconds, now)
        assert not first.is_suspect
        trials.enter(second, crash, now)
