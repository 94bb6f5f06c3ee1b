"""The life of a child as a table: (state, event) -> (state, actions). Pure.

The driver (child.py) feeds events with `now` (seconds of its clock) and carries out the actions in order.
Every pair of state and event stands in TABLE, in IGNORED (late, harmless), or is a bug of ours and raises
LocalProtocolError. Each row names the states it may lead to; `on` holds it to that.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

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
from meshd.process.supervisor import FailureRecord, was_stable

STUBBORN_AFTER = 10.0  # seconds after KILL: then a driver or the kernel holds it, and status should say so


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Where one child is in its life; `on` gives the next value, this one never changes."""

    state: ChildState = ChildState.STOPPED
    process: Process = Process.NONE
    wanted: bool = False  # while STOPPING: start again when it is gone
    rules: Rules = field(default_factory=Rules)
    record: FailureRecord = field(default_factory=FailureRecord)
    ready_at: float | None = None
    not_before: float = 0.0
    restarts: int = 0
    reason: str = "not started"
    fault: ChildFault | None = None  # while STOPPING: why we end it ourselves

    def on(self, event: Event, now: float) -> tuple["Lifecycle", tuple[Action, ...]]:
        """The next state and what to do. Raises LocalProtocolError for an event that cannot come here."""
        key = (self.state, type(event))
        if key in IGNORED:
            return self, ()
        row = TABLE.get(key)
        if row is None:
            raise LocalProtocolError(f"event {event} in state `{self.state}`")
        after, actions = row.step(self, event, now)
        if after.state not in row.leads_to:
            raise LocalProtocolError(f"event {event} led from `{self.state}` to `{after.state}`")
        return after, actions


Outcome = tuple[Lifecycle, tuple[Action, ...]]
Step = Callable[[Lifecycle, Event, float], Outcome]


def _by_request(life: Lifecycle, when: str = "") -> Wake:
    return Wake(ChildFault(f"`{life.rules.name}` was stopped{when}", stopped=True))


def _begin(life: Lifecycle, now: float, *before: Action) -> Outcome:
    """Spawn now, or when the back-off is over."""
    if now < life.not_before:
        return (
            replace(life, state=ChildState.BACKOFF, process=Process.NONE, wanted=False, fault=None),
            (*before, SetTimer(life.not_before)),
        )
    again = 1 if life.record.total else 0
    return (
        replace(
            life,
            state=ChildState.STARTING,
            process=Process.ASKED,
            wanted=False,
            fault=None,
            ready_at=None,
            restarts=life.restarts + again,
            reason="starting",
        ),
        (*before, SetTimer(None), Spawn()),
    )


def _stopped(life: Lifecycle, *before: Action) -> Outcome:
    after = replace(
        life,
        state=ChildState.STOPPED,
        process=Process.NONE,
        wanted=False,
        fault=None,
        record=FailureRecord(),
        not_before=0.0,
        reason="stopped",
    )
    return after, (*before, SetTimer(None), _by_request(life), Gone())


def _failed(life: Lifecycle, fault: ChildFault, now: float) -> Outcome:
    if fault.user:
        # trying again is cheap and pointless until the user has acted: neither counted nor held back
        after = replace(life, state=ChildState.FAILED, process=Process.NONE, reason=fault.what, fault=None)
        return after, (SetTimer(None), Wake(fault), Gone())
    record = life.record.add(now, was_stable=was_stable(life.ready_at, now))
    if record.looping:
        fault = replace(
            fault, what=f"crash loop, {record.streak} starts in a row without success: {fault.what}"
        )
    state = ChildState.BACKOFF if life.rules.restart else ChildState.FAILED
    reason = f"{fault.what}; next try in {record.delay:g} s" if life.rules.restart else fault.what
    after = replace(
        life,
        state=state,
        process=Process.NONE,
        wanted=False,
        fault=None,
        record=record,
        not_before=now + record.delay,
        reason=reason,
    )
    timer = SetTimer(after.not_before if life.rules.restart else None)
    return after, (timer, Wake(fault), Gone())


def _end_group(life: Lifecycle, now: float, reason: str, fault: ChildFault | None) -> Outcome:
    after = replace(life, state=ChildState.STOPPING, reason=reason, fault=fault)
    return after, (SignalGroup(signal.SIGTERM), SetTimer(now + life.rules.stop_timeout))


# --- steps --------------------------------------------------------------------------------------------------


def _start(life: Lifecycle, _event: Event, now: float) -> Outcome:
    return _begin(life, now)


def _stay(life: Lifecycle, _event: Event, _now: float) -> Outcome:
    return life, ()


def _already_ready(life: Lifecycle, _event: Event, _now: float) -> Outcome:
    return life, (Wake(None),)


def _stop_nothing(life: Lifecycle, _event: Event, _now: float) -> Outcome:
    return _stopped(life)


def _stop_starting(life: Lifecycle, _event: Event, now: float) -> Outcome:
    if life.process is Process.ASKED:
        return _stopped(life, Unspawn())
    wake = _by_request(life, " while it was starting")
    if life.process is Process.BEGUN:  # there is no group to signal yet: Spawned will see to it
        return replace(life, state=ChildState.STOPPING, reason="stopping"), (wake,)
    after, actions = _end_group(life, now, "stopping", None)
    return after, (wake, *actions)


def _stop_ready(life: Lifecycle, _event: Event, now: float) -> Outcome:
    return _end_group(life, now, "stopping", None)


def _spawn_begun(life: Lifecycle, event: Event, _now: float) -> Outcome:
    assert isinstance(event, SpawnBegun)
    return replace(life, process=Process.BEGUN, rules=event.rules), ()


def _spawned(life: Lifecycle, event: Event, now: float) -> Outcome:
    assert isinstance(event, Spawned)
    limit = life.rules.ready_timeout
    return replace(life, process=Process.ALIVE), (SetTimer(None if limit is None else now + limit),)


def _spawned_too_late(life: Lifecycle, _event: Event, now: float) -> Outcome:
    return _end_group(replace(life, process=Process.ALIVE), now, life.reason, life.fault)


def _spawn_failed(life: Lifecycle, event: Event, now: float) -> Outcome:
    assert isinstance(event, SpawnFailed)
    return _failed(life, event.fault, now)


def _probe_passed(life: Lifecycle, _event: Event, now: float) -> Outcome:
    after = replace(life, state=ChildState.READY, ready_at=now, reason="ready")
    return after, (SetTimer(None), Wake(None))


def _not_ready_in_time(life: Lifecycle, _event: Event, now: float) -> Outcome:
    limit = life.rules.ready_timeout or 0.0
    fault = ChildFault(f"`{life.rules.name}` was not ready {limit:g} s after its start")
    return _end_group(life, now, fault.what, fault)


def _exited_starting(life: Lifecycle, event: Event, now: float) -> Outcome:
    assert isinstance(event, Exited)
    return _failed(life, describe_exit(life.rules.name, event, "while it was starting"), now)


def _exited_ready(life: Lifecycle, event: Event, now: float) -> Outcome:
    assert isinstance(event, Exited)
    ran = now - (life.ready_at if life.ready_at is not None else now)
    return _failed(life, describe_exit(life.rules.name, event, f"{ran:.1f} s after it was ready"), now)


def _want_again(life: Lifecycle, _event: Event, _now: float) -> Outcome:
    return replace(life, wanted=True), ()


def _want_no_more(life: Lifecycle, _event: Event, _now: float) -> Outcome:
    return replace(life, wanted=False, fault=None, reason="stopping"), (_by_request(life),)


def _kill(life: Lifecycle, _event: Event, now: float) -> Outcome:
    return (
        replace(life, reason="does not exit when asked to: killing it"),
        (SignalGroup(signal.SIGKILL), SetTimer(now + STUBBORN_AFTER)),
    )


def _gone(life: Lifecycle, _event: Event, now: float) -> Outcome:
    if life.fault is not None:
        return _failed(life, life.fault, now)
    if life.wanted:
        # asked for while the old one was being stopped on purpose: a fresh start
        fresh = replace(life, record=FailureRecord(), not_before=0.0)
        return _begin(fresh, now, Gone())
    return _stopped(life)


def describe_exit(name: str, event: Exited, when: str) -> ChildFault:
    """In words what happened, with a hint where the signal alone tells something."""
    if event.signal is None:
        return ChildFault(f"`{name}` ended with exit code {event.code} {when}")
    try:
        by = signal.Signals(event.signal).name
    except ValueError:
        by = f"signal {event.signal}"
    return ChildFault(f"`{name}` was ended by {by} {when}", hint=SIGNAL_HINTS.get(event.signal, ""))


SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGKILL: "check `dmesg`: the kernel does this when memory runs out; or a user killed it",
    signal.SIGILL: "it was probably built for another CPU: build it again on this machine",
}


# --- table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: the step that an event causes in a state, and the states it may lead to."""

    step: Step
    leads_to: frozenset[ChildState]


def _row(step: Step, *leads_to: ChildState) -> Row:
    return Row(step, frozenset(leads_to))


_S = ChildState

TABLE: Mapping[tuple[ChildState, type[Event]], Row] = {
    (_S.STOPPED, StartAsked): _row(_start, _S.STARTING),
    (_S.STOPPED, StopAsked): _row(_stop_nothing, _S.STOPPED),
    (_S.STARTING, StartAsked): _row(_stay, _S.STARTING),
    (_S.STARTING, StopAsked): _row(_stop_starting, _S.STOPPED, _S.STOPPING),
    (_S.STARTING, SpawnBegun): _row(_spawn_begun, _S.STARTING),
    (_S.STARTING, Spawned): _row(_spawned, _S.STARTING),
    (_S.STARTING, SpawnFailed): _row(_spawn_failed, _S.BACKOFF, _S.FAILED),
    (_S.STARTING, ProbePassed): _row(_probe_passed, _S.READY),
    (_S.STARTING, Exited): _row(_exited_starting, _S.BACKOFF, _S.FAILED),
    (_S.STARTING, TimerFired): _row(_not_ready_in_time, _S.STOPPING),
    (_S.READY, StartAsked): _row(_already_ready, _S.READY),
    (_S.READY, StopAsked): _row(_stop_ready, _S.STOPPING),
    (_S.READY, Exited): _row(_exited_ready, _S.BACKOFF, _S.FAILED),
    (_S.STOPPING, StartAsked): _row(_want_again, _S.STOPPING),
    (_S.STOPPING, StopAsked): _row(_want_no_more, _S.STOPPING),
    (_S.STOPPING, Spawned): _row(_spawned_too_late, _S.STOPPING),
    (_S.STOPPING, SpawnFailed): _row(_gone, _S.STOPPED, _S.STARTING),
    (_S.STOPPING, TimerFired): _row(_kill, _S.STOPPING),
    (_S.STOPPING, Exited): _row(_gone, _S.STOPPED, _S.STARTING, _S.BACKOFF, _S.FAILED),
    (_S.BACKOFF, StartAsked): _row(_stay, _S.BACKOFF),
    (_S.BACKOFF, StopAsked): _row(_stop_nothing, _S.STOPPED),
    (_S.BACKOFF, TimerFired): _row(_start, _S.STARTING, _S.BACKOFF),
    (_S.FAILED, StartAsked): _row(_start, _S.STARTING, _S.BACKOFF),
    (_S.FAILED, StopAsked): _row(_stop_nothing, _S.STOPPED),
}

# a probe that was under way when the child was told to stop
IGNORED = frozenset({(_S.STOPPING, ProbePassed)})
