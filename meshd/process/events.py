"""Events and actions in the life of a child, as used by lifecycle.py. Pure."""

import signal
from dataclasses import dataclass
from enum import StrEnum


class Process(StrEnum):
    """What exists of the process: nothing, a wish, a spawn under way, a living group."""

    NONE = "none"
    ASKED = "asked"
    BEGUN = "begun"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the spec the life cycle needs. Seconds."""

    name: str = "child"
    ready_timeout: float | None = 60.0
    stop_timeout: float = 5.0
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ChildFault:
    """Why it is not ready; `user` when only the user can mend it."""

    what: str
    hint: str = ""
    user: bool = False
    stopped: bool = False  # not a failure: somebody asked for it


# --- events -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAsked:
    pass


@dataclass(frozen=True, slots=True)
class StopAsked:
    pass


@dataclass(frozen=True, slots=True)
class SpawnBegun:
    rules: Rules


@dataclass(frozen=True, slots=True)
class Spawned:
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    fault: ChildFault


@dataclass(frozen=True, slots=True)
class ProbePassed:
    pass


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended and its group is gone: exit code, or the signal that ended it."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class TimerFired:
    pass


Event = StartAsked | StopAsked | SpawnBegun | Spawned | SpawnFailed | ProbePassed | Exited | TimerFired


# --- actions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    pass


@dataclass(frozen=True, slots=True)
class Unspawn:
    """Forget a Spawn that was not begun yet."""


@dataclass(frozen=True, slots=True)
class SignalGroup:
    signal: signal.Signals


@dataclass(frozen=True, slots=True)
class SetTimer:
    """One timer, at `at`; None clears it."""

    at: float | None


@dataclass(frozen=True, slots=True)
class Wake:
    """Everybody who waits for READY: it is (None), or it is not, and why."""

    fault: ChildFault | None


@dataclass(frozen=True, slots=True)
class Gone:
    """Everybody who waits for the end: nothing of it runs now."""


Action = Spawn | Unspawn | SignalGroup | SetTimer | Wake | Gone
