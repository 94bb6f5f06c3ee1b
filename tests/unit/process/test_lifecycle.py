"""The table of a child's life: each row, and what must hold whatever happens in whatever order."""

import signal

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from meshd.base.errors import LocalProtocolError
from meshd.process.events import (
    Action,
    ChildFault,
    Event,
    Exited,
    Gone,
    ProbePassed,
    Process,
    Rules,
    SetTimer,
    SignalGroup,
    Spawn,
    SpawnBegun,
    Spawned,
    SpawnFailed,
    StartAsked,
    StopAsked,
    TimerFired,
    Unspawn,
    Wake,
)
from meshd.process.interface import ChildState
from meshd.process.lifecycle import IGNORED, STUBBORN_AFTER, TABLE, Lifecycle

S = ChildState
RULES = Rules("cat", ready_timeout=10.0, stop_timeout=5.0, restart=False)
SAMPLES: tuple[Event, ...] = (
    StartAsked(),
    StopAsked(),
    SpawnBegun(RULES),
    Spawned(7),
    SpawnFailed(ChildFault("no memory")),
    ProbePassed(),
    Exited(1, None),
    TimerFired(),
)


def run(*events: Event, rules: Rules = RULES, now: float = 100.0) -> tuple[Lifecycle, tuple[Action, ...]]:
    """The state after `events`, one a second, and the actions of the last one."""
    life = Lifecycle(rules=rules)
    actions: tuple[Action, ...] = ()
    for second, event in enumerate(events):
        life, actions = life.on(event, now + second)
    return life, actions


def woken(actions: tuple[Action, ...]) -> ChildFault | None:
    """The fault that waiters are told."""
    found = [action.fault for action in actions if isinstance(action, Wake)]
    assert len(found) == 1
    return found[0]


START = (StartAsked(), SpawnBegun(RULES), Spawned(7))
UP = (*START, ProbePassed())


@pytest.mark.parametrize("state", list(ChildState))
@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_every_pair_is_a_row_ignored_or_a_bug(state: ChildState, event: Event) -> None:
    life = Lifecycle(state=state, rules=RULES)
    key = (state, type(event))
    if key in TABLE:
        assert key not in IGNORED
    elif key in IGNORED:
        assert life.on(event, 0.0) == (life, ())
    else:
        with pytest.raises(LocalProtocolError):
            life.on(event, 0.0)


def test_start() -> None:
    life, actions = run(StartAsked())
    assert (life.state, life.process) == (S.STARTING, Process.ASKED)
    assert actions == (SetTimer(None), Spawn())
    life, actions = run(*START)
    assert actions == (SetTimer(112.0),)
    life, actions = run(*UP)
    assert life.state is S.READY
    assert actions == (SetTimer(None), Wake(None))


def test_no_ready_timeout_means_no_timer() -> None:
    forever = Rules("cat", ready_timeout=None)
    _, actions = run(StartAsked(), SpawnBegun(forever), Spawned(7))
    assert actions == (SetTimer(None),)


def test_asked_again_while_starting_and_while_ready() -> None:
    assert run(*START, StartAsked())[1] == ()
    assert run(*UP, StartAsked())[1] == (Wake(None),)


def test_stop_terms_then_kills_then_says_so() -> None:
    life, actions = run(*UP, StopAsked())
    assert actions == (SignalGroup(signal.SIGTERM), SetTimer(109.0))
    life, actions = run(*UP, StopAsked(), TimerFired())
    assert actions == (SignalGroup(signal.SIGKILL), SetTimer(105.0 + STUBBORN_AFTER))
    assert "does not exit" in life.reason
    life, actions = run(*UP, StopAsked(), TimerFired(), Exited(None, 9))
    assert life.state is S.STOPPED
    assert Gone() in actions


def test_stop_before_the_spawn_takes_it_back() -> None:
    life, actions = run(StartAsked(), StopAsked())
    assert life.state is S.STOPPED
    assert actions[0] == Unspawn()
    fault = woken(actions)
    assert fault is not None
    assert fault.stopped


def test_stop_during_the_spawn_signals_when_there_is_a_group() -> None:
    life, actions = run(StartAsked(), SpawnBegun(RULES), StopAsked())
    assert life.state is S.STOPPING
    assert not any(isinstance(action, SignalGroup) for action in actions)
    life, actions = run(StartAsked(), SpawnBegun(RULES), StopAsked(), Spawned(7))
    assert SignalGroup(signal.SIGTERM) in actions
    life, actions = run(StartAsked(), SpawnBegun(RULES), StopAsked(), SpawnFailed(ChildFault("x")))
    assert life.state is S.STOPPED
    assert Gone() in actions


def test_start_during_stop_starts_when_it_is_gone() -> None:
    life, actions = run(*UP, StopAsked(), StartAsked(), Exited(0, None))
    assert life.state is S.STARTING
    assert Gone() in actions
    assert Spawn() in actions
    assert life.restarts == 0


def test_the_last_word_counts_while_stopping() -> None:
    life, _ = run(*UP, StopAsked(), StartAsked(), StopAsked(), Exited(0, None))
    assert life.state is S.STOPPED


def test_not_ready_in_time() -> None:
    life, actions = run(*START, TimerFired())
    assert life.state is S.STOPPING
    life, actions = run(*START, TimerFired(), Exited(None, 15))
    assert life.state is S.FAILED
    fault = woken(actions)
    assert fault == ChildFault("`cat` was not ready 10 s after its start")


def test_stop_while_it_is_ended_for_being_late() -> None:
    life, _ = run(*START, TimerFired(), StopAsked(), Exited(None, 15))
    assert life.state is S.STOPPED


def test_a_late_probe_is_ignored() -> None:
    assert run(*START, StopAsked(), ProbePassed())[0].state is S.STOPPING


@pytest.mark.parametrize(
    ("event", "text", "hint"),
    [
        (Exited(3, None), "`cat` ended with exit code 3 while it was starting", ""),
        (Exited(None, 11), "`cat` was ended by SIGSEGV while it was starting", ""),
        (Exited(None, 9), "`cat` was ended by SIGKILL while it was starting", "memory"),
        (Exited(None, 4), "`cat` was ended by SIGILL while it was starting", "another CPU"),
        (Exited(None, 200), "`cat` was ended by signal 200 while it was starting", ""),
    ],
)
def test_an_exit_in_words(event: Exited, text: str, hint: str) -> None:
    life, actions = run(*START, event)
    assert life.reason == text
    fault = woken(actions)
    assert fault is not None
    assert hint in fault.hint


def test_a_user_fault_is_final_even_with_restart() -> None:
    life, actions = run(
        StartAsked(), SpawnFailed(ChildFault("no program", user=True)), rules=Rules("cat", restart=True)
    )
    assert life.state is S.FAILED
    assert life.record.total == 0
    # and asking again tries at once
    life, actions = life.on(StartAsked(), 101.0)
    assert Spawn() in actions


def test_restart_waits_then_starts() -> None:
    rules = Rules("cat", restart=True)
    up = (StartAsked(), SpawnBegun(rules), Spawned(7), ProbePassed())
    life, actions = run(*up, Exited(None, 6))
    assert life.state is S.BACKOFF
    assert actions[0] == SetTimer(104.25)
    assert Gone() in actions
    assert life.on(StartAsked(), 104.1) == (life, ())
    after, actions = life.on(TimerFired(), 104.25)
    assert after.state is S.STARTING
    assert after.restarts == 1
    stopped, actions = life.on(StopAsked(), 104.1)
    assert stopped.state is S.STOPPED
    assert SetTimer(None) in actions


def test_without_restart_asking_again_waits_as_long() -> None:
    life, _ = run(*START, Exited(1, None))
    assert life.state is S.FAILED
    early, actions = life.on(StartAsked(), 103.1)
    assert early.state is S.BACKOFF
    assert actions == (SetTimer(103.25),)
    late, actions = life.on(StartAsked(), 104.0)
    assert late.state is S.STARTING


def test_a_loop_is_called_one_and_a_stop_forgets_it() -> None:
    rules = Rules("cat", restart=True)
    life, now = Lifecycle(rules=rules), 0.0
    life, actions = life.on(StartAsked(), now)
    for _ in range(5):
        for event in (SpawnBegun(rules), Spawned(7), Exited(1, None)):
            life, actions = life.on(event, now)
        failed = life
        now = life.not_before
        life, _ = life.on(TimerFired(), now)
    fault = woken(actions)
    assert fault is not None
    assert fault.what.startswith(
        "crash loop, 5 starts in a row without success: `cat` ended with exit code 1"
    )
    assert failed.reason.endswith("next try in 15 s")
    life, _ = failed.on(StopAsked(), now)
    life, actions = life.on(StartAsked(), now)
    assert Spawn() in actions
    assert not life.record.looping


class AnyOrder(RuleBasedStateMachine):
    """A driver that obeys, and callers that ask whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Lifecycle(rules=Rules("cat", restart=True))
        self.now = 0.0
        self.timer: float | None = None
        self.spawn_asked = False
        self.begun = False
        self.alive = False
        self.starters = 0
        self.stoppers = 0

    def feed(self, event: Event) -> None:
        self.life, actions = self.life.on(event, self.now)
        for action in actions:
            match action:
                case Spawn():
                    assert not self.spawn_asked and not self.begun and not self.alive
                    self.spawn_asked = True
                case Unspawn():
                    assert self.spawn_asked
                    self.spawn_asked = False
                case SignalGroup():
                    assert self.alive
                case SetTimer(at):
                    assert at is None or at >= self.now
                    self.timer = at
                case Wake():
                    self.starters = 0
                case Gone():
                    assert not self.alive
                    self.stoppers = 0

    @rule()
    def ask_start(self) -> None:
        self.starters += 1
        self.feed(StartAsked())

    @rule()
    def ask_stop(self) -> None:
        self.stoppers += 1
        self.feed(StopAsked())

    @precondition(lambda self: self.spawn_asked)
    @rule()
    def begin(self) -> None:
        self.spawn_asked, self.begun = False, True
        self.feed(SpawnBegun(Rules("cat", restart=True)))

    @precondition(lambda self: self.spawn_asked)
    @rule()
    def cannot_begin(self) -> None:
        self.spawn_asked = False
        self.feed(SpawnFailed(ChildFault("no spec", user=True)))

    @precondition(lambda self: self.begun)
    @rule()
    def spawned(self) -> None:
        self.begun, self.alive = False, True
        self.feed(Spawned(7))

    @precondition(lambda self: self.begun)
    @rule()
    def spawn_failed(self) -> None:
        self.begun = False
        self.feed(SpawnFailed(ChildFault("no memory")))

    @precondition(lambda self: self.alive and self.life.state in (S.STARTING, S.STOPPING))
    @rule()
    def probe(self) -> None:
        self.feed(ProbePassed())

    @precondition(lambda self: self.alive)
    @rule()
    def exit(self) -> None:
        self.alive = False
        self.feed(Exited(1, None))

    @precondition(lambda self: self.timer is not None)
    @rule()
    def wait_for_the_timer(self) -> None:
        assert self.timer is not None
        self.now, self.timer = self.timer, None
        self.feed(TimerFired())

    @rule()
    def a_moment(self) -> None:
        if self.timer is None:
            self.now += 0.1

    @invariant()
    def nobody_waits_in_a_settled_state(self) -> None:
        if self.life.state in (S.STOPPED, S.READY, S.FAILED):
            assert self.starters == 0
        if self.life.state is not S.STOPPING:
            assert self.stoppers == 0

    @invariant()
    def something_will_happen_when_somebody_waits(self) -> None:
        if self.starters or self.stoppers:
            assert self.spawn_asked or self.begun or self.alive or self.timer is not None

    @invariant()
    def nothing_runs_in_a_state_that_says_so(self) -> None:
        if self.life.state in (S.STOPPED, S.FAILED, S.BACKOFF):
            assert not (self.alive or self.begun or self.spawn_asked)
        assert (self.life.process is Process.ALIVE) == self.alive
        assert (self.life.state is S.BACKOFF) <= (self.timer is not None)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
